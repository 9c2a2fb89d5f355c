//! What an agent reads about a command.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    mcp::{
        answer::Answer,
        weight::{MAX_ANSWER_BYTES, fitting},
        work::Work,
    },
    unified::ToolOutput,
};

/// What the output may weigh, which stands in the text and beside it. Some is left for what stands around
/// it.
const OUTPUT_BYTES: usize = MAX_ANSWER_BYTES / 2 - (16 << 10);

/// The same, for programs.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(super) struct CommandOutput {
    /// Number of the command, if it runs on: the session_id of write_stdin.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<u64>,
    /// Exit code, if it ended; 128 + n after signal n.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Name of the signal that killed it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    /// True if the sandbox seems to have refused it something.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_denied: Option<bool>,
    /// What the sandbox probably refused, and what whoever started this server can do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_hint: Option<String>,
    /// Why nothing more can be known of it, if so: neither does it run nor did it end, as far as is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<String>,
    /// How long this call took, in seconds.
    wall_time_seconds: f64,
    /// Tokens of all output since the last call, before anything was left out.
    original_token_count: usize,
    /// Output since the last call.
    output: String,
}

/// Turns what a call came to into an answer.
pub(super) fn answer(output: ToolOutput, work: &Work) -> Answer {
    let exit = output.exit.as_ref();
    let denied = exit.is_some_and(|exit| exit.sandbox_denied);
    let failed = exit.is_some_and(|exit| exit.code != 0);
    let hint = failed.then(|| work.explain_denial(&output.transcript.text, denied));
    let structured = CommandOutput {
        session_id: output.running.map(|number| number.0),
        exit_code: exit.map(|exit| exit.code),
        signal: exit.and_then(|exit| exit.signal).map(str::to_owned),
        sandbox_denied: denied.then_some(true),
        sandbox_hint: hint.flatten(),
        lost: output.failure.as_ref().map(ToString::to_string),
        wall_time_seconds: (output.wall_time.as_secs_f64() * 1000.0).round() / 1000.0,
        original_token_count: output.transcript.original_tokens,
        output: fitting(&output.transcript.text, OUTPUT_BYTES).into_owned(),
    };
    Answer::text(text(&structured)).with(&structured)
}

/// Writing to a string cannot fail.
fn text(output: &CommandOutput) -> String {
    let mut text = format!("Wall time: {:.3} seconds\n", output.wall_time_seconds);
    if let Some(code) = output.exit_code {
        let _ = write!(text, "Process exited with code {code}");
        if let Some(signal) = &output.signal {
            let _ = write!(text, " (killed by {signal})");
        }
        text.push('\n');
    }
    if let Some(id) = output.session_id {
        let _ = writeln!(text, "Process running with session ID {id}");
    }
    if let Some(reason) = &output.lost {
        let _ = writeln!(text, "Process was lost: {reason}");
    }
    if let Some(hint) = &output.sandbox_hint {
        let _ = writeln!(text, "{hint}");
    }
    let _ = writeln!(
        text,
        "Original token count: {}",
        output.original_token_count
    );
    text.push_str("Output:\n");
    text.push_str(&output.output);
    text
}
