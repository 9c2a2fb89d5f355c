//! The table as markdown, for the documents.

use super::Report;
use super::table::{header, notes, verdict};
use crate::target::OURS;

/// Renders machine, table and notes.
pub(crate) fn render(report: &Report) -> String {
    let mut text = format!("Machine: {}.\n\n", escape(&report.machine.show()));
    let header = header(report);
    text.push_str(&line(&header));
    let rule: Vec<String> = (0..header.len())
        .map(|at| if at == 0 { "---" } else { "---:" }.to_owned())
        .collect();
    text.push_str(&line(&rule));
    for row in &report.rows {
        let title = match row.title.strip_prefix("  ") {
            Some(detail) => format!("… {detail}"),
            None => row.title.clone(),
        };
        let mut cells = vec![title, row.show_floor()];
        for (at, name) in report.targets.iter().enumerate() {
            cells.extend([row.show_cell(at), row.show_ratio(at)]);
            if name == OURS {
                cells.extend([row.show_reach(), verdict(row.verdict(at)).to_owned()]);
            }
        }
        text.push_str(&line(&cells));
    }
    let notes = notes(report);
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        text.push_str(&format!("- {}\n", escape(&note)));
    }
    text
}

fn line(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| escape(cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Keeps text from being read as markup.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '<' => escaped.extend(['\\', char]),
            '\n' | '\r' => escaped.push(' '),
            plain => escaped.push(plain),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_markup_is_escaped() {
        assert_eq!(escape("a|b\n*c*"), "a\\|b \\*c\\*");
    }
}
