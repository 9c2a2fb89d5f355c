//! Request ordering on one connection: requests run concurrently with the results of serial
//! execution.
//!
//! A FIFO readers-writer order. Reads overlap with reads, starts of different processes with
//! starts, and file changes with file changes; any other change runs alone. No request overtakes an
//! earlier one. Control methods are not queued here, and a request that only waits leaves the order
//! with [`RequestOrder::finish`].

use std::collections::{BTreeMap, VecDeque};

use exec_wire::{id::ProcessId, method::OrderingClass};

/// Position in the request order. Never reused.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct OrderTicket(u64);

/// Decides which requests may run.
#[derive(Debug)]
pub struct RequestOrder {
    max_running: usize,
    next: u64,
    waiting: VecDeque<(OrderTicket, OrderingClaim)>,
    running: BTreeMap<OrderTicket, OrderingClaim>,
}

/// Properties of a request that determine which others it may overlap with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OrderingClaim {
    /// Ordering class of the method.
    pub ordering: OrderingClass,
    /// Process that the request starts.
    pub starts: Option<ProcessId>,
}

impl From<OrderingClass> for OrderingClaim {
    fn from(ordering: OrderingClass) -> Self {
        Self {
            ordering,
            starts: None,
        }
    }
}

impl RequestOrder {
    /// Creates an empty order that runs at most `max_running` requests at a time.
    pub fn new(max_running: usize) -> Self {
        Self {
            max_running: max_running.max(1),
            next: 0,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
        }
    }

    /// Enqueues a request.
    pub fn submit(&mut self, claim: impl Into<OrderingClaim>) -> OrderTicket {
        let ticket = OrderTicket(self.next);
        self.next += 1;
        self.waiting.push_back((ticket, claim.into()));
        ticket
    }

    /// Dequeues the next request that may run now.
    pub fn poll_ready(&mut self) -> Option<OrderTicket> {
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

    /// Removes a request that has completed or only waits from now on.
    pub fn finish(&mut self, ticket: OrderTicket) {
        self.running.remove(&ticket);
    }

    /// Returns whether no request is queued or running.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
}

/// Returns whether two requests may run concurrently without affecting each other.
fn overlaps(one: &OrderingClaim, other: &OrderingClaim) -> bool {
    match (one.ordering, other.ordering) {
        (OrderingClass::Reads, OrderingClass::Reads) => true,
        // The file queue executes them in the order in which they were dequeued here.
        (OrderingClass::Files, OrderingClass::Files) => true,
        // The second start of an id depends on the outcome of the first.
        (OrderingClass::Starts, OrderingClass::Starts) => one.starts != other.starts,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(order: &mut RequestOrder) -> Vec<OrderTicket> {
        std::iter::from_fn(|| order.poll_ready()).collect()
    }

    #[test]
    fn reads_run_concurrently_and_a_change_runs_alone() {
        let mut order = RequestOrder::new(64);
        let [a, b] = [
            order.submit(OrderingClass::Reads),
            order.submit(OrderingClass::Reads),
        ];
        let change = order.submit(OrderingClass::Changes);
        let last = order.submit(OrderingClass::Reads);
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
        let mut order = RequestOrder::new(64);
        let [a, b] = [
            order.submit(OrderingClass::Files),
            order.submit(OrderingClass::Files),
        ];
        let read = order.submit(OrderingClass::Reads);
        let c = order.submit(OrderingClass::Files);
        assert_eq!(ready(&mut order), [a, b]);
        order.finish(b);
        assert_eq!(ready(&mut order), []);
        order.finish(a);
        assert_eq!(ready(&mut order), [read]);
        order.finish(read);
        assert_eq!(ready(&mut order), [c]);
    }

    fn start(id: &str) -> OrderingClaim {
        OrderingClaim {
            ordering: OrderingClass::Starts,
            starts: Some(ProcessId::new(id).unwrap()),
        }
    }

    #[test]
    fn starts_of_the_same_process_id_run_serially() {
        let mut order = RequestOrder::new(64);
        let [a, again, b] = ["a", "a", "b"].map(|id| order.submit(start(id)));
        assert_eq!(ready(&mut order), [a]);
        order.finish(a);
        assert_eq!(ready(&mut order), [again, b]);
    }

    #[test]
    fn starts_run_concurrently_but_not_with_reads() {
        let mut order = RequestOrder::new(64);
        let [a, b] = [order.submit(start("a")), order.submit(start("b"))];
        let read = order.submit(OrderingClass::Reads);
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
        let mut order = RequestOrder::new(1);
        let [a, b] = [
            order.submit(OrderingClass::Reads),
            order.submit(OrderingClass::Reads),
        ];
        assert_eq!(ready(&mut order), [a]);
        order.finish(a);
        assert_eq!(ready(&mut order), [b]);
    }

    proptest! {
        /// Every request starts, in order of submission, and never concurrently with a conflicting
        /// one.
        #[test]
        fn requests_never_overtake_or_starve(kinds in prop::collection::vec(0u8..4, 0..60), max_running in 1usize..8, pick in any::<u64>()) {
            let kinds: Vec<OrderingClass> = kinds.iter().map(|kind| match kind {
                0 => OrderingClass::Reads,
                1 => OrderingClass::Changes,
                2 => OrderingClass::Files,
                _ => OrderingClass::Starts,
            }).collect();
            let mut order = RequestOrder::new(max_running);
            for (index, kind) in kinds.iter().enumerate() {
                let starts = (*kind == OrderingClass::Starts)
                    .then(|| ProcessId::new(&(index % 5).to_string()).unwrap());
                order.submit(OrderingClaim { ordering: *kind, starts });
            }
            let (mut started, mut running, mut pick) = (Vec::new(), Vec::new(), pick);
            loop {
                for ticket in ready(&mut order) {
                    started.push(ticket.0);
                    running.push(ticket);
                }
                prop_assert!(running.len() <= max_running);
                let changes = running.iter().filter(|t| kinds[usize::try_from(t.0).unwrap()] == OrderingClass::Changes).count();
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
