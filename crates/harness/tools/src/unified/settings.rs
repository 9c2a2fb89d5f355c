//! How long calls wait, how much they show, and how many commands run at once.

use std::{num::NonZeroUsize, time::Duration};

use exec_env::command::Stdin;
use exec_wire::{
    limits,
    process::{EnvInherit, EnvPolicy, TerminalSize},
};

use super::call::WaitFor;

/// The bounds of unified exec. [`Default`] has what suits an agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long calls wait.
    pub windows: WaitWindows,
    /// Most tokens that a call shows, if it does not say.
    pub output_tokens: usize,
    /// Most tokens that a call can ask for: what one answer may take of a model's context.
    pub max_output_tokens: usize,
    /// Commands that are kept at once. One more ends the one that was used least recently, an ended
    /// one first.
    pub max_processes: NonZeroUsize,
    /// So many of those used last are not ended for another: an agent is at work with them.
    pub protected_processes: usize,
    /// Bytes kept of what a command has written, for each of the three who want it: the next call as
    /// text, the next call as it was written, and the event of its end. Beyond it the middle is left out.
    pub retained_bytes: usize,
    /// Largest chunk that an event carries. A larger one is told by several.
    pub delta_bytes: usize,
    /// Most events that tell the output of one command. What comes behind them is in the event of its
    /// end only.
    pub max_deltas: usize,
    /// The size of terminals.
    pub terminal: TerminalSize,
    /// What a command without a terminal reads. `Null` suits agents that never write to one: some
    /// programs read their input only because there is one.
    pub stdin: Stdin,
    /// How the host's variables enter.
    pub env_policy: EnvPolicy,
    /// How long the output of a command may stay open behind its end, and silent; eight times as long if
    /// it is not silent. Something that it left in the background may hold it, and ends with the command
    /// when its output was shown.
    pub close_grace: Duration,
    /// How long a command that is to end may take to do so by itself.
    pub terminate_grace: Duration,
    /// What becomes of a command whose first call is dropped.
    pub abandoned: AbandonedCommand,
}

/// What becomes of a command whose first call is dropped before it has told the command's number.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum AbandonedCommand {
    /// It ends: nobody knows its number.
    #[default]
    Terminate,
    /// It runs on, for harnesses that list commands.
    KeepRunning,
}

impl Default for Settings {
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
            stdin: Stdin::Piped,
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
        }
    }
}

/// How long calls wait for a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WaitWindows {
    /// Shortest wait that can be asked for. Below it an agent would spend its turns on looking.
    pub min: Duration,
    /// After a start, if the call does not say: most commands are over by then.
    pub start: Duration,
    /// After a write, if the call does not say: the answer to a keystroke is there by then.
    pub write: Duration,
    /// Of a look, if the call does not say.
    pub look: Duration,
    /// Longest wait after a start or a write that waits for nothing but the end. It keeps an agent from
    /// being blind for long, and stays below the time after which many clients of tools give up.
    pub max: Duration,
    /// Longest wait of a look, and of a call that says what it waits for. Whoever asks for those knows
    /// that it takes long, and would otherwise only ask again and again.
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

/// What a call does before it waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WaitPhase {
    Start,
    Write,
    Poll,
}

impl WaitWindows {
    /// Returns how long a call waits at most.
    pub(super) fn wait_window(
        &self,
        before: WaitPhase,
        asked: Option<Duration>,
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
        asked.unwrap_or(default).max(self.min).min(max)
    }
}

impl Settings {
    /// Returns how many tokens a call shows at most.
    pub(super) fn tokens(&self, asked: Option<usize>) -> usize {
        asked
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
        let millis = |before, asked: Option<u64>, wait| {
            let asked = asked.map(Duration::from_millis);
            windows.wait_window(before, asked, &wait).as_millis()
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
        let settings = Settings::default();
        assert_eq!(settings.tokens(None), 10_000);
        assert_eq!(settings.tokens(Some(7)), 7);
        assert_eq!(settings.tokens(Some(usize::MAX)), 50_000);
    }
}
