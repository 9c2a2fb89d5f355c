//! How a client introduces itself.

use std::time::Duration;

use exec_wire::id::SessionId;

use crate::trace::TraceSource;

/// How long a server may take to answer `initialize`: as the stock client.
const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a client introduces itself.
#[derive(Clone, Debug)]
pub struct ExecServerClientConnectOptions {
    /// Who connects, for the server's logs.
    pub client_name: String,
    /// How long the server may take to answer `initialize`.
    pub initialize_timeout: Duration,
    /// A detached session to take up again.
    pub resume_session_id: Option<SessionId>,
    /// Extensions to ask for. What is not granted is done without.
    pub extensions: Vec<String>,
    /// What requests belong to. Absent: they carry no trace.
    pub trace: Option<TraceSource>,
}

impl Default for ExecServerClientConnectOptions {
    fn default() -> Self {
        let extensions = ["binaryData", "lifecycle", "acknowledge"];
        Self {
            client_name: env!("CARGO_PKG_NAME").to_owned(),
            initialize_timeout: INITIALIZE_TIMEOUT,
            resume_session_id: None,
            extensions: extensions.map(str::to_owned).to_vec(),
            trace: None,
        }
    }
}
