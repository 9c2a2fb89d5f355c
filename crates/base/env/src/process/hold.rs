//! Keeping output that somebody is still to take.

use std::fmt;

use exec_wire::id::OutputSeq;

/// Keeps what was not acknowledged.
pub trait Hold: fmt::Debug + Send + Sync {
    /// Lets go of the events up to `seq`. One that was let go of before changes nothing.
    fn acknowledge(&self, seq: OutputSeq);
}
