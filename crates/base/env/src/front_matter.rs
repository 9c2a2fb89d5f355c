//! The front matter of a `SKILL.md`: YAML between its first two lines of dashes.

use std::collections::BTreeMap;

use crate::yaml::YamlValue;

/// Fields of the front matter of a `SKILL.md`. Empty fields are absent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FrontMatter {
    /// Name of the skill.
    pub name: Option<String>,
    /// What the skill does, and when to use it.
    pub description: Option<String>,
    /// Description for lists that people see.
    pub short_description: Option<String>,
}

/// Why front matter is invalid. The author of the file must act.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FrontMatterError {
    /// Caller: the opening or closing line is missing.
    #[error("it does not begin with front matter between two lines of `---`")]
    Missing,
    /// Caller: the front matter is not valid YAML.
    #[error("its front matter is not YAML")]
    NotYaml,
    /// Caller: a field has the wrong type.
    #[error("`{0}` in its front matter has the wrong type")]
    Kind(&'static str),
}

impl FrontMatter {
    /// Parses the front matter of a file.
    ///
    /// # Errors
    /// Fails if the file has no front matter, or if it is invalid.
    pub fn parse(text: &str) -> Result<Self, FrontMatterError> {
        let matter = front_matter_text(text).ok_or(FrontMatterError::Missing)?;
        let yaml = YamlValue::parse(&matter).or_else(|| YamlValue::parse(&quote_values(&matter)));
        let Some(YamlValue::Map(members)) = yaml else {
            return Err(FrontMatterError::NotYaml);
        };
        let short_description = match members.get("metadata") {
            Some(YamlValue::Map(metadata)) => text_field(metadata, "short-description")
                .ok_or(FrontMatterError::Kind("metadata"))?,
            Some(metadata) if !metadata.is_null() => {
                return Err(FrontMatterError::Kind("metadata"));
            }
            Some(_) | None => None,
        };
        let field = |name| text_field(&members, name).ok_or(FrontMatterError::Kind(name));
        Ok(Self {
            description: field("description")?,
            name: field("name")?,
            short_description,
        })
    }
}

fn front_matter_text(text: &str) -> Option<String> {
    let mut lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines();
    if lines.next()?.trim() != FENCE {
        return None;
    }
    let mut matter = String::new();
    for line in lines {
        if line.trim() == FENCE {
            return Some(matter);
        }
        matter.push_str(line);
        matter.push('\n');
    }
    None
}

/// Delimits the front matter.
const FENCE: &str = "---";

/// Returns the text of a field: `Some(None)` if it is absent, `None` if it is not text.
fn text_field(members: &BTreeMap<String, YamlValue>, name: &str) -> Option<Option<String>> {
    match members.get(name) {
        None => Some(None),
        Some(value) if value.is_null() => Some(None),
        Some(YamlValue::Scalar(scalar)) => {
            let text = scalar.text.trim();
            Some((!text.is_empty()).then(|| text.to_owned()))
        }
        Some(YamlValue::List(_) | YamlValue::Map(_)) => None,
    }
}

/// Quotes unquoted values that YAML would reject, such as `description: use: with care`, with the
/// indented lines that continue them. A tab after a key becomes a space.
fn quote_values(matter: &str) -> String {
    let mut quoted = String::with_capacity(matter.len());
    let mut lines = matter.lines().peekable();
    while let Some(line) = lines.next() {
        let is_indented = |line: &&str| line.starts_with([' ', '\t']);
        match member(line) {
            Some((name, value)) => {
                let mut value = value.to_owned();
                if value.starts_with(char::is_alphanumeric) && !is_indented(&line) {
                    while let Some(more) = lines.next_if(is_indented) {
                        value.push(' ');
                        value.push_str(more.trim());
                    }
                }
                if needs_quotes(&value) {
                    let value = without_comment(&value).replace('\'', "''");
                    quoted.extend([name, ": '", &value, "'"]);
                } else {
                    quoted.extend([name, ": ", &value]);
                }
            }
            None => quoted.push_str(line),
        }
        quoted.push('\n');
    }
    quoted
}

/// Splits a line at the first colon that a space or tab follows.
fn member(line: &str) -> Option<(&str, &str)> {
    let colon = line
        .as_bytes()
        .windows(2)
        .position(|two| matches!(two, b": " | b":\t"))?;
    let (name, value) = line.split_at(colon);
    Some((name, value[1..].trim()))
}

fn needs_quotes(value: &str) -> bool {
    let is_marked = value.starts_with(['"', '\'', '|', '>']);
    !is_marked && (value.contains(": ") || value.starts_with(['[', '{', '`', '@']))
}

