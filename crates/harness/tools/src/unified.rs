//! Unified exec: two calls, `exec_command` and `write_stdin`, over any environment.
//!
//! A call shows what a command says until it ends, some time has passed, or what is waited for has come;
//! the command runs on, and the next call goes on where the last one ended. A watcher follows each command
//! and reports what happens, whether or not a call waits. The caller decides what may run, and how enclosed.

mod buffer;
mod call;
mod departed;
mod event;
mod exec;
mod held;
mod manager;
mod output;
mod pattern;
mod plain;
mod policy;
mod presets;
mod process;
mod program;
mod screen;
mod settings;
mod show;
mod transcript;
mod variables;
mod wait;
mod watcher;
mod write;

#[cfg(test)]
mod tests;

pub(crate) use self::plain::Plain;
pub use self::{
    call::{CallId, ExecCommand, Program, View, WaitFor, WriteStdin},
    event::{EventSink, ExecEvent, NoEvents},
    exec::ExecCommandError,
    manager::UnifiedExec,
    output::{ToolOutput, Transcript},
    policy::{Approval, ApprovalRequest, Denied, SandboxChoice, ToolPolicy},
    presets::{AskNothing, ReadOnly, Unrestricted},
    process::{ProcessState, ProcessSummary, UnifiedExecProcess},
    screen::Screen,
    settings::{Abandoned, Settings, Windows},
    write::WriteStdinError,
};
