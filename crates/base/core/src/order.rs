//! The order of requests on one connection: concurrent, with the outcome of serial order.
//!
//! A FIFO readers-writer order. Reads run beside reads, starts beside starts, changes of files in a
//! line of their own, and any other change runs alone; nothing overtakes what came before it, unless
//! the two cannot disturb each other.
//! Not here: control methods, which never queue, and waiting, which holds nobody.

use std::collections::{BTreeMap, VecDeque};

use exec_wire::{id::ProcessId, method::Ordering};

/// A place in the order. Given once.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Ticket(u64);

/// Decides which requests may run.
#[derive(Debug)]
pub struct Order {
    max_running: usize,
    next: u64,
    waiting: VecDeque<(Ticket, Claim)>,
    running: BTreeMap<Ticket, Claim>,
}

/// What a request lays claim to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    /// How it is ordered among others.
    pub ordering: Ordering,
    /// The process that it starts.
    pub starts: Option<ProcessId>,
}

impl From<Ordering> for Claim {
    fn from(ordering: Ordering) -> Self {
        Self {
            ordering,
            starts: None,
        }
    }
}

impl Order {
    /// Begins empty; `max_running` requests run at a time.
    pub fn new(max_running: usize) -> Self {
        Self {
            max_running: max_running.max(1),
            next: 0,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
        }
    }

    /// Puts a request in line.
    pub fn submit(&mut self, claim: impl Into<Claim>) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.push_back((ticket, claim.into()));
        ticket
    }

    /// Takes the next request that may run now.
    pub fn poll_ready(&mut self) -> Option<Ticket> {
        let (_, claim) = self.waiting.front()?;
        if self.running.len() >= self.max_running
            || self
                .running
                .values()
                .any(|running| !overlaps(running, claim))
        {
            return None;
        }
        let (ticket, claim) = self.waiting.pop_front()?;
        self.running.insert(ticket, claim);
        Some(ticket)
    }

    /// Ends a request: it is done, or only waits from here on.
    pub fn finish(&mut self, ticket: Ticket) {
        self.running.remove(&ticket);
    }

    /// Tells whether nothing waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
}

/// Tells whether two requests may run at once without either noticing.
fn overlaps(one: &Claim, other: &Claim) -> bool {
    match (one.ordering, other.ordering) {
        (Ordering::Reads, Ordering::Reads) => true,
        // Whoever runs them runs them in the order in which they began.
        (Ordering::Files, Ordering::Files) => true,
        // Whether an id is free depends on what became of the one before.
        (Ordering::Starts, Ordering::Starts) => one.starts != other.starts,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(order: &mut Order) -> Vec<Ticket> {
        std::iter::from_fn(|| order.poll_ready()).collect()
    }

    #[test]
    fn reads_run_concurrently_and_a_change_runs_alone() {
        let mut order = Order::new(64);
        let [a, b] = [order.submit(Ordering::Reads), order.submit(Ordering::Reads)];
        let change = order.submit(Ordering::Changes);
        let last = order.submit(Ordering::Reads);
        assert_eq!(ready(&mut order), [a, b]);
        order.finish(a);
        assert_eq!(ready(&mut order), []);
        order.finish(b);
        assert_eq!(ready(&mut order), [change]);
        order.finish(change);
        assert_eq!(ready(&mut order), [last]);
    }

    #[test]
    fn file_changes_start_in_order_and_block_other_requests() {
        let mut order = Order::new(64);
        let [a, b] = [order.submit(Ordering::Files), order.submit(Ordering::Files)];
        let read = order.submit(Ordering::Reads);
        let c = order.submit(Ordering::Files);
        assert_eq!(ready(&mut order), [a, b]);
        order.finish(b);
        assert_eq!(ready(&mut order), []);
        order.finish(a);
        assert_eq!(ready(&mut order), [read]);
        order.finish(read);
        assert_eq!(ready(&mut order), [c]);
    }

    fn start(id: &str) -> Claim {
        Claim {
            ordering: Ordering::Starts,
            starts: Some(ProcessId::new(id).unwrap()),
        }
    }

    #[test]
    fn starts_of_the_same_process_id_run_serially() {
        let mut order = Order::new(64);
        let [a, again, b] = ["a", "a", "b"].map(|id| order.submit(start(id)));
        assert_eq!(ready(&mut order), [a]);
        order.finish(a);
        assert_eq!(ready(&mut order), [again, b]);
    }

    #[test]
    fn starts_run_concurrently_but_not_with_reads() {
        let mut order = Order::new(64);
        let [a, b] = [order.submit(start("a")), order.submit(start("b"))];
        let read = order.submit(Ordering::Reads);
        let later = order.submit(start("a"));
        assert_eq!(ready(&mut order), [a, b]);
        order.finish(b);
        order.finish(a);
        assert_eq!(ready(&mut order), [read]);
        order.finish(read);
        assert_eq!(ready(&mut order), [later]);
    }

    #[test]
    fn limit_of_one_runs_requests_serially() {
        let mut order = Order::new(1);
        let [a, b] = [order.submit(Ordering::Reads), order.submit(Ordering::Reads)];
        assert_eq!(ready(&mut order), [a]);
        order.finish(a);
        assert_eq!(ready(&mut order), [b]);
    }

    proptest! {
        /// Requests start in the order they came, all of them, and never beside one they disturb.
        #[test]
        fn requests_never_overtake_or_starve(kinds in prop::collection::vec(0u8..4, 0..60), max_running in 1usize..8, pick in any::<u64>()) {
            let kinds: Vec<Ordering> = kinds.iter().map(|kind| match kind {
                0 => Ordering::Reads,
                1 => Ordering::Changes,
                2 => Ordering::Files,
                _ => Ordering::Starts,
            }).collect();
            let mut order = Order::new(max_running);
            for (index, kind) in kinds.iter().enumerate() {
                let starts = (*kind == Ordering::Starts)
                    .then(|| ProcessId::new(&(index % 5).to_string()).unwrap());
                order.submit(Claim { ordering: *kind, starts });
            }
            let (mut started, mut running, mut pick) = (Vec::new(), Vec::new(), pick);
            loop {
                for ticket in ready(&mut order) {
                    started.push(ticket.0);
                    running.push(ticket);
                }
                prop_assert!(running.len() <= max_running);
                let changes = running.iter().filter(|t| kinds[usize::try_from(t.0).unwrap()] == Ordering::Changes).count();
                prop_assert!(changes == 0 || running.len() == 1);
                if running.is_empty() { break; }
                pick = pick.rotate_left(7).wrapping_add(0x9e37);
                let index = usize::try_from(pick % running.len() as u64).unwrap();
                order.finish(running.swap_remove(index));
            }
            prop_assert_eq!(started, (0..kinds.len() as u64).collect::<Vec<_>>());
            prop_assert!(order.is_idle());
        }
    }
}