fn without_comment(value: &str) -> &str {
    value
        .split_once(" #")
        .map_or(value, |(value, _)| value.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<String>, Option<String>) {
        let found = FrontMatter::parse(text).unwrap_or_default();
        (found.name, found.description)
    }

    fn both(name: &str, description: &str) -> (Option<String>, Option<String>) {
        (Some(name.to_owned()), Some(description.to_owned()))
    }

    fn parse_matter(matter: &str) -> Result<FrontMatter, FrontMatterError> {
        FrontMatter::parse(&format!("---\n{matter}\n---\nbody"))
    }

    fn described(matter: &str) -> Option<String> {
        parse_matter(matter).ok()?.description
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
            assert_eq!(read(text), both("tidy", "keeps order: always"), "{text:?}");
        }
    }

    #[test]
    fn escapes_and_literal_blocks_are_decoded() {
        let text = "---\nname: 'it''s'\ndescription: \"a \\\"b\\\"\\nc\"\n---\n";
        assert_eq!(read(text), both("it's", "a \"b\"\nc"));
        let text = "---\nname: x\ndescription: |\n  one\n  two\n---\n";
        assert_eq!(read(text), both("x", "one\ntwo"));
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

    #[test]
    fn front_matter_has_name_and_descriptions() {
        let parsed = parse_matter("name: n\ndescription: d\nmetadata:\n  short-description: s");
        let expected = FrontMatter {
            name: Some("n".to_owned()),
            description: Some("d".to_owned()),
            short_description: Some("s".to_owned()),
        };
        assert_eq!(parsed, Ok(expected));
        let plain = parse_matter("name: 5\ndescription: true").unwrap();
        assert_eq!((plain.name, plain.description), both("5", "true"));
        for nameless in [
            "description: d",
            "name:\ndescription: d",
            "name: ''\ndescription: d",
        ] {
            assert_eq!(parse_matter(nameless).unwrap().name, None, "{nameless}");
        }
        for undescribed in ["name: n", "name: n\ndescription: ' '"] {
            assert_eq!(parse_matter(undescribed).unwrap().description, None);
        }
    }

    #[test]
    fn unquoted_values_are_accepted() {
        let read = [
            ("use: this", "use: this"),
            ("{a} b", "{a} b"),
            ("[a: b", "[a: b"),
            ("@foo", "@foo"),
            ("`x`", "`x`"),
            ("it's: x", "it's: x"),
            ("a: b # c: d", "a: b"),
            ("see #1: x", "see"),
        ];
        for (text, expected) in read {
            let found = described(&format!("description: {text}"));
            assert_eq!(found.as_deref(), Some(expected), "{text}");
        }
        assert_eq!(described("description:\ttab").as_deref(), Some("tab"));
        assert_eq!(described("description:\ta: b").as_deref(), Some("a: b"));
        for text in ["\"a\" b: c", "> x: y", "%foo", "*bold* x", "] x"] {
            assert_eq!(described(&format!("description: {text}")), None, "{text}");
        }
        assert_eq!(described("description: d\nother: [").as_deref(), Some("d"));
    }

    #[test]
    fn members_of_a_section_are_quoted_one_by_one() {
        let matter = "description: a: b\nmetadata: # more\n  other: x\n  short-description: c: d";
        let parsed = parse_matter(matter).unwrap();
        assert_eq!(parsed.description.as_deref(), Some("a: b"));
        assert_eq!(parsed.short_description.as_deref(), Some("c: d"));
    }

    #[test]
    fn missing_and_invalid_fields_are_reported() {
        let missing = [
            "",
            "hello",
            "---\nname: n\n",
            "\n---\ndescription: d\n---\n",
            "---x\n---\n",
        ];
        for text in missing {
            assert_eq!(
                FrontMatter::parse(text),
                Err(FrontMatterError::Missing),
                "{text}"
            );
        }
        assert_eq!(parse_matter("- a"), Err(FrontMatterError::NotYaml));
        assert_eq!(
            parse_matter("name: a\nname: b\ndescription: d"),
            Err(FrontMatterError::NotYaml)
        );
        assert_eq!(
            parse_matter("name: [a]\ndescription: d"),
            Err(FrontMatterError::Kind("name"))
        );
        let metadata = Err(FrontMatterError::Kind("metadata"));
        assert_eq!(parse_matter("description: d\nmetadata: x"), metadata);
        assert_eq!(
            parse_matter("description: d\nmetadata:\n  short-description: [a]"),
            metadata
        );
    }

    #[test]
    fn crlf_and_trailing_spaces_are_accepted() {
        let text = "--- \r\nname: n\r\ndescription: d\r\n---  \r\nbody";
        assert_eq!(read(text), both("n", "d"));
    }
}
