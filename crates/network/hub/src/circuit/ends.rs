//! The two ends.

use super::{Ending, Receiver, Room, Sender, lane};

/// One end of a circuit. Dropping it ends the circuit.
#[derive(Debug)]
pub struct Circuit {
    /// Frames to the other end.
    pub sender: Sender,
    /// Frames from the other end.
    pub receiver: Receiver,
}

impl Circuit {
    /// Makes a circuit: the harness's end, which sends into `to_executor`, and the executor's,
    /// which sends into `to_harness`.
    pub fn pair(to_executor: Room, to_harness: Room) -> (Self, Self) {
        use Ending::{ExecutorGone, HarnessGone};
        let (to_executor, from_harness) = lane::lane(to_executor, HarnessGone, ExecutorGone);
        let (to_harness, from_executor) = lane::lane(to_harness, ExecutorGone, HarnessGone);
        let harness = Self {
            sender: to_executor,
            receiver: from_executor,
        };
        let executor = Self {
            sender: to_harness,
            receiver: from_harness,
        };
        (harness, executor)
    }

    /// Ends the circuit both ways. The other end still receives what was sent before.
    pub fn close(&mut self, ending: Ending) {
        self.sender.close(ending);
        self.receiver.close(ending);
    }
}
