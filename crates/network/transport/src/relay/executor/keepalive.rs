//! Keepalive of an executor's relay connection while streams depend on it.
//! Pure: the caller provides the time.

use std::time::{Duration, Instant};

/// Silence after which the relay is pinged. A harness sends a heartbeat every ten seconds, so this
/// much silence is unusual.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the relay may take to answer. Both timeouts together stay below the thirty seconds
/// after which a stream gives up its harness, so that a silently dead path is replaced in time.
const PONG_TIMEOUT: Duration = Duration::from_secs(5);

/// Keepalive state of one connection.
#[derive(Debug)]
pub(super) struct Keepalive {
    last_received_at: Instant,
    /// Total bytes received at that time.
    bytes_received: u64,
    /// When the relay was pinged. Cleared by any received byte.
    pinged_at: Option<Instant>,
}

/// What the driver must do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum KeepaliveAction {
    /// Nothing.
    Idle,
    /// Send a ping.
    Ping,
    /// Drop the connection.
    Disconnect,
}

impl Keepalive {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last_received_at: now,
            bytes_received: 0,
            pinged_at: None,
        }
    }

    /// Updates the number of received bytes. Any change proves that the peer is alive.
    pub(super) fn handle_received(&mut self, bytes_received: u64, now: Instant) {
        if bytes_received != self.bytes_received {
            *self = Self {
                bytes_received,
                ..Self::new(now)
            };
        }
    }

    /// Handles a passed deadline. The pong timeout starts when the ping is requested, so a process
    /// that was suspended pings first instead of disconnecting.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> KeepaliveAction {
        if now < self.poll_timeout() {
            return KeepaliveAction::Idle;
        }
        match self.pinged_at {
            Some(_) => KeepaliveAction::Disconnect,
            None => {
                self.pinged_at = Some(now);
                KeepaliveAction::Ping
            }
        }
    }

    /// Returns the next deadline for [`Self::handle_timeout`].
    pub(super) fn poll_timeout(&self) -> Instant {
        match self.pinged_at {
            Some(pinged_at) => pinged_at + PONG_TIMEOUT,
            None => self.last_received_at + IDLE_TIMEOUT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_triggers_one_ping_then_disconnect() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(keepalive.handle_timeout(after(14)), KeepaliveAction::Idle);
        assert_eq!(keepalive.handle_timeout(after(15)), KeepaliveAction::Ping);
        assert_eq!(keepalive.handle_timeout(after(19)), KeepaliveAction::Idle);
        assert_eq!(
            keepalive.handle_timeout(after(20)),
            KeepaliveAction::Disconnect
        );
    }

    #[test]
    fn any_new_byte_resets_the_keepalive() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        keepalive.handle_received(7, after(10));
        assert_eq!(keepalive.poll_timeout(), after(25));
        assert_eq!(keepalive.handle_timeout(after(25)), KeepaliveAction::Ping);
        keepalive.handle_received(7, after(27));
        assert_eq!(keepalive.poll_timeout(), after(30));
        keepalive.handle_received(8, after(28));
        assert_eq!(keepalive.poll_timeout(), after(43));
        assert_eq!(keepalive.handle_timeout(after(30)), KeepaliveAction::Idle);
    }

    #[test]
    fn late_check_pings_before_disconnecting() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(keepalive.handle_timeout(after(100)), KeepaliveAction::Ping);
        assert_eq!(keepalive.poll_timeout(), after(105));
    }
}
