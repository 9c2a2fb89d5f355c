//! Printing what a command was asked for.

use std::io::{self, Write};

use serde::Serialize;

use super::failure::{Failure, FailureKind};

/// Prints text. Whoever has stopped reading has what they wanted.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// Prints bytes. Whoever has stopped reading has what they wanted.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(bytes).and_then(|()| stdout.flush());
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let what = format!("cannot write to stdout: {error}");
            Err(Failure::new(FailureKind::Failed, what))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Says something beside what was asked for.
pub(crate) fn say(text: &str) {
    // Nobody can be told if it fails.
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// Returns a text that does nothing to a terminal and stays on its line. Names and messages of others
/// are shown like this.
pub(crate) fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(visible).collect()
}

/// Writes a value as JSON, in lines.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Failure::new(FailureKind::Failed, error))?;
    Ok(format!("{text}\n"))
}
