//! A started process: its events, its input, its end, and what callers make of them.

mod collect;
mod communicate;
mod error;
mod event;
mod handle;
mod hold;
mod table;
mod transcript;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use self::{
    collect::{Collect, Collected},
    communicate::{Communicate, CommunicateError, Communicated},
    error::ProcessError,
    event::{EventStream, ExecProcessEvent},
    handle::{ExecProcess, Read, Status},
    hold::Hold,
    table::{
        Allocated, Ended, OpenError, ProcessNumber, ProcessTable, Removed, Session, TableFull,
        WhenFull, Windowed,
    },
    transcript::{Ends, HeadTailBuffer},
};
