//! Session lease: how long a session outlives its connection. The caller owns the clock.

use std::time::{Duration, Instant};

/// Attachment state of a session, and the deadline while it is detached.
#[derive(Debug)]
pub struct Lease {
    grace: Duration,
    detached_at: Option<Instant>,
}

impl Lease {
    /// Creates an attached lease.
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            detached_at: None,
        }
    }

    /// Starts the grace period after the connection closed.
    pub fn handle_disconnect(&mut self, now: Instant) {
        self.detached_at.get_or_insert(now);
    }

    /// Attaches again. Fails if another connection holds the lease or the grace period is over.
    pub fn handle_resume(&mut self, now: Instant) -> Result<(), ResumeError> {
        match self.poll_timeout() {
            None => Err(ResumeError::Attached),
            Some(deadline) if deadline <= now => Err(ResumeError::Expired),
            Some(_) => {
                self.detached_at = None;
                Ok(())
            }
        }
    }

    /// Returns when the session expires unless a client resumes it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.detached_at.map(|since| since + self.grace)
    }

    /// Returns whether a connection holds the lease.
    pub fn is_attached(&self) -> bool {
        self.detached_at.is_none()
    }
}

/// Why a session cannot be resumed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// Caller: another connection holds the session, and attached sessions are not taken over.
    #[error("session is already attached to another connection")]
    Attached,
    /// Caller: the grace period is over.
    #[error("session has ended")]
    Expired,
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "fixed origin of the tests' clock"
    )]
    fn epoch() -> Instant {
        static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
        *EPOCH
    }

    const GRACE: Duration = Duration::from_secs(30);

    #[test]
    fn second_disconnect_does_not_extend_the_lease() {
        let t0 = epoch();
        let mut lease = Lease::new(GRACE);
        lease.handle_disconnect(t0);
        lease.handle_disconnect(t0 + GRACE / 2);
        assert_eq!(lease.poll_timeout(), Some(t0 + GRACE));
    }

    #[test]
    fn attached_session_cannot_be_resumed() {
        let mut lease = Lease::new(GRACE);
        assert_eq!(lease.handle_resume(epoch()), Err(ResumeError::Attached));
        assert_eq!(lease.poll_timeout(), None);
    }

    #[test]
    fn each_disconnect_starts_a_new_grace_period() {
        let t0 = epoch();
        let mut lease = Lease::new(GRACE);
        lease.handle_disconnect(t0);
        assert_eq!(lease.handle_resume(t0 + GRACE / 2), Ok(()));
        assert!(lease.is_attached());
        lease.handle_disconnect(t0 + GRACE);
        assert_eq!(lease.poll_timeout(), Some(t0 + GRACE * 2));
    }

    #[test]
    fn lease_expires_at_its_deadline() {
        let t0 = epoch();
        let mut lease = Lease::new(GRACE);
        lease.handle_disconnect(t0);
        assert_eq!(lease.handle_resume(t0 + GRACE), Err(ResumeError::Expired));
    }

    #[test]
    fn zero_grace_period_expires_immediately() {
        let t0 = epoch();
        let mut lease = Lease::new(Duration::ZERO);
        lease.handle_disconnect(t0);
        assert_eq!(lease.poll_timeout(), Some(t0));
        assert_eq!(lease.handle_resume(t0), Err(ResumeError::Expired));
    }
}
