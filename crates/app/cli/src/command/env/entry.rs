//! The text of `environments.toml` with something more, or less, in it. Pure.

use toml::Value;

/// Returns the ids of the environments in a text, in order.
pub(super) fn ids(text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let environments = table.get("environments").and_then(Value::as_array);
    let tables = environments.into_iter().flatten();
    let id = |table: &Value| Some(table.get("id")?.as_str()?.to_owned());
    tables.map(|table| id(table).unwrap_or_default()).collect()
}

/// Returns a text with an environment behind everything else. Values are quoted as TOML has it.
pub(super) fn appended(text: &str, keys: &[(&str, Value)]) -> String {
    let mut text = text.trim_end().to_owned();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(HEADER);
    text.push('\n');
    for (key, value) in keys {
        text.push_str(&format!("{key} = {value}\n"));
    }
    text
}

/// Returns a text that names another default, in the place of the old one.
pub(super) fn with_default(text: &str, name: &str) -> String {
    let line = format!("default = {}", Value::String(name.to_owned()));
    let old = toml::de::DeTable::parse(text).ok().and_then(|table| {
        let (key, value) = table.get_ref().get_key_value("default")?;
        Some(key.span().start..value.span().end)
    });
    match old {
        Some(old) => format!("{}{line}{}", &text[..old.start], &text[old.end..]),
        None => format!("{line}\n{text}"),
    }
}

/// Returns a text without the environment that is the `index`th. `None` if it is not written in a way
/// that is understood.
pub(super) fn without(text: &str, index: usize) -> Option<String> {
    let mut expected: toml::Table = text.parse().ok()?;
    let environments = expected.get_mut("environments")?.as_array_mut()?;
    if index >= environments.len() {
        return None;
    }
    environments.remove(index);
    if environments.is_empty() {
        expected.remove("environments");
    }
    let left = without_lines(text, index)?;
    let is_exact = left.parse::<toml::Table>().ok()? == expected;
    is_exact.then_some(left)
}

fn without_lines(text: &str, index: usize) -> Option<String> {
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    let headers = lines.iter().enumerate().filter(|(_, line)| is_header(line));
    let (start, _) = headers.clone().nth(index)?;
    let rest = lines.iter().enumerate().skip(start + 1);
    let end = rest.clone().find(|(_, line)| {
        let line = line.trim_start();
        line.starts_with('[') && !line.starts_with("[environments.")
    });
    let end = end.map_or(lines.len(), |(end, _)| end);
    // What is said right above the next one belongs to that.
    let mut kept = end;
    while kept > start + 1 && end < lines.len() && lines[kept - 1].trim_start().starts_with('#') {
        kept -= 1;
    }
    let before = lines[..start].concat();
    Some(format!("{before}{}", lines[kept..].concat()))
}

fn is_header(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    line.split_whitespace().collect::<String>() == HEADER
}

const HEADER: &str = "[[environments]]";

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Value {
        Value::String(value.to_owned())
    }

    #[test]
    fn an_environment_is_added_behind_what_is_there() {
        let keys = [("id", text("a")), ("url", text("ws://\"h\"\n"))];
        assert_eq!(appended("", &keys[..1]), "[[environments]]\nid = \"a\"\n");
        let added = appended("# mine\ninclude_local = true", &keys);
        assert!(
            added.starts_with("# mine\ninclude_local = true\n\n[[environments]]\n"),
            "{added}"
        );
        let parsed: toml::Table = added.parse().unwrap();
        assert_eq!(parsed["environments"][0]["url"], text("ws://\"h\"\n"));
    }

    #[test]
    fn the_default_is_replaced_where_it_is() {
        for (before, after) in [
            ("", "default = \"b\"\n"),
            (
                "# x\n[[environments]]\n",
                "default = \"b\"\n# x\n[[environments]]\n",
            ),
            (
                "# x\ndefault='a' # y\ninclude_local = true\n",
                "# x\ndefault = \"b\" # y\ninclude_local = true\n",
            ),
        ] {
            assert_eq!(with_default(before, "b"), after);
        }
    }

    #[test]
    fn an_environment_is_taken_out_and_nothing_else() {
        let before = "# top\ndefault = 'b'\n\n[[environments]]\nid = 'a'\n[environments.skills]\n\
                      required = []\n\n# about b\n[[environments]] # b\nid = 'b'\n";
        assert_eq!(
            without(before, 0).unwrap(),
            "# top\ndefault = 'b'\n\n# about b\n[[environments]] # b\nid = 'b'\n"
        );
        assert_eq!(
            without(before, 1).unwrap(),
            "# top\ndefault = 'b'\n\n[[environments]]\nid = 'a'\n[environments.skills]\n\
             required = []\n\n# about b\n"
        );
        assert_eq!(without(before, 2), None);
        assert_eq!(without("environments = [{ id = 'a' }]\n", 0), None);
    }
}
