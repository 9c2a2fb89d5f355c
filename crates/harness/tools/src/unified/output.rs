//! What an agent is shown.

use std::time::Duration;

use exec_core::log::Exit;
use exec_env::process::{ProcessError, ProcessNumber};

/// What one call of a tool comes to.
#[derive(Clone, Debug)]
pub struct ToolOutput {
    /// How long the call took.
    pub wall_time: Duration,
    /// What was said since the last call, bounded.
    pub transcript: Transcript,
    /// The process, if it runs on.
    pub running: Option<ProcessNumber>,
    /// How it ended, if it did.
    pub exit: Option<Exit>,
    /// Why nothing more can be known of it, if so. It neither runs on then nor did it end, as far as is
    /// known.
    pub failure: Option<ProcessError>,
}

/// The beginning and the end of some output, within a budget of tokens.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Transcript {
    /// What is shown, with a line in the place of what is left out.
    pub text: String,
    /// How many tokens all of it would have been.
    pub original_tokens: usize,
    /// Bytes that were left out.
    pub omitted_bytes: u64,
}
