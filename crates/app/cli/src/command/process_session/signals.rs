//! Signals to this program: which ones are forwarded, and when repeated ones end it.

use std::{collections::VecDeque, io, process::ExitCode, time::Duration};

use exec_wire::process::ProcessSignal;
use futures_util::future::FutureExt;
use rustix::process::{Signal, getpid, kill_process};
use tokio::{
    signal::unix::{self, SignalKind, signal},
    time::Instant,
};

use crate::command::process_session::exit_byte;

/// Listens for signals to this program.
#[derive(Debug)]
pub(crate) struct SignalListener {
    forwarded: Vec<(ForwardedSignal, unix::Signal)>,
    window: unix::Signal,
    stop: unix::Signal,
}

/// Signal to this program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SignalEvent {
    /// Signal for the process.
    Forwarded(ForwardedSignal),
    /// The window size changed.
    Window,
    /// Ctrl-Z or SIGTSTP.
    Stop,
}

/// Signal to forward.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ForwardedSignal {
    /// Signal for the process.
    pub(super) signal: ProcessSignal,
    /// Local signal number.
    pub(super) number: i32,
}

impl ForwardedSignal {
    /// Returns the status of a program that the signal ended.
    fn status(self) -> ExitCode {
        ExitCode::from(exit_byte(128 + self.number))
    }

    /// Returns whether the signal asks to exit.
    pub(super) fn ends(self) -> bool {
        match self.signal {
            ProcessSignal::User1 | ProcessSignal::User2 => false,
            ProcessSignal::Interrupt
            | ProcessSignal::Terminate
            | ProcessSignal::Hangup
            | ProcessSignal::Quit
            | ProcessSignal::Kill
            | ProcessSignal::Stop
            | ProcessSignal::Continue => true,
        }
    }
}

/// Forwarded signals. Others have no name on the wire.
const FORWARDED_SIGNALS: [(Signal, ProcessSignal); 6] = [
    (Signal::INT, ProcessSignal::Interrupt),
    (Signal::TERM, ProcessSignal::Terminate),
    (Signal::HUP, ProcessSignal::Hangup),
    (Signal::QUIT, ProcessSignal::Quit),
    (Signal::USR1, ProcessSignal::User1),
    (Signal::USR2, ProcessSignal::User2),
];

impl SignalListener {
    /// Registers the handlers.
    pub(crate) fn listen() -> io::Result<Self> {
        let listen = |one: Signal| signal(SignalKind::from_raw(one.as_raw()));
        let forwarded = FORWARDED_SIGNALS.into_iter().map(|(local, wire_signal)| {
            let forwarded = ForwardedSignal {
                signal: wire_signal,
                number: local.as_raw(),
            };
            Ok((forwarded, listen(local)?))
        });
        Ok(Self {
            forwarded: forwarded.collect::<io::Result<_>>()?,
            window: listen(Signal::WINCH)?,
            stop: listen(Signal::TSTP)?,
        })
    }

    /// Waits for a signal that asks to exit, and returns the status. Suspends on SIGTSTP, ignores
    /// others. Cancel-safe.
    pub(crate) async fn exit_requested(&mut self) -> ExitCode {
        loop {
            match self.next().await {
                SignalEvent::Forwarded(forwarded) if forwarded.ends() => return forwarded.status(),
                // Execution continues after SIGCONT.
                SignalEvent::Stop => drop(kill_process(getpid(), Signal::STOP)),
                SignalEvent::Forwarded(_) | SignalEvent::Window => {}
            }
        }
    }

    /// Returns the status if a signal asked to exit while a command ran, which received it as well.
    pub(crate) fn missed_exit_request(&mut self) -> Option<ExitCode> {
        loop {
            match self.next().now_or_never()? {
                SignalEvent::Forwarded(forwarded) if forwarded.ends() => {
                    return Some(forwarded.status());
                }
                SignalEvent::Forwarded(_) | SignalEvent::Window | SignalEvent::Stop => {}
            }
        }
    }

    /// Waits for the next signal. Cancel-safe.
    pub(super) async fn next(&mut self) -> SignalEvent {
        std::future::poll_fn(|context| {
            for (forwarded, signal) in &mut self.forwarded {
                if signal.poll_recv(context).is_ready() {
                    return SignalEvent::Forwarded(*forwarded).into();
                }
            }
            if self.window.poll_recv(context).is_ready() {
                return SignalEvent::Window.into();
            }
            match self.stop.poll_recv(context).is_ready() {
                true => SignalEvent::Stop.into(),
                false => std::task::Poll::Pending,
            }
        })
        .await
    }
}

/// Number of Ctrl-C presses that end this program.
const PRESSES: usize = 3;
/// Time window for those presses.
const INTERRUPT_WINDOW: Duration = Duration::from_secs(2);

/// Counts requests to exit. A process may ignore them; the user need not wait.
#[derive(Clone, Debug, Default)]
pub(super) struct StopRequests {
    pressed: VecDeque<Instant>,
    requested: Vec<ProcessSignal>,
}

impl StopRequests {
    /// Returns whether this signal ends us: the third Ctrl-C or Ctrl-\ within the window, or the
    /// second SIGTERM or SIGHUP.
    pub(super) fn is_exhausted(&mut self, signal: ProcessSignal, now: Instant) -> bool {
        match signal {
            ProcessSignal::Interrupt | ProcessSignal::Quit => {
                self.pressed.push_back(now);
                self.pressed.retain(|then| now - *then <= INTERRUPT_WINDOW);
                self.pressed.len() >= PRESSES
            }
            ProcessSignal::Terminate | ProcessSignal::Hangup => {
                let again = self.requested.contains(&signal);
                self.requested.push(signal);
                again
            }
            ProcessSignal::Kill
            | ProcessSignal::Stop
            | ProcessSignal::Continue
            | ProcessSignal::User1
            | ProcessSignal::User2 => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_quick_interrupts_end_us_and_slow_ones_do_not() {
        let (mut stop_requests, now) = (StopRequests::default(), Instant::now());
        let press = ProcessSignal::Interrupt;
        assert!(!stop_requests.is_exhausted(press, now));
        assert!(!stop_requests.is_exhausted(press, now + INTERRUPT_WINDOW / 2));
        assert!(stop_requests.is_exhausted(press, now + INTERRUPT_WINDOW));
        let mut stop_requests = StopRequests::default();
        for presses in 0..10 {
            assert!(
                !stop_requests.is_exhausted(press, now + presses * INTERRUPT_WINDOW),
                "{presses}"
            );
        }
    }

    #[test]
    fn second_sigterm_ends_us_and_user_signals_never_do() {
        let (mut stop_requests, now) = (StopRequests::default(), Instant::now());
        assert!(!stop_requests.is_exhausted(ProcessSignal::Terminate, now));
        assert!(!stop_requests.is_exhausted(ProcessSignal::Hangup, now));
        for _ in 0..5 {
            assert!(!stop_requests.is_exhausted(ProcessSignal::User1, now));
        }
        assert!(stop_requests.is_exhausted(ProcessSignal::Terminate, now + 100 * INTERRUPT_WINDOW));
    }
}
