//! The report as text: a table for stdout, a table in Markdown, and JSON.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::bench_target::{OURS, STOCK};
use crate::report::{ReportCell, ReportRow, RowGoal, RunReport};

/// Renders the report as aligned text, followed by notes on missing values.
pub(crate) fn render_table(report: &RunReport) -> String {
    let mut lines = vec![header(report)];
    for row in &report.rows {
        let mut line = vec![row.title.clone(), row.format_floor()];
        for (column, name) in report.targets.iter().enumerate() {
            line.extend([row.format_cell(column), row.format_ratio(column)]);
            if name == OURS {
                line.extend([
                    row.format_goal(),
                    verdict_text(row.meets_goal(column)).to_owned(),
                ]);
            }
        }
        lines.push(line);
    }
    let mut text = format!("{}\n\n", report.machine.summary());
    text.push_str(&align_columns(&lines));
    for note in notes(report) {
        text.push_str(&format!("\n{note}"));
    }
    text
}

/// Returns one note per missing value.
fn notes(report: &RunReport) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for row in &report.rows {
        let title = row.title.trim();
        let floor = row.floor.iter().map(|floor| (floor, "floor"));
        let targets = report.targets.iter().map(String::as_str);
        for (cell, target) in floor.chain(row.cells.iter().zip(targets)) {
            match cell {
                ReportCell::Value(_) => {}
                ReportCell::Skipped(why) => notes.push(format!("– {target}, {title}: {why}")),
                ReportCell::Failed(why) => notes.push(format!("FAILED {target}, {title}: {why}")),
            }
        }
    }
    notes
}

/// Returns the titles of the columns, in the order that [`render_table`] fills them.
fn header(report: &RunReport) -> Vec<String> {
    let mut header = vec!["measure".to_owned(), "floor".to_owned()];
    for name in &report.targets {
        header.extend([name.clone(), "ratio".to_owned()]);
        if name == OURS {
            header.extend(["reach".to_owned(), String::new()]);
        }
    }
    header
}

/// Formats whether a goal is met.
const fn verdict_text(meets_goal: Option<bool>) -> &'static str {
    match meets_goal {
        None => "",
        Some(true) => "ok",
        Some(false) => "MISSED",
    }
}

/// Aligns columns: the first to the left, all others to the right.
fn align_columns(lines: &[Vec<String>]) -> String {
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
        let mut aligned = String::new();
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            if column == 0 {
                aligned.push_str(&format!("{cell:<width$}"));
            } else {
                aligned.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push_str(aligned.trim_end());
        text.push('\n');
    }
    text
}

/// Renders machine, table and notes as Markdown.
pub(crate) fn render_markdown(report: &RunReport) -> String {
    let mut text = format!(
        "Machine: {}.\n\n",
        escape_markdown(&report.machine.summary())
    );
    let header = header(report);
    text.push_str(&markdown_line(&header));
    let rule: Vec<String> = (0..header.len())
        .map(|column| if column == 0 { "---" } else { "---:" }.to_owned())
        .collect();
    text.push_str(&markdown_line(&rule));
    for row in &report.rows {
        let title = match row.title.strip_prefix("  ") {
            Some(detail) => format!("… {detail}"),
            None => row.title.clone(),
        };
        let mut cells = vec![title, row.format_floor()];
        for (column, name) in report.targets.iter().enumerate() {
            cells.extend([row.format_cell(column), row.format_ratio(column)]);
            if name == OURS {
                cells.extend([
                    row.format_goal(),
                    verdict_text(row.meets_goal(column)).to_owned(),
                ]);
            }
        }
        text.push_str(&markdown_line(&cells));
    }
    let notes = notes(report);
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        text.push_str(&format!("- {}\n", escape_markdown(&note)));
    }
    text
}

fn markdown_line(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| escape_markdown(cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Escapes Markdown markup.
fn escape_markdown(text: &str) -> String {
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

/// Renders the report as JSON.
pub(crate) fn render_json(report: &RunReport) -> Value {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    json!({
        "measuredAt": now.as_secs(),
        "quick": report.quick,
        "machine": {
            "cpu": report.machine.cpu,
            "cores": report.machine.cores,
            "memoryBytes": report.machine.memory,
            "kernel": report.machine.kernel,
        },
        "targets": report.targets,
        "rows": report.rows.iter().map(|row| render_row(report, row)).collect::<Vec<_>>(),
    })
}

fn render_row(report: &RunReport, row: &ReportRow) -> Value {
    let mut values = Map::new();
    for (column, (cell, target)) in row.cells.iter().zip(&report.targets).enumerate() {
        let value = match cell {
            ReportCell::Value(value) => {
                json!({"value": value, "ratio": row.ratio(column), "reached": row.meets_goal(column)})
            }
            ReportCell::Skipped(why) => json!({"skipped": why}),
            ReportCell::Failed(why) => json!({"failed": why}),
        };
        values.insert(target.clone(), value);
    }
    json!({
        "id": row.id,
        "title": row.title.trim(),
        "unit": row.unit.name(),
        "floor": row.floor_value(),
        "ratioTo": match (&row.floor, row.stock) {
            (Some(_), _) => Some("floor"),
            (None, Some(_)) => Some(STOCK),
            (None, None) => None,
        },
        "reach": row.goal.map(|goal| match goal {
            RowGoal::RatioAtMost(limit) => json!({"ratioAtMost": limit}),
            RowGoal::RatioAtLeast(limit) => json!({"ratioAtLeast": limit}),
            RowGoal::StockAtMost(limit) => json!({"stockRatioAtMost": limit}),
            RowGoal::StockAtLeast(limit) => json!({"stockRatioAtLeast": limit}),
            RowGoal::AtMost(limit) => json!({"atMost": limit}),
            RowGoal::AtLeast(limit) => json!({"atLeast": limit}),
        }),
        "values": values,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_characters_not_bytes() {
        let line = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(
            align_columns(&[line("µ→", "1"), line("abc", "≤22")]),
            "µ→     1\nabc  ≤22\n"
        );
    }

    #[test]
    fn markdown_markup_is_escaped() {
        assert_eq!(escape_markdown("a|b\n*c*"), "a\\|b \\*c\\*");
    }
}
