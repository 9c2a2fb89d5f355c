//! Rows in columns, for people.

use std::fmt;

use crate::command::printable;

/// A table: the first row is its head.
#[derive(Clone, Debug)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// A table without rows.
    pub fn new(head: &[&str]) -> Self {
        Self(vec![head.iter().map(|&cell| cell.to_owned()).collect()])
    }

    /// Adds a row. A cell with nothing in it is shown as a dash.
    pub fn push(&mut self, row: impl IntoIterator<Item = String>) {
        let shown = |cell: String| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                // What others wrote cannot play with the terminal.
                printable(&cell)
            }
        };
        self.0.push(row.into_iter().map(shown).collect());
    }
}

impl fmt::Display for Table {
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
        let mut table = Table::new(&["ID", "NAME"]);
        table.push(["a".to_owned(), "ä\u{1b}[31m".to_owned()]);
        table.push(["long".to_owned(), String::new()]);
        assert_eq!(table.to_string(), "ID    NAME\na     ä?[31m\nlong  -\n");
    }
}
