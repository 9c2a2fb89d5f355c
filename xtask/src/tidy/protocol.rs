//! PROTOCOL.md and the schemas against the code: they list what `exec-wire` lists, in its order.

use exec_wire::method::{MessageSender, notification};

use super::{finding::Finding, tree::Tree};
use crate::{generated_schemas, generated_tables};

const PATH: &str = "PROTOCOL.md";
const NOTIFICATIONS: &str = "All notifications";

/// Checks the schemas.
pub(crate) fn check_schemas(tree: &Tree) -> Vec<Finding> {
    let is_current = |(path, text): &(&str, String)| {
        let found = tree.schemas.iter().find(|file| file.path == *path);
        found.is_some_and(|file| file.text == *text)
    };
    generated_schemas::all()
        .iter()
        .filter(|schema| !is_current(schema))
        .map(|(path, _)| Finding::of_file(path, "is out of date: run `cargo xtask docs`"))
        .collect()
}

/// Checks the table of notifications and the generated tables.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(PATH) else {
        return Vec::new();
    };
    let mut findings = compare(text, NOTIFICATIONS, &server_notifications());
    let source = |file: &&super::tree::File| file.path == generated_tables::LIMITS;
    let limits = tree.rust.iter().find(source).map_or("", |file| &file.text);
    match generated_tables::update(text, limits) {
        Ok(updated) if updated == text => {}
        Ok(_) => findings.push(Finding::of_file(
            PATH,
            "a generated table is out of date: run `cargo xtask docs`",
        )),
        Err(error) => findings.push(Finding::of_file(PATH, format!("{error:#}"))),
    }
    findings
}

/// Returns the notifications that a server sends.
fn server_notifications() -> Vec<&'static str> {
    let all = notification::ALL.iter();
    all.filter(|entry| entry.sender != MessageSender::Client)
        .map(|entry| entry.name)
        .collect()
}

/// A row whose first cell is a name between backticks.
#[derive(Debug)]
struct Row<'a> {
    line: usize,
    name: &'a str,
}

fn compare(text: &str, heading: &str, expected: &[&str]) -> Vec<Finding> {
    let rows = table(text, heading);
    if rows.is_empty() {
        return vec![Finding::of_file(
            PATH,
            format!("has no table below a heading `{heading}`"),
        )];
    }
    let mut findings = Vec::new();
    for name in expected {
        if !rows.iter().any(|row| row.name == *name) {
            findings.push(Finding::of_file(
                PATH,
                format!("`{name}` is not in `{heading}`"),
            ));
        }
    }
    for (index, row) in rows.iter().enumerate() {
        if !expected.contains(&row.name) {
            let message = format!("`{}` is not in the code's list", row.name);
            findings.push(Finding::at(PATH, row.line, message));
        } else if rows[..index].iter().any(|earlier| earlier.name == row.name) {
            findings.push(Finding::at(
                PATH,
                row.line,
                format!("`{}` stands twice", row.name),
            ));
        }
    }
    if findings.is_empty() && !rows.iter().map(|row| row.name).eq(expected.iter().copied()) {
        let message = format!("`{heading}` is not in the order of the code's list");
        findings.push(Finding::of_file(PATH, message));
    }
    findings
}

/// Returns the named rows between a heading and the next one.
fn table<'a>(text: &'a str, heading: &str) -> Vec<Row<'a>> {
    let is_heading = |line: &str| line.starts_with('#');
    let mut lines = (1..).zip(text.lines());
    let found = lines.by_ref().find(|(_, line)| {
        is_heading(line) && line.trim_start_matches('#').trim().ends_with(heading)
    });
    if found.is_none() {
        return Vec::new();
    }
    lines
        .take_while(|(_, line)| !is_heading(line))
        .filter_map(|(line, text)| row(line, text))
        .collect()
}

fn row(line: usize, text: &str) -> Option<Row<'_>> {
    let (name, _) = text.strip_prefix("| `")?.split_once("` |")?;
    Some(Row { line, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# T\n## 6 All notifications\n| a | b |\n|---|---|\n| `x` | reads |\n| `y` | z |\n## Next\n| `w` |";

    fn messages(expected: &[&str]) -> Vec<String> {
        compare(TEXT, NOTIFICATIONS, expected)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn rows_of_the_right_table_are_read() {
        assert_eq!(messages(&["x", "y"]), Vec::<String>::new());
    }

    #[test]
    fn missing_unknown_and_misplaced_rows_are_told() {
        assert_eq!(
            messages(&["x", "y", "z"]),
            ["PROTOCOL.md: `z` is not in `All notifications`"]
        );
        assert_eq!(
            messages(&["x"]),
            ["PROTOCOL.md:6: `y` is not in the code's list"]
        );
        let misplaced = "PROTOCOL.md: `All notifications` is not in the order of the code's list";
        assert_eq!(messages(&["y", "x"]), [misplaced]);
    }

    #[test]
    fn a_row_that_stands_twice_is_told() {
        let text = "## All notifications\n| `x` | a |\n| `x` | b |\n";
        assert_eq!(compare(text, NOTIFICATIONS, &["x"]).len(), 1);
    }

    #[test]
    fn a_document_without_the_table_fails() {
        assert_eq!(compare("# Protocol\n", NOTIFICATIONS, &["x"]).len(), 1);
    }

    #[test]
    fn a_generated_table_that_is_out_of_date_is_found() {
        let rows: String = server_notifications()
            .iter()
            .map(|name| format!("| `{name}` |\n"))
            .collect();
        let tree = |generated: &str| Tree {
            markdown: vec![super::super::tree::File {
                path: PATH.to_owned(),
                text: format!("## All notifications\n{rows}## Next\n{generated}"),
            }],
            ..Tree::default()
        };
        let table = "<!-- generated: methods -->\n| old |\n<!-- end -->\n";
        assert_eq!(check(&tree(table)).len(), 1);
        let updated = generated_tables::update(table, "").unwrap();
        assert_eq!(check(&tree(&updated)), []);
    }

    #[test]
    fn a_schema_that_is_missing_or_out_of_date_is_found() {
        let mut tree = Tree::default();
        let schemas = generated_schemas::all();
        assert_eq!(check_schemas(&tree).len(), schemas.len());
        tree.schemas = schemas
            .map(|(path, text)| super::super::tree::File {
                path: path.to_owned(),
                text,
            })
            .into();
        assert_eq!(check_schemas(&tree), []);
        tree.schemas[0].text.push('x');
        assert_eq!(check_schemas(&tree).len(), 1);
    }
}
