//! The front matter of a `SKILL.md`: a small subset of YAML, parsed leniently. Unknown syntax is
//! skipped.

use std::iter::Peekable;

/// Fields of the front matter of a `SKILL.md`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FrontMatter {
    /// Its name.
    pub name: Option<String>,
    /// Its description.
    pub description: Option<String>,
}

impl FrontMatter {
    /// Parses `name` and `description` from the lines between the first two `---`. Supports plain,
    /// quoted, folded and literal scalars. Both are absent without front matter.
    pub fn read(text: &str) -> Self {
        let mut front_matter = Self::default();
        let Some(head) = front_matter_block(text) else {
            return front_matter;
        };
        let mut lines = head.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((key, value)) = top_level(line) else {
                continue;
            };
            let field = match key {
                "name" => &mut front_matter.name,
                "description" => &mut front_matter.description,
                _ => continue,
            };
            let value = scalar(value, &mut lines);
            if field.is_none() && !value.is_empty() {
                *field = Some(value);
            }
        }
        front_matter
    }
}

/// Returns the lines between a leading `---` line and the next one.
fn front_matter_block(text: &str) -> Option<&str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (first, rest) = text.split_once('\n')?;
    if first.trim_end() != FENCE {
        return None;
    }
    let mut end = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == FENCE {
            return rest.get(..end);
        }
        end += line.len();
    }
    None
}

/// Splits a line that is not indented into its key and the rest.
fn top_level(line: &str) -> Option<(&str, &str)> {
    if line.starts_with(|c: char| c.is_whitespace() || c == '#') {
        return None;
    }
    let (key, value) = line.split_once(':')?;
    let is_mapping = value.is_empty() || value.starts_with(char::is_whitespace);
    let key = key.trim().trim_matches(['"', '\'']);
    is_mapping.then_some((key, value.trim()))
}

/// Parses a value that may continue on the following indented lines.
fn scalar<'a>(value: &str, lines: &mut Peekable<impl Iterator<Item = &'a str>>) -> String {
    let mut more = Vec::new();
    while let Some(line) = lines.next_if(|line| is_continuation(line)) {
        more.push(line);
    }
    match value.chars().next() {
        Some('|') => block(&more, "\n"),
        Some('>') => block(&more, " "),
        Some(quote @ ('"' | '\'')) => {
            quoted(&join_lines(value.get(1..).unwrap_or(""), &more), quote)
        }
        Some(_) | None => plain(&join_lines(value, &more)),
    }
}

fn is_continuation(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with(char::is_whitespace)
}

fn join_lines(first: &str, more: &[&str]) -> String {
    let lines = std::iter::once(first).chain(more.iter().copied());
    let lines: Vec<&str> = lines
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}

/// Parses a block scalar and joins its lines with `between`.
fn block(lines: &[&str], between: &str) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    lines.join(between).trim().to_owned()
}

/// Parses up to the closing quote.
fn quoted(text: &str, quote: char) -> String {
    let mut value = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\\' && quote == '"' {
            match chars.next() {
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some(other) => value.push(other),
                None => {}
            }
        } else if c != quote {
            value.push(c);
        } else if quote == '\'' && chars.next_if_eq(&'\'').is_some() {
            value.push('\'');
        } else {
            break;
        }
    }
    value.trim().to_owned()
}

/// Parses up to a comment.
fn plain(text: &str) -> String {
    let end = text.find(" #").unwrap_or(text.len());
    let text = text.get(..end).unwrap_or(text);
    if text.starts_with('#') {
        return String::new();
    }
    text.trim().to_owned()
}

/// Delimits the front matter.
const FENCE: &str = "---";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<String>, Option<String>) {
        let front_matter = FrontMatter::read(text);
        (front_matter.name, front_matter.description)
    }

    fn name_and_description(name: &str, description: &str) -> (Option<String>, Option<String>) {
        (Some(name.to_owned()), Some(description.to_owned()))
    }

    #[test]
    fn plain_quoted_and_folded_values_are_parsed() {
        for text in [
            "---\nname: tidy\ndescription: keeps order: always\n---\nbody",
            "\u{feff}---\r\nname: tidy\r\ndescription: keeps order: always\r\n---\r\n",
            "---\nname: 'tidy'\ndescription: \"keeps order: always\" # why\n---\n",
            "---\n# about\nother: [a, b]\nname: tidy # short\ndescription: keeps\n  order:\n  always\n---",
            "---\nmetadata:\n  name: inner\n\"name\": tidy\ndescription: >-\n  keeps\n  order: always\n---\n",
        ] {
            assert_eq!(
                read(text),
                name_and_description("tidy", "keeps order: always"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn escapes_and_literal_blocks_are_decoded() {
        let text = "---\nname: 'it''s'\ndescription: \"a \\\"b\\\"\\nc\"\n---\n";
        assert_eq!(read(text), name_and_description("it's", "a \"b\"\nc"));
        let text = "---\nname: x\ndescription: |\n  one\n  two\n---\n";
        assert_eq!(read(text), name_and_description("x", "one\ntwo"));
    }

    #[test]
    fn text_without_front_matter_yields_nothing() {
        for text in [
            "",
            "---",
            "name: a\n",
            "---\nname: a\n",
            "# title\n---\nname: a\n---\n",
            "---\nname:\n---\n",
            "---\nname:a\nname\n---\n",
        ] {
            assert_eq!(read(text), (None, None), "{text:?}");
        }
    }
}
