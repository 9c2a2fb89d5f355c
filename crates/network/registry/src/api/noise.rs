//! Executors and harnesses that meet at a rendezvous: `register`, `connect`, `validate`.

use exec_relay::identity::PublicKey;
use serde::{Deserialize, Serialize};

use super::Secret;

/// The only way to secure a stream that both sides know.
pub const SECURITY_PROFILE: &str = "noise_hybrid_ik_v1";

/// The header that names the stream which a `validate` is about.
pub const STREAM_ID_HEADER: &str = "x-codex-noise-stream-id";

/// `register`: an executor offers an environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Register {
    /// Always [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// The key that harnesses are to expect.
    pub executor_public_key: PublicKey,
}

/// The answer to [`Register`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Registered {
    /// The environment that was offered.
    pub environment_id: String,
    /// Where the executor waits for harnesses. Whoever holds it is the executor.
    pub url: Secret,
    /// Always [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// Names this registration; the next one supersedes it.
    pub executor_registration_id: String,
}

/// `connect`: a harness asks for the way to an environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Connect {
    /// The key that the harness will prove to hold.
    pub harness_public_key: PublicKey,
}

/// The answer to [`Connect`]. Its members belong together and serve for one connection.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Connected {
    /// The environment that was asked for.
    pub environment_id: String,
    /// Where the harness meets the executor. Whoever holds it may try.
    pub url: Secret,
    /// Always [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// The registration of the executor that waits there.
    pub executor_registration_id: String,
    /// The key that this executor will prove to hold.
    pub executor_public_key: PublicKey,
    /// What the harness shows to the executor, and the executor to the registry.
    pub harness_key_authorization: Secret,
}

/// `validate`: an executor asks whether a harness may come in.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Validate {
    /// The registration under which the harness came.
    pub executor_registration_id: String,
    /// The key that the harness proved to hold.
    pub harness_public_key: PublicKey,
    /// What the harness showed.
    pub harness_key_authorization: Secret,
}

/// The answer to [`Validate`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Validated {
    /// Whether it may.
    pub valid: bool,
}
