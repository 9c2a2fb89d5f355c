//! `command/exec*`: the first version of the process methods, with native paths and boolean
//! statuses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    base64_bytes::Base64Bytes,
    id::ProcessId,
    method::{Method, MethodName},
    process::TerminateResult,
};

/// `command/exec`: starts a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecCommand {
    /// Id chosen by the client.
    pub process_id: ProcessId,
    /// Program and arguments. Not empty.
    pub argv: Vec<String>,
    /// Absolute native path of the working directory.
    pub cwd: String,
    /// Complete environment.
    pub env: BTreeMap<String, String>,
    /// Runs the process on a pseudo-terminal. Otherwise stdin is closed.
    pub tty: bool,
    /// Maximum retained bytes per stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes_cap: Option<usize>,
    /// Overrides `argv[0]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
}

impl Method for ExecCommand {
    const NAME: MethodName = MethodName::CommandExec;
    type Result = CommandStarted;
}

/// Response to `command/exec`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandStarted {
    /// Process id of the request.
    pub process_id: ProcessId,
    /// Always true: the response is sent once the process runs.
    pub running: bool,
    /// Always null.
    pub exit_code: Option<i32>,
    /// Always null: output is streamed.
    pub stdout: Option<String>,
    /// Always null: output is streamed.
    pub stderr: Option<String>,
}

/// `command/exec/write`: writes to the terminal of a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteCommand {
    /// Process id.
    pub process_id: ProcessId,
    /// Input bytes.
    pub chunk: Base64Bytes,
}

impl Method for WriteCommand {
    const NAME: MethodName = MethodName::CommandExecWrite;
    type Result = CommandWritten;
}

/// Response to `command/exec/write`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CommandWritten {
    /// Always true: refusals are errors.
    pub accepted: bool,
}

/// `command/exec/terminate`: terminates a process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminateCommand {
    /// Process id.
    pub process_id: ProcessId,
}

impl Method for TerminateCommand {
    const NAME: MethodName = MethodName::CommandExecTerminate;
    type Result = TerminateResult;
}

/// `command/exec/exited`: the process ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandExited {
    /// Process id.
    pub process_id: ProcessId,
    /// Exit code as in `process/exited`.
    pub exit_code: i32,
}
