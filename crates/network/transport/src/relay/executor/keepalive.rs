//! Whether the relay is still there, while streams depend on it.
//! Pure: the caller owns the clock.

use std::time::{Duration, Instant};

/// How long nothing at all may come before the relay is asked for a sign of life. A harness sends a
/// heartbeat every ten seconds, so this much silence is unusual.
const QUIET: Duration = Duration::from_secs(15);
/// How long the relay may take to give it. Together they are less than the thirty seconds after which
/// a stream takes its harness for gone: a path that died without a word is replaced before.
const ANSWER: Duration = Duration::from_secs(5);

/// When a connection was last heard.
#[derive(Debug)]
pub(super) struct Vigil {
    heard: Instant,
    /// Bytes that had come by then.
    received: u64,
    /// When the relay was asked, unless something has come since.
    asked: Option<Instant>,
}

/// What to do about a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outlook {
    /// Nothing.
    Fine,
    /// Ask the relay for a sign of life.
    Ask,
    /// Give it up.
    Dead,
}

impl Vigil {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            heard: now,
            received: 0,
            asked: None,
        }
    }

    /// Takes in how many bytes have come: any that are new are a sign of life.
    pub(super) fn handle_received(&mut self, received: u64, now: Instant) {
        if received != self.received {
            *self = Self {
                received,
                ..Self::new(now)
            };
        }
    }

    /// Lets time pass. The answer is awaited from when it is asked for: a process that was stopped
    /// for a while asks, too, before it gives up.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Outlook {
        if now < self.poll_timeout() {
            return Outlook::Fine;
        }
        match self.asked {
            Some(_) => Outlook::Dead,
            None => {
                self.asked = Some(now);
                Outlook::Ask
            }
        }
    }

    /// Returns when [`Self::handle_timeout`] has something to do.
    pub(super) fn poll_timeout(&self) -> Instant {
        match self.asked {
            Some(asked) => asked + ANSWER,
            None => self.heard + QUIET,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_asked_about_once_and_then_is_the_end() {
        let start = Instant::now();
        let mut vigil = Vigil::new(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(vigil.handle_timeout(after(14)), Outlook::Fine);
        assert_eq!(vigil.handle_timeout(after(15)), Outlook::Ask);
        assert_eq!(vigil.handle_timeout(after(19)), Outlook::Fine);
        assert_eq!(vigil.handle_timeout(after(20)), Outlook::Dead);
    }

    #[test]
    fn any_byte_is_an_answer_and_a_number_of_before_is_none() {
        let start = Instant::now();
        let mut vigil = Vigil::new(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        vigil.handle_received(7, after(10));
        assert_eq!(vigil.poll_timeout(), after(25));
        assert_eq!(vigil.handle_timeout(after(25)), Outlook::Ask);
        vigil.handle_received(7, after(27));
        assert_eq!(vigil.poll_timeout(), after(30));
        vigil.handle_received(8, after(28));
        assert_eq!(vigil.poll_timeout(), after(43));
        assert_eq!(vigil.handle_timeout(after(30)), Outlook::Fine);
    }

    #[test]
    fn whoever_looks_late_asks_before_it_gives_up() {
        let start = Instant::now();
        let mut vigil = Vigil::new(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(vigil.handle_timeout(after(100)), Outlook::Ask);
        assert_eq!(vigil.poll_timeout(), after(105));
    }
}
