//! PROTOCOL.md against the code: both tables list what `exec-wire` lists, in its order.

use exec_wire::method::{MethodName, Ordering, notification};

use super::finding::Finding;

const PATH: &str = "PROTOCOL.md";
const METHODS: &str = "All methods";
const NOTIFICATIONS: &str = "All notifications";

/// Checks both tables.
pub(crate) fn check(text: &str) -> Vec<Finding> {
    let methods: Vec<&str> = MethodName::ALL
        .iter()
        .map(|method| method.as_str())
        .collect();
    let mut findings = compare(text, METHODS, &methods);
    findings.extend(compare(text, NOTIFICATIONS, notification::ALL));
    findings.extend(table(text, METHODS).iter().filter_map(check_ordering));
    findings
}

/// A row whose first cell is a name between backticks.
#[derive(Debug)]
struct Row<'a> {
    line: usize,
    name: &'a str,
    second: &'a str,
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

/// The second cell of a method is its place in the order of requests.
fn check_ordering(row: &Row<'_>) -> Option<Finding> {
    let expected = match MethodName::parse(row.name)?.ordering() {
        Ordering::Reads => "reads",
        Ordering::Changes => "changes",
        Ordering::Starts => "starts",
        Ordering::Files => "files",
        Ordering::Control => "control",
    };
    let message = || format!("`{}` is ordered as `{expected}` in the code", row.name);
    (row.second != expected).then(|| Finding::at(PATH, row.line, message()))
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
    let (name, rest) = text.strip_prefix("| `")?.split_once("` |")?;
    let second = rest.split('|').next()?.trim();
    Some(Row { line, name, second })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# T\n## 6 All methods\n| a | b |\n|---|---|\n| `x` | reads |\n| `y` | z |\n## Next\n| `w` |";

    fn messages(expected: &[&str]) -> Vec<String> {
        compare(TEXT, METHODS, expected)
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
            ["PROTOCOL.md: `z` is not in `All methods`"]
        );
        assert_eq!(
            messages(&["x"]),
            ["PROTOCOL.md:6: `y` is not in the code's list"]
        );
        let misplaced = "PROTOCOL.md: `All methods` is not in the order of the code's list";
        assert_eq!(messages(&["y", "x"]), [misplaced]);
    }

    #[test]
    fn a_row_that_stands_twice_is_told() {
        let text = "## All methods\n| `x` | a |\n| `x` | b |\n";
        assert_eq!(compare(text, METHODS, &["x"]).len(), 1);
    }

    #[test]
    fn a_document_without_the_tables_fails() {
        assert_eq!(check("# Protocol\n").len(), 2);
    }

    #[test]
    fn the_ordering_of_a_method_is_compared() {
        let row = |name, second| Row {
            line: 1,
            name,
            second,
        };
        assert_eq!(check_ordering(&row("process/start", "starts")), None);
        assert!(check_ordering(&row("process/start", "reads")).is_some());
    }
}
