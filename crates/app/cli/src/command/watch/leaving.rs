//! The signals that end a watch, or stop it for a while.
//!
//! A command that runs gets them, too, by its own listener; what was heard meanwhile is looked at when it
//! has ended.

use std::{process::ExitCode, task::Poll};

use futures_util::future::FutureExt;
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind, signal};

use crate::command::{
    failure::{Failure, FailureKind},
    stream::byte,
};

/// What ends it.
const ENDS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Listens for them.
#[derive(Debug)]
pub(super) struct Leaving {
    ends: Vec<(Signal, unix::Signal)>,
    stop: unix::Signal,
}

impl Leaving {
    /// Takes them from now on.
    pub(super) fn listen() -> Result<Self, Failure> {
        let listen = |one: Signal| {
            signal(SignalKind::from_raw(one.as_raw())).map_err(|error| {
                let what = format!("cannot listen for signals: {error}");
                Failure::new(FailureKind::Failed, what)
            })
        };
        let ends = ENDS.into_iter().map(|one| Ok((one, listen(one)?)));
        Ok(Self {
            ends: ends.collect::<Result<_, Failure>>()?,
            stop: listen(Signal::TSTP)?,
        })
    }

    /// Waits for one that ends, and returns the status. Stops meanwhile when it is asked to. Dropping the
    /// future loses none.
    pub(super) async fn asked(&mut self) -> ExitCode {
        loop {
            tokio::select! {
                status = end(&mut self.ends) => return status,
                // Nothing runs here until SIGCONT.
                _ = self.stop.recv() => drop(kill_process(getpid(), Signal::STOP)),
            }
        }
    }

    /// Returns the status if one that ends came while a command ran. The command has been stopped with us,
    /// if it was.
    pub(super) fn was_asked(&mut self) -> Option<ExitCode> {
        while self.stop.recv().now_or_never().is_some() {}
        end(&mut self.ends).now_or_never()
    }
}

async fn end(ends: &mut [(Signal, unix::Signal)]) -> ExitCode {
    std::future::poll_fn(|context| {
        for (one, heard) in &mut *ends {
            if heard.poll_recv(context).is_ready() {
                return Poll::Ready(ExitCode::from(byte(128 + one.as_raw())));
            }
        }
        Poll::Pending
    })
    .await
}
