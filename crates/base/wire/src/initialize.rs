//! The handshake: `initialize`, and what may be granted in it.

use serde::{Deserialize, Serialize};

use crate::{
    environment::EnvironmentInfo,
    id::SessionId,
    method::{Method, MethodName},
};

/// `initialize`: the first request of a connection; opens a session or resumes one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// Who connects, for logs.
    pub client_name: String,
    /// A detached session to take up again.
    #[serde(default)]
    pub resume_session_id: Option<SessionId>,
    /// Extensions the client would use. Unknown ones are not granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions: Option<Vec<String>>,
}

impl Method for InitializeParams {
    const NAME: MethodName = MethodName::Initialize;
    type Result = InitializeResponse;
}

/// The answer to `initialize`. MessageMembers after the first are missing from older peers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResponse {
    /// The session that now belongs to the connection.
    pub session_id: SessionId,
    /// Where commands will run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_info: Option<EnvironmentInfo>,
    /// Extensions granted.
    #[serde(default)]
    pub extensions: Vec<Extension>,
    /// The server's software.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerName>,
    /// How long the server keeps a session without a connection, in milliseconds. Clients try to
    /// resume for that long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_ttl_ms: Option<u64>,
}

/// An extension that changes what frames look like, or adds notifications.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Extension {
    /// Data members may travel raw.
    BinaryData,
    /// `process/started` and `process/failed` are sent.
    Lifecycle,
    /// The client tells what it has taken of each process; nothing else is dropped.
    Acknowledge,
    /// One that a newer peer knows.
    #[serde(other)]
    Unknown,
}

impl Extension {
    /// Every extension of this build.
    pub const ALL: &[Self] = &[Self::BinaryData, Self::Lifecycle, Self::Acknowledge];

    /// Finds an extension by its name on the wire.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "binaryData" => Some(Self::BinaryData),
            "lifecycle" => Some(Self::Lifecycle),
            "acknowledge" => Some(Self::Acknowledge),
            _ => None,
        }
    }
}

/// The software at the other end.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ServerName {
    /// The program.
    pub name: String,
    /// Its version.
    pub version: String,
}
