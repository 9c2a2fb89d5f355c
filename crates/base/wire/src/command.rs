//! The first dialect: `command/exec*`, with native paths and booleans for statuses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    bytes::Base64,
    id::ProcessId,
    method::{Method, MethodName},
    process::Terminated,
};

/// `command/exec`: starts a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecCommand {
    /// The client's name for it.
    pub process_id: ProcessId,
    /// Program and arguments; not empty.
    pub argv: Vec<String>,
    /// An absolute native path.
    pub cwd: String,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Runs on a pseudo-terminal; otherwise stdin is closed.
    pub tty: bool,
    /// Most bytes retained per stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes_cap: Option<usize>,
    /// What the program sees as `argv[0]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
}

impl Method for ExecCommand {
    const NAME: MethodName = MethodName::CommandExec;
    type Result = CommandStarted;
}

/// The answer to `command/exec`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandStarted {
    /// As in the request.
    pub process_id: ProcessId,
    /// True: the answer comes once the process runs.
    pub running: bool,
    /// Null while it runs.
    pub exit_code: Option<i32>,
    /// Null: output is streamed.
    pub stdout: Option<String>,
    /// Null: output is streamed.
    pub stderr: Option<String>,
}

/// `command/exec/write`: writes to the terminal of a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteCommand {
    /// The process.
    pub process_id: ProcessId,
    /// The bytes.
    pub chunk: Base64,
}

impl Method for WriteCommand {
    const NAME: MethodName = MethodName::CommandExecWrite;
    type Result = CommandWritten;
}

/// The answer to `command/exec/write`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CommandWritten {
    /// True: refusals are errors.
    pub accepted: bool,
}

/// `command/exec/terminate`: ends a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminateCommand {
    /// The process.
    pub process_id: ProcessId,
}

impl Method for TerminateCommand {
    const NAME: MethodName = MethodName::CommandExecTerminate;
    type Result = Terminated;
}

/// `command/exec/exited`: the process ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandExited {
    /// The process.
    pub process_id: ProcessId,
    /// As in `process/exited`.
    pub exit_code: i32,
}
