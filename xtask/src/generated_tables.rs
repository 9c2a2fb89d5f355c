//! Tables of the documents that are generated from the code: `cargo xtask docs`.
//!
//! A document marks each table with `<!-- generated: NAME -->` and `<!-- end -->`. Invariant: text
//! outside of the marks is never changed.

use anyhow::{Context as _, bail};
use exec_wire::method::MethodName;

/// Documents with generated tables.
pub(crate) const DOCUMENTS: &[&str] = &["PROTOCOL.md"];
/// Source of the table of limits.
pub(crate) const LIMITS: &str = "crates/base/wire/src/limits.rs";

const START: &str = "<!-- generated: ";
const END: &str = "<!-- end -->";

/// Returns a document with all its generated tables up to date.
pub(crate) fn update(document: &str, limits: &str) -> anyhow::Result<String> {
    let mut updated = String::with_capacity(document.len());
    let mut rest = document;
    while let Some(at) = rest.find(START) {
        let (before, marked) = rest.split_at(at);
        let line_end = marked
            .find('\n')
            .context("a mark is not on a line of its own")?;
        let (mark, table) = marked.split_at(line_end + 1);
        let name = mark
            .trim_end()
            .strip_prefix(START)
            .and_then(|mark| mark.strip_suffix(" -->"))
            .with_context(|| format!("invalid mark `{}`", mark.trim_end()))?;
        let end = table
            .find(END)
            .with_context(|| format!("table `{name}` has no `{END}`"))?;
        updated.push_str(before);
        updated.push_str(mark);
        updated.push('\n');
        updated.push_str(&render(name, limits)?);
        updated.push('\n');
        rest = &table[end..];
    }
    updated.push_str(rest);
    Ok(updated)
}

fn render(name: &str, limits: &str) -> anyhow::Result<String> {
    match name {
        "methods" => Ok(methods()),
        "limits" => limits_table(limits),
        _ => bail!("unknown table `{name}`"),
    }
}

fn methods() -> String {
    let mut table = "| Method | Order | What it does |\n|---|---|---|\n".to_owned();
    for method in MethodName::ALL {
        let (name, summary) = (method.as_str(), method.summary());
        let ordering = method.ordering().as_str();
        table.push_str(&format!("| `{name}` | {ordering} | {summary} |\n"));
    }
    table
}

fn limits_table(source: &str) -> anyhow::Result<String> {
    let mut table = "| Limit | Value | Meaning |\n|---|---:|---|\n".to_owned();
    let mut description = Vec::new();
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("/// ") {
            description.push(text.replace(['[', ']'], ""));
        } else if let Some(rest) = line.strip_prefix("pub const ") {
            let (name, rest) = rest.split_once(": ").context("a limit has no type")?;
            let (_, value) = rest.split_once(" = ").context("a limit has no value")?;
            let value = Value::parse(name, value.trim_end_matches(';'))?;
            let meaning = description.join(" ");
            table.push_str(&format!("| `{name}` | {value} | {meaning} |\n"));
            description.clear();
        } else {
            description.clear();
        }
    }
    Ok(table)
}

/// Value of a limit, with its unit.
#[derive(Debug, Eq, PartialEq)]
enum Value {
    Bytes(u64),
    Count(u64),
    Milliseconds(u64),
}

impl Value {
    fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let inside = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix(')');
        if let Some(seconds) = inside("Duration::from_secs(") {
            return Ok(Self::Milliseconds(product(seconds)? * 1000));
        }
        if let Some(millis) = inside("Duration::from_millis(") {
            return Ok(Self::Milliseconds(product(millis)?));
        }
        let value = match text.split_once(" << ") {
            Some((value, shift)) => number(value)? << number(shift)?,
            None => number(text)?,
        };
        Ok(if name.ends_with("_BYTES") {
            Self::Bytes(value)
        } else {
            Self::Count(value)
        })
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = |value: u64, units: &[(u64, &str)]| {
            let fits = |(size, _): &&(u64, &str)| value.is_multiple_of(*size) && value >= *size;
            let (size, unit) = units.iter().find(fits).copied().unwrap_or((1, ""));
            format!("{} {unit}", value / size)
        };
        match self {
            Self::Bytes(value) => f.write_str(&units(
                *value,
                &[
                    (1 << 30, "GiB"),
                    (1 << 20, "MiB"),
                    (1 << 10, "KiB"),
                    (1, "bytes"),
                ],
            )),
            Self::Milliseconds(value) => {
                f.write_str(&units(*value, &[(3_600_000, "h"), (1000, "s"), (1, "ms")]))
            }
            Self::Count(value) => {
                let digits = value.to_string();
                for (index, digit) in digits.chars().enumerate() {
                    if index > 0 && digits.len() > 4 && (digits.len() - index).is_multiple_of(3) {
                        f.write_str(" ")?;
                    }
                    write!(f, "{digit}")?;
                }
                Ok(())
            }
        }
    }
}

fn product(text: &str) -> anyhow::Result<u64> {
    text.split(" * ").map(number).product()
}

fn number(text: &str) -> anyhow::Result<u64> {
    text.trim()
        .replace('_', "")
        .parse()
        .with_context(|| format!("`{text}` is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_table_is_replaced_and_nothing_else() {
        let document = "a\n<!-- generated: limits -->\nold\n<!-- end -->\nb\n";
        let limits = "/// Largest\n/// [`X`].\npub const X_BYTES: usize = 3 << 20;\n";
        let expected = "a\n<!-- generated: limits -->\n\n| Limit | Value | Meaning |\n\
                        |---|---:|---|\n| `X_BYTES` | 3 MiB | Largest `X`. |\n\n<!-- end -->\nb\n";
        let updated = update(document, limits).unwrap();
        assert_eq!(updated, expected);
        assert_eq!(update(&updated, limits).unwrap(), expected);
    }

    #[test]
    fn values_are_shown_with_their_units() {
        let formatted = |name, text| Value::parse(name, text).unwrap().to_string();
        assert_eq!(formatted("A_BYTES", "1 << 10"), "1 KiB");
        assert_eq!(formatted("A_BYTES", "32"), "32 bytes");
        assert_eq!(formatted("A", "262_144"), "262 144");
        assert_eq!(formatted("A", "4096"), "4096");
        assert_eq!(formatted("A", "Duration::from_secs(24 * 60 * 60)"), "24 h");
        assert_eq!(formatted("A", "Duration::from_millis(25)"), "25 ms");
        assert!(Value::parse("A", "OTHER").is_err());
    }

    #[test]
    fn invalid_marks_are_refused() {
        assert!(update("<!-- generated: nothing -->\n<!-- end -->\n", "").is_err());
        assert!(update("<!-- generated: methods -->\n", "").is_err());
    }
}
