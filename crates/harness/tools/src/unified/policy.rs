//! What may run, and how enclosed. The caller decides; nothing here has an opinion but the default.

use std::fmt;

use exec_env::network::Network;
use exec_wire::{path_uri::PathUri, sandbox::Sandbox};
use futures_util::future::BoxFuture;

use super::call::CallId;

/// Decides about commands before they start.
pub trait ToolPolicy: fmt::Debug + Send + Sync {
    /// Says whether a command may run. Asked before anything is sent, and again before a command that a
    /// sandbox denied something is run once more.
    fn approve(&self, request: ApprovalRequest) -> BoxFuture<'_, Approval>;

    /// Chooses what encloses an attempt. The first attempt is number 0.
    fn sandbox(&self, request: &ApprovalRequest, attempt: usize) -> SandboxChoice;

    /// Chooses what an attempt may reach although its sandbox closes the network. Nothing, if it is not
    /// implemented.
    fn network(&self, _request: &ApprovalRequest, _attempt: usize) -> Network {
        Network::default()
    }

    /// Says whether to run a command once more after a sandbox denied it something. It is approved
    /// again, and gets the sandbox of the next attempt. The answer that is expected of most is no.
    fn retry(&self, request: &ApprovalRequest, denied: &Denied) -> BoxFuture<'_, bool>;
}

/// What is to run.
#[derive(Clone, Debug)]
pub struct ApprovalRequest {
    /// The call.
    pub call_id: CallId,
    /// Program and arguments, as they will be run.
    pub argv: Vec<String>,
    /// Where.
    pub cwd: PathUri,
    /// Why, as the agent says.
    pub justification: Option<String>,
    /// What an earlier attempt was denied.
    pub denied: Option<Denied>,
}

/// Whether something may run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Approval {
    /// It may.
    Approved,
    /// It may not, for this reason, which the agent is told.
    Refused(String),
}

/// What encloses a command.
#[derive(Clone, Debug)]
pub enum SandboxChoice {
    /// Nothing.
    None,
    /// This.
    Policy(Box<Sandbox>),
}

/// A sandbox denied a command something.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Denied {
    /// The code it ended with.
    pub exit_code: i32,
    /// What it said, bounded.
    pub output: String,
}
