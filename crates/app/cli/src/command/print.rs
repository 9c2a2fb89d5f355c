//! Printing of results.

use std::{
    fmt,
    io::{self, Write},
};

use serde::Serialize;

use crate::command::failure::CommandFailure;

/// Prints text. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> Result<(), CommandFailure> {
    print_bytes(text.as_bytes())
}

/// Prints bytes. A closed pipe is not an error.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), CommandFailure> {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(bytes).and_then(|()| stdout.flush());
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CommandFailure::failed(
            format!("cannot write to stdout: {error}"),
        )),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints a line to stderr.
pub(crate) fn print_stderr(text: &str) {
    // A failure cannot be reported anywhere.
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// Replaces control characters, so that foreign text cannot affect the terminal.
pub(crate) fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(visible).collect()
}

/// Formats a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String, CommandFailure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(CommandFailure::failed)?;
    Ok(format!("{text}\n"))
}

/// Text table; the first row is its header.
#[derive(Clone, Debug)]
pub struct TextTable(Vec<Vec<String>>);

impl TextTable {
    /// Creates a table with a header.
    pub fn new(head: &[&str]) -> Self {
        Self(vec![head.iter().map(|&cell| cell.to_owned()).collect()])
    }

    /// Adds a row. Empty cells are shown as a dash.
    pub fn push(&mut self, row: impl IntoIterator<Item = String>) {
        let printable_cell = |cell: String| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                // Foreign text must not affect the terminal.
                printable(&cell)
            }
        };
        self.0.push(row.into_iter().map(printable_cell).collect());
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.0.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.0 {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}  "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = TextTable::new(&["ID", "NAME"]);
        table.push(["a".to_owned(), "ä\u{1b}[31m".to_owned()]);
        table.push(["long".to_owned(), String::new()]);
        assert_eq!(table.to_string(), "ID    NAME\na     ä?[31m\nlong  -\n");
    }
}
