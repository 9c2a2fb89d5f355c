//! Flow control of one direction of a circuit: bytes are sent on credit, and credit comes back when
//! the socket behind the far end took them. So neither the broker nor the other node ever holds
//! more than a window of a circuit, and a slow socket slows down only its own peer.

/// What the sending end may still send.
#[derive(Debug)]
pub(super) struct Credit {
    /// Below zero after a packet that was larger than the rest: the last packet may overdraw.
    available: i64,
}

impl Credit {
    /// Starts with the window that the receiving end granted.
    pub(super) fn new(window: u32) -> Self {
        Self {
            available: i64::from(window),
        }
    }

    /// Whether a packet may be sent now.
    pub(super) fn is_open(&self) -> bool {
        self.available > 0
    }

    /// A packet of this cost was sent.
    pub(super) fn spend(&mut self, cost: u32) {
        self.available -= i64::from(cost);
    }

    /// The receiving end took this much.
    pub(super) fn grant(&mut self, cost: u32) {
        self.available = self.available.saturating_add(i64::from(cost));
    }
}

/// What the receiving end holds, and what it owes back.
#[derive(Debug)]
pub(super) struct Debt {
    window: u32,
    held: u64,
    owed: u32,
}

impl Debt {
    /// Starts with the window that this end granted.
    pub(super) fn new(window: u32) -> Self {
        Self {
            window,
            held: 0,
            owed: 0,
        }
    }

    /// A packet of this cost arrived.
    ///
    /// # Errors
    /// [`Overrun`] when the peer had no credit for it: what an end holds stays bounded.
    pub(super) fn arrived(&mut self, cost: u32) -> Result<(), Overrun> {
        // What is owed but not granted yet is not the peer's to spend either.
        if self.held + u64::from(self.owed) >= u64::from(self.window) {
            return Err(Overrun);
        }
        self.held += u64::from(cost);
        Ok(())
    }

    /// The socket took a frame of this cost. Returns the credit to give back, when it is enough
    /// to be worth a packet.
    pub(super) fn took(&mut self, cost: u32) -> Option<u32> {
        self.held = self.held.saturating_sub(u64::from(cost));
        self.owed = self.owed.saturating_add(cost);
        (self.owed >= self.window / GRANTS_PER_WINDOW).then(|| std::mem::take(&mut self.owed))
    }
}

/// Peer: it sent more than it had credit for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the other node sent more than its credit")]
pub(super) struct Overrun;

/// Credit goes back in eighths: few packets, and the sender still has most of its window.
const GRANTS_PER_WINDOW: u32 = 8;

/// The window of a circuit while the node has few.
pub(super) const WINDOW_MOST: u32 = 1024 * 1024;

/// The window of a circuit on a crowded node.
pub(super) const WINDOW_LEAST: u32 = 64 * 1024;

/// What all windows of a node together aim at: the broker cuts off a client that is 64 MiB behind.
const WINDOW_TOTAL: u64 = 48 * 1024 * 1024;

/// The window for one more circuit on a node that granted `granted` so far: an eighth of what is
/// left, so that the first ones are fast and the thousandth still gets one.
pub(super) fn next_window(granted: u64) -> u32 {
    let share = WINDOW_TOTAL.saturating_sub(granted) / 8;
    u32::try_from(share)
        .unwrap_or(u32::MAX)
        .clamp(WINDOW_LEAST, WINDOW_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_stops_without_credit_and_goes_on_with_it() {
        let mut credit = Credit::new(100);
        credit.spend(60);
        assert!(credit.is_open());
        credit.spend(60);
        assert!(!credit.is_open());
        credit.grant(20);
        assert!(!credit.is_open(), "the overdraft is paid first");
        credit.grant(1);
        assert!(credit.is_open());
    }

    #[test]
    fn credit_comes_back_in_eighths() {
        let mut debt = Debt::new(800);
        debt.arrived(150).expect("has credit");
        assert_eq!(debt.took(60), None);
        assert_eq!(debt.took(60), Some(120));
        assert_eq!(debt.took(30), None);
    }

    #[test]
    fn a_peer_without_credit_is_an_overrun() {
        let mut debt = Debt::new(800);
        debt.arrived(799).expect("has credit");
        debt.arrived(500).expect("the last packet may overdraw");
        assert_eq!(debt.arrived(1), Err(Overrun));
    }

    #[test]
    fn both_ends_agree_on_what_may_be_sent() {
        let mut credit = Credit::new(8_000);
        let mut debt = Debt::new(8_000);
        let mut held = std::collections::VecDeque::new();
        let mut sent = 0_u64;
        for round in 0..10_000_u32 {
            let cost = 1 + round * 7 % 3_000;
            if credit.is_open() {
                credit.spend(cost);
                debt.arrived(cost).expect("the sender kept to its credit");
                held.push_back(cost);
                sent += u64::from(cost);
            }
            if round % 3 != 0
                && let Some(cost) = held.pop_front()
                && let Some(grant) = debt.took(cost)
            {
                credit.grant(grant);
            }
        }
        assert!(sent > 1_000_000, "only {sent} bytes moved");
    }

    #[test]
    fn windows_shrink_as_the_node_fills() {
        assert_eq!(next_window(0), WINDOW_MOST);
        assert!(next_window(WINDOW_TOTAL - 8 * 200_000) == 200_000);
        assert_eq!(next_window(u64::MAX), WINDOW_LEAST);
    }
}
