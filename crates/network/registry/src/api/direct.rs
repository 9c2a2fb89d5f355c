//! Executors that dial the harness side themselves: `direct/register`.

use serde::{Deserialize, Serialize};

use super::Secret;

/// The only direct transport there is.
pub const DIRECT_TRANSPORT: &str = "direct_jsonrpc_v1";

/// `direct/register`: an executor asks where it is awaited.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DirectRegister {
    /// Always [`DIRECT_TRANSPORT`].
    pub transport: String,
}

/// The answer to [`DirectRegister`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DirectRegistered {
    /// The environment that was offered.
    pub environment_id: String,
    /// Always [`DIRECT_TRANSPORT`].
    pub transport: String,
    /// Names this registration.
    pub registration_id: String,
    /// The websocket to dial. It may carry a secret.
    pub url: Secret,
}
