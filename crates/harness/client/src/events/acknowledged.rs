//! What the server was told that was taken of one process.

use exec_core::log::FollowedLog;
use exec_wire::id::OutputSeq;

/// What is told at once: a sixteenth of what may be untold, so that the process never waits for it.
const BATCH_BYTES: u64 = 64 << 10;
/// Events that are told at once, however small.
const BATCH_EVENTS: u64 = 256;

/// How far the server was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    seq: OutputSeq,
    bytes: u64,
    /// Told to a connection that is gone: it may not have arrived.
    doubtful: bool,
    /// The driver knows that there is something to tell.
    pub(super) due: bool,
}

impl Told {
    /// Tells whether enough was taken to tell so. After the last events, all is enough.
    pub(super) fn is_due(&self, log: &FollowedLog) -> bool {
        let (seq, bytes) = log.taken();
        let ended = log.log().exit().is_some() && seq.next() == log.log().next_seq();
        let more = seq > self.seq;
        (self.doubtful && seq > OutputSeq(0))
            || (more && ended)
            || seq.0.saturating_sub(self.seq.0) >= BATCH_EVENTS
            || bytes.saturating_sub(self.bytes) >= BATCH_BYTES
    }

    /// Takes what is to be told.
    pub(super) fn take(&mut self, log: &FollowedLog) -> OutputSeq {
        let (seq, bytes) = log.taken();
        *self = Self {
            // Someone who began to follow later does not take back what was told.
            seq: self.seq.max(seq),
            bytes: self.bytes.max(bytes),
            doubtful: false,
            due: false,
        };
        self.seq
    }

    /// Takes all that there is, whoever has not taken it. `None`: it was told.
    pub(super) fn take_all(&mut self, log: &FollowedLog) -> Option<OutputSeq> {
        let last = OutputSeq(log.log().next_seq().0 - 1);
        let more = last > self.seq;
        self.seq = last;
        more.then_some(last)
    }

    /// The connection is another one.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
        self.due = false;
    }
}
