//! Requests of one connection that have no response yet, and their order: they run concurrently with
//! the results of serial execution.
//!
//! A FIFO readers-writer order. Reads overlap with reads, starts of different processes with
//! starts, and file changes with file changes; any other change runs alone. No request overtakes an
//! earlier one. Control requests, and requests that only wait, are outside the order.

use std::collections::BTreeMap;

use exec_wire::{
    id::{HandleId, ProcessId},
    method::OrderingClass,
};

/// Position in the request order. Never reused.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct OrderTicket(u64);

/// Decides which requests may run. `T` is what the caller needs to run a queued request.
#[derive(Debug)]
pub struct RequestOrder<T> {
    max_running: usize,
    next: u64,
    /// Sum over all records.
    bytes: usize,
    requests: BTreeMap<OrderTicket, RequestRecord<T>>,
}

#[derive(Debug)]
struct RequestRecord<T> {
    claim: OrderingClaim,
    state: RequestState<T>,
}

#[derive(Debug)]
enum RequestState<T> {
    /// Waits for earlier requests that conflict.
    Queued(T),
    /// Later requests that conflict wait for it.
    Running,
    /// No request waits for it.
    Unordered,
}

/// Properties of a request that determine which others it may overlap with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OrderingClaim {
    /// Ordering class of the method.
    pub ordering: OrderingClass,
    /// Process that the request starts.
    pub starts: Option<ProcessId>,
    /// File handle id that has another meaning after the request.
    pub changes_handle: Option<HandleId>,
    /// Bytes that the request occupies.
    pub bytes: usize,
}

impl From<OrderingClass> for OrderingClaim {
    fn from(ordering: OrderingClass) -> Self {
        Self {
            ordering,
            starts: None,
            changes_handle: None,
            bytes: 0,
        }
    }
}

impl<T> RequestOrder<T> {
    /// Creates an empty order that runs at most `max_running` requests at a time.
    pub fn new(max_running: usize) -> Self {
        Self {
            max_running: max_running.max(1),
            next: 0,
            bytes: 0,
            requests: BTreeMap::new(),
        }
    }

    /// Enqueues a request.
    pub fn submit(&mut self, claim: impl Into<OrderingClaim>, item: T) -> OrderTicket {
        self.insert(claim.into(), RequestState::Queued(item))
    }

    /// Enters a request that runs at once, outside the order.
    pub fn submit_unordered(&mut self) -> OrderTicket {
        self.insert(OrderingClass::Control.into(), RequestState::Unordered)
    }

    fn insert(&mut self, claim: OrderingClaim, state: RequestState<T>) -> OrderTicket {
        let ticket = OrderTicket(self.next);
        self.next += 1;
        self.bytes += claim.bytes;
        let record = RequestRecord { claim, state };
        self.requests.insert(ticket, record);
        ticket
    }

    /// Dequeues the next request that may run now.
    pub fn poll_ready(&mut self) -> Option<(OrderTicket, T)> {
        let is_queued = |record: &RequestRecord<T>| matches!(record.state, RequestState::Queued(_));
        let mut requests = self.requests.iter();
        let (&ticket, next) = requests.find(|(_, record)| is_queued(record))?;
        let mut running = 0;
        for (_, earlier) in self.requests.range(..ticket) {
            if let RequestState::Running = earlier.state {
                running += 1;
                if running >= self.max_running || !overlaps(&earlier.claim, &next.claim) {
                    return None;
                }
            }
        }
        let record = self.requests.get_mut(&ticket)?;
        match std::mem::replace(&mut record.state, RequestState::Running) {
            RequestState::Queued(item) => Some((ticket, item)),
            RequestState::Running | RequestState::Unordered => None,
        }
    }

    /// Takes a request that only waits from now on out of the order.
    pub fn leave_order(&mut self, ticket: OrderTicket) {
        if let Some(record) = self.requests.get_mut(&ticket) {
            record.state = RequestState::Unordered;
        }
    }

    /// Changes the bytes that a request occupies.
    pub fn set_bytes(&mut self, ticket: OrderTicket, bytes: usize) {
        if let Some(record) = self.requests.get_mut(&ticket) {
            self.bytes = self.bytes - record.claim.bytes + bytes;
            record.claim.bytes = bytes;
        }
    }

    /// Removes a request that has completed.
    pub fn finish(&mut self, ticket: OrderTicket) {
        if let Some(record) = self.requests.remove(&ticket) {
            self.bytes -= record.claim.bytes;
        }
    }

