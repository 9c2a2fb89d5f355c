//! What an agent asks for.

use std::{collections::BTreeMap, fmt, time::Duration};

use exec_env::{command::Stdin, process::ProcessNumber};
use exec_wire::path_uri::PathUri;
use regex::bytes::Regex;

/// The harness's name for one call of a tool.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct CallId(pub String);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `exec_command`: runs a command and shows what it says for a while.
#[derive(Clone, Debug)]
pub struct ExecCommand {
    /// The harness's name for this call.
    pub call_id: CallId,
    /// What to run.
    pub program: Program,
    /// Where. Absent: in the environment's own directory.
    pub workdir: Option<PathUri>,
    /// Laid over the environment's variables.
    pub env: BTreeMap<String, String>,
    /// Gives it a terminal; without one it gets pipes.
    pub tty: bool,
    /// What it reads without a terminal. Absent: as the settings say.
    pub stdin: Option<Stdin>,
    /// How long to wait for the end of what is waited for. Absent: 10 s; at least 250 ms, at most what
    /// the settings allow.
    pub yield_time: Option<Duration>,
    /// What ends the wait before that.
    pub wait: WaitFor,
    /// Most of the output to show, in tokens. Absent: as the settings say.
    pub max_output_tokens: Option<usize>,
    /// How the output is shown.
    pub view: View,
    /// Why it is to be run, for whoever approves it.
    pub justification: Option<String>,
}

/// What to run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Program {
    /// A line for a shell.
    Shell {
        /// The line.
        line: String,
        /// The shell's program. Absent: the environment's own shell.
        shell: Option<String>,
        /// Runs it as a login shell.
        login: bool,
    },
    /// A program and its arguments, as they are.
    Argv(Vec<String>),
}

/// What ends a wait before its time is up. The end of the process always does.
///
/// Output since the call is: after a start all of it; after a write what comes behind the write; of a
/// call that only looks, also what came since the last call, which it shows.
#[derive(Clone, Debug, Default)]
pub enum WaitFor {
    /// Nothing else.
    #[default]
    Exit,
    /// No output for so long, after some came.
    Idle(Duration),
    /// Output that matches, since the call. Matched on text without escape codes, including a last line
    /// that is not ended: a prompt. A match that comes in pieces spans
    /// 16 KiB at most.
    Pattern(Regex),
    /// So many bytes of output, since the call.
    Bytes(usize),
}

/// How output is shown.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum View {
    /// As text, without escape codes.
    #[default]
    Plain,
    /// As it was written.
    Raw,
    /// As the screen of a terminal shows it now. Needs a terminal.
    Screen,
}

/// `write_stdin`: writes to a command that runs on, or only looks at it, and shows what it says.
#[derive(Clone, Debug)]
pub struct WriteStdin {
    /// The harness's name for this call.
    pub call_id: CallId,
    /// Which.
    pub number: ProcessNumber,
    /// What to write. Empty: only looks. Ctrl-C alone (`"\u{3}"`) interrupts also a command without
    /// a terminal, where nothing else would make a signal of it.
    pub chars: String,
    /// Ends its input behind that.
    pub close: bool,
    /// As in [`ExecCommand`], counted from when the write was accepted; absent: 250 ms, or 5 s if nothing
    /// is written.
    pub yield_time: Option<Duration>,
    /// As in [`ExecCommand`].
    pub wait: WaitFor,
    /// As in [`ExecCommand`].
    pub max_output_tokens: Option<usize>,
    /// As in [`ExecCommand`].
    pub view: View,
}
