//! Target connectors for interactive use: they may ask for passwords, and show push progress.

use std::{
    fs::File,
    io::{IsTerminal, stderr},
    os::fd::AsFd,
    sync::{Arc, Mutex},
};

use exec_connect::connector::{PlaceObserver, PlaceProgress, TargetConnector};
use exec_settings::environments::TargetEndpoint;
use rustix::{
    process::{Pid, getpgrp},
    termios::tcgetpgrp,
};

use crate::command::process_session::print_notice;

/// Creates a connector.
pub(super) fn connector(name: &str, target: &TargetEndpoint) -> TargetConnector {
    let lookup = &|name: &str| std::env::var_os(name);
    let (name, lent) = (name.to_owned(), Mutex::new(None));
    let is_shown = stderr().is_terminal();
    let observe = move |progress| {
        let mut lent = lent.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match progress {
            PlaceProgress::PromptBegins(group) => *lent = LentTerminal::lend(group),
            PlaceProgress::PromptEnds => *lent = None,
            PlaceProgress::Pushing { bytes, .. } if is_shown => {
                let tenths = bytes.div_ceil(100_000);
                let (whole, tenth) = (tenths / 10, tenths % 10);
                print_notice(&format!("copying {whole}.{tenth} MB to {name}, once"));
            }
            PlaceProgress::Pushing { .. } | PlaceProgress::Running { .. } => {}
        }
    };
    TargetConnector {
        may_prompt: may_prompt(),
        progress: Some(PlaceObserver(Arc::new(observe))),
        ..target.connector(lookup)
    }
}

/// Returns whether a program can ask the user: on the terminal of this process, or with the
/// program in `SSH_ASKPASS`.
fn may_prompt() -> bool {
    std::env::var_os("SSH_ASKPASS").is_some_and(|program| !program.is_empty())
        || File::open("/dev/tty").is_ok()
}

/// The terminal, while another process group may read from it. Ctrl-C reaches that group then.
/// Dropping it takes the terminal back.
#[derive(Debug)]
struct LentTerminal(File);

impl LentTerminal {
    /// Lends the terminal, if this process is in the foreground.
    fn lend(group: Pid) -> Option<Self> {
        let terminal = File::open("/dev/tty").ok()?;
        if tcgetpgrp(&terminal).ok()? != getpgrp() {
            return None;
        }
        exec_spawn::set_foreground_group(terminal.as_fd(), group).ok()?;
        Some(Self(terminal))
    }
}

impl Drop for LentTerminal {
    fn drop(&mut self) {
        if let Err(error) = exec_spawn::set_foreground_group(self.0.as_fd(), getpgrp()) {
            tracing::warn!(%error, "failed to take the terminal back");
        }
    }
}