    /// Returns the requests that are queued, in order.
    pub fn queued_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let records = self.requests.values_mut();
        records.filter_map(|record| match &mut record.state {
            RequestState::Queued(item) => Some(item),
            RequestState::Running | RequestState::Unordered => None,
        })
    }

    /// Returns whether a queued or running request changes the meaning of a file handle id.
    pub fn will_change(&self, handle: &HandleId) -> bool {
        self.requests.values().any(|record| {
            record.claim.changes_handle.as_ref() == Some(handle)
                && !matches!(record.state, RequestState::Unordered)
        })
    }

    /// Returns the bytes that all requests occupy.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether a request is queued, or runs and is not merely waiting.
    pub fn has_unfinished(&self) -> bool {
        let is_ordered =
            |record: &RequestRecord<T>| !matches!(record.state, RequestState::Unordered);
        self.requests.values().any(is_ordered)
    }

    /// Returns whether no request is recorded.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
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

    fn ready(order: &mut RequestOrder<()>) -> Vec<OrderTicket> {
        std::iter::from_fn(|| order.poll_ready())
            .map(|(ticket, ())| ticket)
            .collect()
    }

    #[test]
    fn reads_run_concurrently_and_a_change_runs_alone() {
        let mut order = RequestOrder::new(64);
        let [a, b] = [
            order.submit(OrderingClass::Reads, ()),
            order.submit(OrderingClass::Reads, ()),
        ];
        let change = order.submit(OrderingClass::Changes, ());
        let last = order.submit(OrderingClass::Reads, ());
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
            order.submit(OrderingClass::Files, ()),
            order.submit(OrderingClass::Files, ()),
        ];
        let read = order.submit(OrderingClass::Reads, ());
        let c = order.submit(OrderingClass::Files, ());
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
            starts: Some(ProcessId::new(id).unwrap()),
            ..OrderingClass::Starts.into()
        }
    }

    #[test]
    fn starts_of_the_same_process_id_run_serially() {
        let mut order = RequestOrder::new(64);
        let [a, again, b] = ["a", "a", "b"].map(|id| order.submit(start(id), ()));
        assert_eq!(ready(&mut order), [a]);
        order.finish(a);
        assert_eq!(ready(&mut order), [again, b]);
    }

    #[test]
    fn starts_run_concurrently_but_not_with_reads() {
        let mut order = RequestOrder::new(64);
        let [a, b] = [order.submit(start("a"), ()), order.submit(start("b"), ())];
        let read = order.submit(OrderingClass::Reads, ());
        let later = order.submit(start("a"), ());
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
            order.submit(OrderingClass::Reads, ()),
            order.submit(OrderingClass::Reads, ()),
        ];
        assert_eq!(ready(&mut order), [a]);
        order.finish(a);
        assert_eq!(ready(&mut order), [b]);
    }

    #[test]
    fn no_request_waits_for_one_outside_the_order() {
        let mut order = RequestOrder::new(1);
        let control = order.submit_unordered();
        let read = order.submit(OrderingClass::Reads, ());
        let change = order.submit(OrderingClass::Changes, ());
        assert_eq!(ready(&mut order), [read]);
        order.leave_order(read);
        assert_eq!(ready(&mut order), [change]);
        assert_eq!(order.len(), 3);
        for ticket in [control, read, change] {
            order.finish(ticket);
        }
        assert!(order.is_empty());
    }

    #[test]
    fn bytes_are_those_of_all_requests() {
        let mut order = RequestOrder::new(64);
        let claim = |bytes| OrderingClaim {
            bytes,
            ..OrderingClass::Reads.into()
        };
        let [a, b] = [1, 10].map(|bytes| order.submit(claim(bytes), ()));
        assert_eq!(order.bytes(), 11);
        order.set_bytes(a, 100);
        assert_eq!(order.bytes(), 110);
        order.finish(a);
        order.finish(a);
        assert_eq!(order.bytes(), 10);
        order.finish(b);
        assert_eq!(order.bytes(), 0);
    }

    #[test]
    fn handle_changes_until_its_request_finishes() {
        let mut order = RequestOrder::new(64);
        let (handle, other) = (HandleId::new("a"), HandleId::new("b"));
        let open = OrderingClaim {
            changes_handle: Some(handle.clone()),
            ..OrderingClass::Changes.into()
        };
        let open = order.submit(open, ());
        assert!(order.will_change(&handle) && !order.will_change(&other));
        assert_eq!(ready(&mut order), [open]);
        assert!(order.will_change(&handle));
        order.finish(open);
        assert!(!order.will_change(&handle));
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
                order.submit(OrderingClaim { starts, ..(*kind).into() }, ());
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
            prop_assert!(order.is_empty());
        }
    }
}
