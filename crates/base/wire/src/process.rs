//! `process/*`: starting, feeding, reading and ending processes.

mod control;
mod events;
mod output;
mod start;

pub use self::{
    control::{
        CloseStdin, ProcessSignal, ResizeProcess, SignalProcess, TerminateMode, TerminateProcess,
        Terminated, WaitProcess, WaitResult, WaitUntil, WriteProcess, WriteResult, WriteStatus,
    },
    events::{
        Acknowledged, ExitCause, Exited, ProcessClosed, ProcessFailed, ProcessStarted, Usage,
    },
    output::{
        AttachProcess, Attached, ListProcesses, OutputPage, OutputStream, PageChunk, ProcessList,
        ProcessOwner, ProcessSnapshot, ProcessState, ProcessSummary, ReadProcess, ReleaseProcess,
        SnapshotProcess,
    },
    start::{
        EnvInherit, EnvPolicy, ExecMode, Limits, Metadata, SandboxType, ShellSnapshot,
        StartProcess, Started, TerminalSize,
    },
};
use crate::method::{Method, MethodName};

macro_rules! method {
    ($type:ty, $name:ident, $result:ty) => {
        impl Method for $type {
            const NAME: MethodName = MethodName::$name;
            type Result = $result;
        }
    };
}

method!(StartProcess, ProcessStart, Started);
method!(ReadProcess, ProcessRead, OutputPage);
method!(WriteProcess, ProcessWrite, WriteResult);
method!(CloseStdin, ProcessCloseStdin, WriteResult);
method!(ResizeProcess, ProcessResize, Empty);
method!(SignalProcess, ProcessSignal, Empty);
method!(TerminateProcess, ProcessTerminate, Terminated);
method!(WaitProcess, ProcessWait, WaitResult);
method!(SnapshotProcess, ProcessSnapshot, ProcessSnapshot);
method!(AttachProcess, ProcessAttach, Attached);
method!(ReleaseProcess, ProcessRelease, Empty);
method!(ListProcesses, ProcessList, ProcessList);

/// The empty object.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Empty {}
