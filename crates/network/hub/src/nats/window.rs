//! Credit-based flow control of one direction of a circuit: credit returns when the websocket
//! behind the far end has taken the bytes. So neither the broker nor the other node ever buffers
//! more than a window per circuit, and a slow websocket applies backpressure only to its own peer.

/// Credit of the sending end.
#[derive(Debug)]
pub(super) struct SendCredit {
    /// Negative after a packet larger than the remaining credit: the last packet may overdraw.
    available: i64,
}

impl SendCredit {
    /// Starts with the window granted by the receiving end.
    pub(super) fn new(window: u32) -> Self {
        Self {
            available: i64::from(window),
        }
    }

    /// Returns whether a packet may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.available > 0
    }

    /// Spends credit for a sent packet.
    pub(super) fn spend(&mut self, cost: u32) {
        self.available -= i64::from(cost);
    }

    /// Adds granted credit.
    pub(super) fn grant(&mut self, cost: u32) {
        self.available = self.available.saturating_add(i64::from(cost));
    }
}

/// Window of the receiving end: bytes buffered, and credit not yet granted back.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    window: u32,
    held: u64,
    owed: u32,
}

impl ReceiveWindow {
    /// Starts with the window granted by this end.
    pub(super) fn new(window: u32) -> Self {
        Self {
            window,
            held: 0,
            owed: 0,
        }
    }

    /// Records a received packet.
    ///
    /// # Errors
    /// Returns [`CreditOverrun`] if the peer exceeded its credit, which bounds the buffer.
    pub(super) fn receive(&mut self, cost: u32) -> Result<(), CreditOverrun> {
        // Credit that is due but not granted yet is not available to the peer.
        if self.held + u64::from(self.owed) >= u64::from(self.window) {
            return Err(CreditOverrun);
        }
        self.held += u64::from(cost);
        Ok(())
    }

    /// Records that the websocket took a frame. Returns credit to grant, once it is worth a packet.
    pub(super) fn release(&mut self, cost: u32) -> Option<u32> {
        self.held = self.held.saturating_sub(u64::from(cost));
        self.owed = self.owed.saturating_add(cost);
        (self.owed >= self.window / GRANTS_PER_WINDOW).then(|| std::mem::take(&mut self.owed))
    }
}

/// Peer: it exceeded its credit.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("other node exceeded its credit")]
pub(super) struct CreditOverrun;

/// Credit is granted in eighths of the window: few packets, while the sender keeps most of its
/// window.
const GRANTS_PER_WINDOW: u32 = 8;

/// Largest window of a circuit.
pub(super) const MAX_WINDOW: u32 = 1024 * 1024;

/// Smallest window of a circuit, on a busy node.
pub(super) const MIN_WINDOW: u32 = 64 * 1024;

/// Target for the sum of all windows of a node: the broker drops a client that is 64 MiB behind.
const WINDOW_TOTAL: u64 = 48 * 1024 * 1024;

/// Returns the window of a new circuit: an eighth of the remaining budget, so that the first
/// circuits are fast and the thousandth still gets one.
pub(super) fn next_window(granted: u64) -> u32 {
    let share = WINDOW_TOTAL.saturating_sub(granted) / 8;
    u32::try_from(share)
        .unwrap_or(u32::MAX)
        .clamp(MIN_WINDOW, MAX_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_stops_without_credit_and_resumes_with_it() {
        let mut credit = SendCredit::new(100);
        credit.spend(60);
        assert!(credit.is_open());
        credit.spend(60);
        assert!(!credit.is_open());
        credit.grant(20);
        assert!(!credit.is_open(), "the overdraft is settled first");
        credit.grant(1);
        assert!(credit.is_open());
    }

    #[test]
    fn credit_is_granted_in_eighths() {
        let mut receive_window = ReceiveWindow::new(800);
        receive_window.receive(150).expect("has credit");
        assert_eq!(receive_window.release(60), None);
        assert_eq!(receive_window.release(60), Some(120));
        assert_eq!(receive_window.release(30), None);
    }

    #[test]
    fn sending_without_credit_is_an_overrun() {
        let mut receive_window = ReceiveWindow::new(800);
        receive_window.receive(799).expect("has credit");
        receive_window
            .receive(500)
            .expect("the last packet may overdraw");
        assert_eq!(receive_window.receive(1), Err(CreditOverrun));
    }

    #[test]
    fn both_ends_agree_on_the_credit() {
        let mut credit = SendCredit::new(8_000);
        let mut receive_window = ReceiveWindow::new(8_000);
        let mut held = std::collections::VecDeque::new();
        let mut sent = 0_u64;
        for round in 0..10_000_u32 {
            let cost = 1 + round * 7 % 3_000;
            if credit.is_open() {
                credit.spend(cost);
                receive_window
                    .receive(cost)
                    .expect("the sender kept to its credit");
                held.push_back(cost);
                sent += u64::from(cost);
            }
            if round % 3 != 0
                && let Some(cost) = held.pop_front()
                && let Some(grant) = receive_window.release(cost)
            {
                credit.grant(grant);
            }
        }
        assert!(sent > 1_000_000, "only {sent} bytes moved");
    }

    #[test]
    fn windows_shrink_as_circuits_are_added() {
        assert_eq!(next_window(0), MAX_WINDOW);
        assert!(next_window(WINDOW_TOTAL - 8 * 200_000) == 200_000);
        assert_eq!(next_window(u64::MAX), MIN_WINDOW);
    }
}
