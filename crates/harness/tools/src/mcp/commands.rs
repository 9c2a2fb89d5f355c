//! The tools for commands.

mod end;
mod exec;
mod list;
mod output;
mod refusal;
mod wait;
mod write;

pub(super) use self::{
    end::TerminateProcess, exec::ExecCommandTool, list::ListProcesses, write::WriteStdinTool,
};
