//! What an answer means for whoever waits for it.

use super::{
    connection::Connection,
    waiter::{Answered, Opens, Reply, Waiter},
};
use crate::hub::{Kept, Released};

impl Connection {
    pub(super) fn handle_answer(&mut self, waiter: Waiter, result: Reply) {
        match waiter {
            Waiter::Call(reply) => drop(reply.send(result)),
            Waiter::Start(reply, process) => {
                let started = result.is_ok();
                if !started {
                    self.processes.forget(&process);
                }
                // Nobody waits for it any more: it is to be ended.
                if reply.send(result).is_err() && started {
                    self.terminate(&process);
                }
            }
            Waiter::Adopt(reply, process) => self.handle_adopted(reply, &process, result),
            Waiter::Fill(process) => self.handle_page(&process, result),
            Waiter::End(process) => self.processes.forget(&process),
            Waiter::File(reply, opens) => {
                self.bodies.handle_answer(&opens, result.is_ok());
                let result = match result {
                    Ok(answered) => Ok(Answered {
                        kept: self
                            .opened(opens)
                            .map(|opened| Kept::new(&self.hub, opened)),
                        ..answered
                    }),
                    Err(error) => {
                        self.watches.forget(&opens);
                        Err(error)
                    }
                };
                // Nobody waits for it any more: what it has opened is let go of.
                drop(reply.send(result));
            }
        }
    }

    fn opened(&self, opens: Opens) -> Option<Released> {
        match opens {
            Opens::Nothing | Opens::Uses(_) | Opens::Missing(..) => None,
            Opens::File(handle) => Some(Released::File(handle, self.number)),
            Opens::Watch(watch) => Some(Released::Watch(watch.id().clone())),
            // Whoever asked lets go of it.
            Opens::Body(_) => None,
        }
    }
}
