//! Settings of unified exec: wait times, output limits and the number of commands.

use std::{num::NonZeroUsize, time::Duration};

use exec_env::environment::StdinMode;
use exec_wire::{
    limits,
    process::{EnvInherit, EnvPolicy, TerminalSize},
};

use super::{call::WaitFor, handle_scope::HandleScope};

/// Settings of unified exec. [`Default`] suits an agent.
#[derive(Clone, Debug)]
pub struct UnifiedExecSettings {
    /// Wait times.
    pub windows: WaitWindows,
    /// Default number of output tokens.
    pub output_tokens: usize,
    /// Maximum number of output tokens: the share of a model's context for one answer.
    pub max_output_tokens: usize,
    /// Maximum number of commands. One more evicts the least recently used one, ended commands
    /// first.
    pub max_processes: NonZeroUsize,
    /// Number of most recently used commands that are not evicted.
    pub protected_processes: usize,
    /// Retained bytes of output for each of three buffers: the next call as text, the next call as
    /// raw bytes, and the end event. Beyond it the middle is left out.
    pub retained_bytes: usize,
    /// Maximum size of an output event. Larger chunks are split.
    pub delta_bytes: usize,
    /// Maximum number of output events of one command. Later output is only in the end event.
    pub max_deltas: usize,
    /// Size of terminals.
    pub terminal: TerminalSize,
    /// Default stdin without a terminal. `Null` suits agents that never write: some programs read
    /// stdin whenever there is one.
    pub stdin: StdinMode,
    /// How the host's variables are inherited.
    pub env_policy: EnvPolicy,
    /// How long the output of an exited command may stay open silently; eight times as long if it
    /// is not silent. A background process may hold it, and is killed when the exit is shown.
    pub close_grace: Duration,
    /// Grace period before a command is terminated by force.
    pub terminate_grace: Duration,
    /// Handling of a command after its first call is dropped.
    pub abandoned: AbandonedCommand,
    /// Scope of the process ids. Commands of a durable store are found by it.
    pub scope: HandleScope,
}

/// Handling of a command after its first call is dropped and its number is not disclosed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum AbandonedCommand {
    /// Terminates it: its number is unknown.
    #[default]
    Terminate,
    /// Keeps it running, for harnesses that can list commands.
    KeepRunning,
}

impl Default for UnifiedExecSettings {
    fn default() -> Self {
        Self {
            windows: WaitWindows::default(),
            output_tokens: 10_000,
            max_output_tokens: 50_000,
            max_processes: const { NonZeroUsize::new(64).unwrap() },
            protected_processes: 8,
            retained_bytes: limits::RETAINED_OUTPUT_BYTES,
            delta_bytes: limits::OUTPUT_CHUNK_BYTES,
            max_deltas: 10_000,
            terminal: TerminalSize::default(),
            stdin: StdinMode::Piped,
            env_policy: EnvPolicy {
                inherit: EnvInherit::All,
                ignore_default_excludes: false,
                exclude: Vec::new(),
                set: Default::default(),
                include_only: Vec::new(),
            },
            close_grace: Duration::from_millis(250),
            terminate_grace: Duration::from_millis(500),
            abandoned: AbandonedCommand::default(),
            scope: HandleScope::default(),
        }
    }
}

/// Wait times of calls.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WaitWindows {
    /// Minimum wait. With less, an agent would waste its turns on polling.
    pub min: Duration,
    /// Default after a start: most commands have exited by then.
    pub start: Duration,
    /// Default after a write: the response to a keystroke has arrived by then.
    pub write: Duration,
    /// Default for a poll.
    pub look: Duration,
    /// Maximum wait for the exit after a start or a write. Keeps an agent responsive, and stays
    /// below the timeout of many tool clients.
    pub max: Duration,
    /// Maximum wait of a poll, and of a call with another condition. Their callers expect to wait,
    /// and would otherwise poll repeatedly.
    pub max_patient: Duration,
}

impl Default for WaitWindows {
    fn default() -> Self {
        Self {
            min: Duration::from_millis(250),
            start: Duration::from_secs(10),
            write: Duration::from_millis(250),
            look: Duration::from_secs(5),
            max: Duration::from_secs(30),
            max_patient: Duration::from_secs(300),
        }
    }
}

/// Action of a call before it waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WaitPhase {
    Start,
    Write,
    Poll,
}

impl WaitWindows {
    /// Returns the maximum wait of a call.
    pub(super) fn wait_window(
        &self,
        before: WaitPhase,
        requested: Option<Duration>,
        wait: &WaitFor,
    ) -> Duration {
        let default = match before {
            WaitPhase::Start => self.start,
            WaitPhase::Write => self.write,
            WaitPhase::Poll => self.look,
        };
        let max = match (before, wait) {
            (WaitPhase::Start | WaitPhase::Write, WaitFor::Exit) => self.max,
            (WaitPhase::Poll, _)
            | (_, WaitFor::Idle(_) | WaitFor::Pattern(_) | WaitFor::Bytes(_)) => self.max_patient,
        };
        requested.unwrap_or(default).max(self.min).min(max)
    }
}

impl UnifiedExecSettings {
    /// Returns the maximum number of output tokens of a call.
    pub(super) fn tokens(&self, requested: Option<usize>) -> usize {
        requested
            .unwrap_or(self.output_tokens)
            .min(self.max_output_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_windows_have_a_floor_a_default_and_a_cap() {
        let windows = WaitWindows::default();
        let millis = |before, requested: Option<u64>, wait| {
            let requested = requested.map(Duration::from_millis);
            windows.wait_window(before, requested, &wait).as_millis()
        };
        assert_eq!(millis(WaitPhase::Start, None, WaitFor::Exit), 10_000);
        assert_eq!(millis(WaitPhase::Write, None, WaitFor::Exit), 250);
        assert_eq!(millis(WaitPhase::Poll, None, WaitFor::Exit), 5_000);
        assert_eq!(millis(WaitPhase::Start, Some(1), WaitFor::Exit), 250);
        assert_eq!(
            millis(WaitPhase::Start, Some(99_000), WaitFor::Exit),
            30_000
        );
        assert_eq!(millis(WaitPhase::Poll, Some(99_000), WaitFor::Exit), 99_000);
        assert_eq!(
            millis(WaitPhase::Write, Some(999_000), WaitFor::Bytes(1)),
            300_000
        );
    }

    #[test]
    fn output_tokens_are_capped() {
        let settings = UnifiedExecSettings::default();
        assert_eq!(settings.tokens(None), 10_000);
        assert_eq!(settings.tokens(Some(7)), 7);
        assert_eq!(settings.tokens(Some(usize::MAX)), 50_000);
    }
}
