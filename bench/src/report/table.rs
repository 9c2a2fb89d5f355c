//! The table on stdout.

use super::{Cell, Report};
use crate::target::OURS;

/// Renders the report as aligned text, with notes below on whatever has no value.
pub(crate) fn render(report: &Report) -> String {
    let mut lines = vec![header(report)];
    for row in &report.rows {
        let mut line = vec![row.title.clone(), row.show_floor()];
        for (at, name) in report.targets.iter().enumerate() {
            line.extend([row.show_cell(at), row.show_ratio(at)]);
            if name == OURS {
                line.extend([row.show_reach(), verdict(row.verdict(at)).to_owned()]);
            }
        }
        lines.push(line);
    }
    let mut text = format!("{}\n\n", report.machine.show());
    text.push_str(&align(&lines));
    for note in notes(report) {
        text.push_str(&format!("\n{note}"));
    }
    text
}

/// Returns one note for every value that is missing.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for row in &report.rows {
        let title = row.title.trim();
        let floor = row.floor.iter().map(|floor| (floor, "floor"));
        let targets = report.targets.iter().map(String::as_str);
        for (cell, target) in floor.chain(row.cells.iter().zip(targets)) {
            match cell {
                Cell::Value(_) => {}
                Cell::Skipped(why) => notes.push(format!("– {target}, {title}: {why}")),
                Cell::Failed(why) => notes.push(format!("FAILED {target}, {title}: {why}")),
            }
        }
    }
    notes
}

/// Returns the titles of the columns, in the order that [`render`] fills them.
pub(super) fn header(report: &Report) -> Vec<String> {
    let mut header = vec!["measure".to_owned(), "floor".to_owned()];
    for name in &report.targets {
        header.extend([name.clone(), "ratio".to_owned()]);
        if name == OURS {
            header.extend(["reach".to_owned(), String::new()]);
        }
    }
    header
}

/// Shows a verdict.
pub(super) const fn verdict(verdict: Option<bool>) -> &'static str {
    match verdict {
        None => "",
        Some(true) => "ok",
        Some(false) => "MISSED",
    }
}

/// Aligns columns: the first to the left, all others to the right.
fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| Some(line.get(column)?.chars().count()))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut shown = String::new();
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            if column == 0 {
                shown.push_str(&format!("{cell:<width$}"));
            } else {
                shown.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_characters_not_bytes() {
        let line = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(
            align(&[line("µ→", "1"), line("abc", "≤22")]),
            "µ→     1\nabc  ≤22\n"
        );
    }
}
