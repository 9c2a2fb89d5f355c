//! How long a call waits, what for, and what it shows.

use std::time::Duration;

use regex::{Error, bytes::RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    mcp::{answer::Complaint, work::Work},
    unified::{View, WaitFor},
};

/// Largest program of a pattern: bounds the time that a look takes, and the memory. A `\w` takes 50 KiB,
/// `.{1,80}` takes 100.
const PATTERN_BYTES: usize = 256 << 10;
/// Memory that matching may take to be faster.
const CACHE_BYTES: usize = 1 << 20;

/// What ends a wait early. At most one member may be given.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(super) struct WaitForArgument {
    /// Returns when no output came for so many milliseconds, after some did.
    #[serde(default)]
    idle_ms: Option<u64>,
    /// Returns when the output of this call matches this regular expression (Rust syntax).
    #[serde(default)]
    pattern: Option<String>,
    /// Returns when the call has seen so many bytes of output.
    #[serde(default)]
    bytes: Option<usize>,
}

impl WaitForArgument {
    /// Reads it.
    pub(super) fn read(argument: Option<Self>) -> Result<WaitFor, Complaint> {
        let Some(argument) = argument else {
            return Ok(WaitFor::Exit);
        };
        match (argument.idle_ms, argument.pattern, argument.bytes) {
            (None, None, None) => Ok(WaitFor::Exit),
            (Some(idle), None, None) => Ok(WaitFor::Idle(Duration::from_millis(idle))),
            (None, Some(pattern), None) => RegexBuilder::new(&pattern)
                .size_limit(PATTERN_BYTES)
                .dfa_size_limit(CACHE_BYTES)
                .multi_line(true)
                .build()
                .map(WaitFor::Pattern)
                .map_err(|error| match error {
                    Error::CompiledTooBig(_) => Complaint::new(
                        "`wait_for.pattern` is too large to be looked for quickly: use smaller numbers in \
                         `{}`, or `(?-u)` and classes such as `[a-z]` in place of `\\w`",
                    ),
                    error @ (Error::Syntax(_) | _) => {
                        Complaint(format!("`wait_for.pattern`: {error}"))
                    }
                }),
            (None, None, Some(bytes)) => Ok(WaitFor::Bytes(bytes)),
            _ => Err(Complaint::new(
                "`wait_for` takes one of `idle_ms`, `pattern` and `bytes`",
            )),
        }
    }
}

/// How output is shown.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum ViewArgument {
    #[default]
    Plain,
    Raw,
    Screen,
}

impl From<ViewArgument> for View {
    fn from(view: ViewArgument) -> Self {
        match view {
            ViewArgument::Plain => Self::Plain,
            ViewArgument::Raw => Self::Raw,
            ViewArgument::Screen => Self::Screen,
        }
    }
}

/// How long to wait, as far as the client's patience is known to go.
pub(super) fn window(work: &Work, asked: Option<u64>) -> Option<Duration> {
    let asked = asked.map(Duration::from_millis);
    asked.map(|asked| work.patience().at_most(asked))
}
