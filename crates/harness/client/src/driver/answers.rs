//! What an answer means for whoever waits for it.

use std::sync::Arc;

use exec_wire::process::Terminated;

use super::{
    connection::Connection,
    room::Windows,
    waiter::{Answered, Opens, Reply, Waiter},
};
use crate::{
    events::{Owner, ProcessEvents},
    hub::{Kept, Released},
};

impl Connection {
    pub(super) fn handle_answer(&mut self, waiter: Waiter, result: Reply) {
        match waiter {
            Waiter::Call(reply) => drop(reply.send(result)),
            Waiter::Start(reply, process) => {
                let started = result.is_ok();
                self.has_started |= started;
                process.handle_launched();
                if !started {
                    self.processes.forget(&process);
                }
                // Nobody waits for it any more: it is to be ended.
                if reply.send(result).is_err() && started {
                    self.terminate(&process);
                    if process.owner() == Owner::Server {
                        self.part_with(&process);
                    }
                }
            }
            Waiter::Adopt(reply, process) => self.handle_adopted(reply, &process, result),
            Waiter::Attach(pending, process, after) => {
                self.handle_attached(pending, &process, after, result);
            }
            Waiter::List(processes) => self.handle_listed(processes, &result),
            Waiter::Release(id) => self.handle_released(&id),
            Waiter::Fill(process) => self.handle_page(&process, result),
            Waiter::End(process) => self.handle_ended(&process, result),
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

    /// Forgets a process that has failed, unless its last events are still to be acknowledged.
    fn handle_ended(&mut self, process: &Arc<ProcessEvents>, result: Reply) {
        if !self.processes.knows(process) {
            return;
        }
        self.let_go(process);
        let running = result.is_ok_and(|answered| {
            serde_json::from_slice(&answered.result).is_ok_and(|Terminated { running, .. }| running)
        });
        if self.windows == Windows::Shared || !running {
            self.processes.retire(process);
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
