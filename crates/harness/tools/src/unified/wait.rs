//! Waiting for a command: for its end, a pause, a pattern, some bytes, and never beyond the deadline.
//!
//! Nothing is taken here, so a wait that is dropped loses nothing.

use tokio::{
    pin,
    time::{Instant, sleep_until},
};

use super::{
    buffer::{Gathered, Since},
    call::WaitFor,
    pattern::Sought,
    process::UnifiedExecProcess,
};

/// A wait that has begun.
#[derive(Debug)]
pub(super) struct Wait<'a> {
    process: &'a UnifiedExecProcess,
    wait: &'a WaitFor,
    /// Output up to here does not count.
    from: u64,
    deadline: Instant,
}

impl<'a> Wait<'a> {
    /// Begins to wait. What is written from now on counts.
    pub(super) fn begin(
        process: &'a UnifiedExecProcess,
        wait: &'a WaitFor,
        since: Since,
        deadline: Instant,
    ) -> Self {
        let mut gathered = process.shared.lock();
        if let WaitFor::Pattern(regex) = wait {
            gathered.watch_for(regex.clone(), since);
        }
        let from = match since {
            Since::LastCall => gathered.shown,
            Since::Now => gathered.bytes,
        };
        drop(gathered);
        Self {
            process,
            wait,
            from,
            deadline,
        }
    }

    /// Has the time be up later.
    pub(super) fn extend(&mut self, deadline: Instant) {
        self.deadline = self.deadline.max(deadline);
    }

    /// Waits. What the process had written before the deadline is there then.
    pub(super) async fn done(self) {
        let shared = &self.process.shared;
        loop {
            let changed = shared.changed.notified();
            pin!(changed);
            let until = match self.look(&mut shared.lock()) {
                Found::Done => return,
                Found::NotYet(until) => until,
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(until) => if until >= self.deadline { break },
            }
        }
        self.process.catch_up().await;
    }

    fn look(&self, gathered: &mut Gathered) -> Found {
        let done = gathered.over
            || match self.wait {
                WaitFor::Exit => false,
                WaitFor::Pattern(_) => match gathered.sought() {
                    Sought::Found => true,
                    Sought::NotYet => false,
                    Sought::LookAt(then) => return Found::NotYet(then.min(self.deadline)),
                },
                WaitFor::Bytes(count) => gathered.bytes - self.from >= *count as u64,
                WaitFor::Idle(pause) => {
                    let last = gathered.last_output.filter(|_| gathered.bytes > self.from);
                    // A pause too long to be represented never comes.
                    match last.and_then(|last| last.checked_add(*pause)) {
                        None => false,
                        Some(until) if until > Instant::now() => {
                            return Found::NotYet(until.min(self.deadline));
                        }
                        Some(_) => true,
                    }
                }
            };
        if done {
            Found::Done
        } else {
            Found::NotYet(self.deadline)
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.process.shared.lock().stop_watching();
    }
}

/// Whether what is waited for has come.
enum Found {
    Done,
    /// No; it need not be looked at before then, unless something changes.
    NotYet(Instant),
}
