//! Handshake: `initialize` and the extensions it grants.

use serde::{
    Deserialize, Serialize,
    de::value::{self, StrDeserializer},
};

use crate::{environment::EnvironmentInfo, id::SessionId};

/// `initialize`: the first request of a connection. Opens a session or resumes one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// Client name for logs.
    pub client_name: String,
    /// Detached session to resume.
    #[serde(default)]
    pub resume_session_id: Option<SessionId>,
    /// Extensions that the client supports. Unknown ones are not granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions: Option<Vec<String>>,
}

/// Response to `initialize`. Older peers send only the first member.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InitializeResponse {
    /// Session of the connection.
    pub session_id: SessionId,
    /// Host that commands run on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_info: Option<EnvironmentInfo>,
    /// Granted extensions.
    #[serde(default)]
    pub extensions: Vec<ProtocolExtension>,
    /// Server software.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerInfo>,
    /// How long the server retains a session without a connection, in milliseconds. Clients try to
    /// resume for that long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_ttl_ms: Option<u64>,
}

/// Extension of the protocol: changes the frame format, adds notifications, or announces optional
/// members that another server would ignore.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::open_enum))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ProtocolExtension {
    /// Data members may be sent as raw bytes.
    BinaryData,
    /// The server sends `process/started` and `process/failed`.
    Lifecycle,
    /// The client acknowledges the events of each process, and the server retains unacknowledged
    /// ones.
    Acknowledge,
    /// The server understands `details`, `limit` and `cursor` of listings, `details` of
    /// `fs/getMetadata`, `fs/setMetadata` and `fs/createSymlink`.
    FileDetails,
    /// The server offers `tunnel/open` and `tunnel/listen`, and both ends send notifications about
    /// tunnels.
    Tunnels,
    /// Unknown value from a newer peer.
    #[serde(other)]
    Unknown,
}

impl ProtocolExtension {
    /// All extensions of this build.
    pub const ALL: &[Self] = &[
        Self::BinaryData,
        Self::Lifecycle,
        Self::Acknowledge,
        Self::FileDetails,
        Self::Tunnels,
    ];

    /// Parses the wire name.
    pub fn parse(name: &str) -> Option<Self> {
        let parsed = Self::deserialize(StrDeserializer::<value::Error>::new(name)).ok();
        parsed.filter(|extension| *extension != Self::Unknown)
    }
}

/// Name and version of the server software.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerInfo {
    /// Program name.
    pub name: String,
    /// Version.
    pub version: String,
}
