//! Answers that wait a moment for the event they cause, so that both travel in one write.
//!
//! A keystroke's echo follows its acknowledgement by some ten microseconds; sent apart, they cost
//! the client two wake-ups and delay the child that is about to echo. Where no event follows in
//! time, the next answers do not wait.

use std::{task::Context, time::Duration};

use exec_transport::alarm::Alarm;
use exec_wire::outgoing::Outgoing;

/// How long an answer waits.
const MOMENT: Duration = Duration::from_micros(60);
/// How many answers do not wait after one that waited in vain.
const DISAPPOINTED: u32 = 32;

/// Answers that wait. At most as many as the outbox has room for.
#[derive(Debug, Default)]
pub(super) struct Patience {
    alarm: Option<Alarm>,
    set: bool,
    waiting: Vec<Outgoing>,
    hurried: u32,
}

impl Patience {
    /// Takes an answer; gives it back if it is not to wait.
    pub(super) fn hold(&mut self, message: Outgoing) -> Option<Outgoing> {
        if self.hurried > 0 {
            self.hurried -= 1;
            return Some(message);
        }
        if self.alarm.is_none() {
            // Without an alarm nothing may wait.
            self.alarm = Alarm::new().ok();
        }
        if self.alarm.is_none() {
            return Some(message);
        }
        self.waiting.push(message);
        None
    }

    /// Takes the answers that wait: there is company.
    pub(super) fn take(&mut self) -> Vec<Outgoing> {
        self.set = false;
        std::mem::take(&mut self.waiting)
    }

    /// Takes the answers that have waited in vain.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Vec<Outgoing> {
        if self.waiting.is_empty() || !self.is_over(cx) {
            return Vec::new();
        }
        self.hurried = DISAPPOINTED;
        self.take()
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(alarm) = &self.alarm else {
            return true;
        };
        if !self.set {
            self.set = true;
            if alarm.set(MOMENT).is_err() {
                return true;
            }
        }
        alarm.poll_rung(cx).is_ready()
    }
}
