//! Whether the relay is still there, while streams depend on it.
//! Pure: the caller owns the clock.

use std::time::{Duration, Instant};

/// How long nothing at all may come before the relay is asked for a sign of life. A harness sends a
/// heartbeat every ten seconds, so this much silence is unusual.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the relay may take to give it. Together they are less than the thirty seconds after which
/// a stream takes its harness for gone: a path that died without a word is replaced before.
const PONG_TIMEOUT: Duration = Duration::from_secs(5);

/// When a connection was last heard.
#[derive(Debug)]
pub(super) struct Keepalive {
    last_received_at: Instant,
    /// Bytes that had come by then.
    bytes_received: u64,
    /// When the relay was asked, unless something has come since.
    pinged_at: Option<Instant>,
}

/// What to do about a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum KeepaliveAction {
    /// Nothing.
    Idle,
    /// Ask the relay for a sign of life.
    Ping,
    /// Give it up.
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

    /// Takes in how many bytes have come: any that are new are a sign of life.
    pub(super) fn handle_received(&mut self, bytes_received: u64, now: Instant) {
        if bytes_received != self.bytes_received {
            *self = Self {
                bytes_received,
                ..Self::new(now)
            };
        }
    }

    /// Lets time pass. The answer is awaited from when it is asked for: a process that was stopped
    /// for a while asks, too, before it gives up.
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

    /// Returns when [`Self::handle_timeout`] has something to do.
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
