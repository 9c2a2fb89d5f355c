//! Target connectors for interactive use: they may ask for passwords, and show push progress.

use std::{
    fs::File,
    io::{IsTerminal, stderr},
    os::fd::AsFd,
    sync::{Arc, Mutex},
};

use exec_connect::{
    PromptMode,
    connector::{PlaceObserver, PlaceProgress, TargetConnector},
};
use exec_settings::environments::TargetEndpoint;
use rustix::{
    process::{Pid, Signal, getpgrp, kill_process_group},
    termios::tcgetpgrp,
};

use crate::command::process_session::print_notice;

/// Whether programs that connect may ask the user on the terminal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum TerminalPrompts {
    /// If a user can see the prompt and answer it.
    Allowed,
    /// Never: the client that has started this program may use the terminal, or others prompt at
    /// the same time.
    Forbidden,
}

impl TerminalPrompts {
    /// Returns how a program can ask the user: on the terminal of this process, or with the program
    /// in `SSH_ASKPASS`.
    fn mode(self) -> PromptMode {
        let is_on_terminal = || stderr().is_terminal() && foreground_terminal().is_some();
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if self == Self::Allowed && is_on_terminal() {
            PromptMode::Terminal
        } else if variable("SSH_ASKPASS").is_some()
            && variable("SSH_ASKPASS_REQUIRE").is_none_or(|when| when != "never")
        {
            PromptMode::Askpass
        } else {
            PromptMode::Never
        }
    }
}

/// Creates a connector.
pub(super) fn connector(
    name: &str,
    target: &TargetEndpoint,
    prompts: TerminalPrompts,
) -> TargetConnector {
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
        prompt: prompts.mode(),
        progress: Some(PlaceObserver(Arc::new(observe))),
        ..target.connector(lookup)
    }
}

/// Returns the terminal of this process if the process is in its foreground.
fn foreground_terminal() -> Option<File> {
    let terminal = File::open("/dev/tty").ok()?;
    (tcgetpgrp(&terminal).ok()? == getpgrp()).then_some(terminal)
}

/// The terminal, while another process group may read from it. Ctrl-C reaches that group then.
/// Dropping it takes the terminal back.
#[derive(Debug)]
struct LentTerminal(File);

impl LentTerminal {
    /// Lends the terminal, if this process is in the foreground.
    fn lend(group: Pid) -> Option<Self> {
        let terminal = foreground_terminal()?;
        exec_spawn::set_foreground_group(terminal.as_fd(), group).ok()?;
        // It was stopped if it has read from the terminal before.
        let _gone = kill_process_group(group, Signal::CONT);
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
