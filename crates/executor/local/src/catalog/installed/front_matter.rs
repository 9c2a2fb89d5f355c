//! What a `SKILL.md` says of itself, between the two lines of dashes it begins with.

use std::collections::BTreeMap;

use super::yaml::Yaml;

/// What front matter says.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct FrontMatter {
    /// None: the skill has the name of its directory.
    pub(super) name: Option<String>,
    pub(super) description: String,
    pub(super) short_description: Option<String>,
}

/// Why a file has none. Its author must act.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum FrontMatterError {
    /// Caller: the first line or the last is missing.
    #[error("it does not begin with front matter between two lines of `---`")]
    Missing,
    /// Caller: it cannot be read.
    #[error("its front matter is not YAML")]
    NotYaml,
    /// Caller: something is of the wrong kind.
    #[error("`{0}` in its front matter is not what it must be")]
    Kind(&'static str),
    /// Caller: nothing says what it is for.
    #[error("its front matter has no description")]
    NoDescription,
}

impl FrontMatter {
    /// Reads it from the whole text of a file.
    pub(super) fn parse(text: &str) -> Result<Self, FrontMatterError> {
        let matter = between_dashes(text).ok_or(FrontMatterError::Missing)?;
        let yaml = Yaml::parse(&matter).or_else(|| Yaml::parse(&with_quotes(&matter)));
        let Some(Yaml::Map(members)) = yaml else {
            return Err(FrontMatterError::NotYaml);
        };
        let short_description = match members.get("metadata") {
            Some(Yaml::Map(metadata)) => {
                line(metadata, "short-description").ok_or(FrontMatterError::Kind("metadata"))?
            }
            Some(metadata) if !metadata.is_null() => {
                return Err(FrontMatterError::Kind("metadata"));
            }
            Some(_) | None => None,
        };
        let description = line(&members, "description");
        let description = description.ok_or(FrontMatterError::Kind("description"))?;
        Ok(Self {
            name: line(&members, "name").ok_or(FrontMatterError::Kind("name"))?,
            description: description.ok_or(FrontMatterError::NoDescription)?,
            short_description,
        })
    }
}

fn between_dashes(text: &str) -> Option<String> {
    let mut lines = text.lines();
    if lines.next()?.trim() != "---" {
        return None;
    }
    let mut matter = String::new();
    for line in lines {
        if line.trim() == "---" {
            return Some(matter);
        }
        matter.push_str(line);
        matter.push('\n');
    }
    None
}

/// Returns a member as one line of text: `Some(None)` if there is none, `None` if it is no text.
pub(super) fn line(members: &BTreeMap<String, Yaml>, name: &str) -> Option<Option<String>> {
    match members.get(name) {
        None => Some(None),
        Some(value) if value.is_null() => Some(None),
        Some(Yaml::Scalar(scalar)) => {
            let words: Vec<&str> = scalar.text.split_whitespace().collect();
            Some((!words.is_empty()).then(|| words.join(" ")))
        }
        Some(Yaml::List(_) | Yaml::Map(_)) => None,
    }
}

/// Quotes what people write without quotes and YAML cannot read so: `description: use: with care`. A tab
/// after a name becomes a space.
fn with_quotes(matter: &str) -> String {
    let mut quoted = String::with_capacity(matter.len());
    for line in matter.lines() {
        match member(line) {
            Some((name, value)) if needs_quotes(value) => {
                let value = without_comment(value).replace('\'', "''");
                quoted.extend([name, ": '", &value, "'"]);
            }
            Some((name, value)) => quoted.extend([name, ": ", value]),
            None => quoted.push_str(line),
        }
        quoted.push('\n');
    }
    quoted
}

/// Splits a line at the first colon with a space or a tab behind it.
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

    fn of(matter: &str) -> Result<FrontMatter, FrontMatterError> {
        FrontMatter::parse(&format!("---\n{matter}\n---\nbody"))
    }

    fn described(matter: &str) -> Option<String> {
        of(matter).ok().map(|matter| matter.description)
    }

    #[test]
    fn a_skill_says_its_name_and_what_it_is_for() {
        let matter = of("name: n\ndescription: d\nmetadata:\n  short-description: s");
        let expected = FrontMatter {
            name: Some("n".to_owned()),
            description: "d".to_owned(),
            short_description: Some("s".to_owned()),
        };
        assert_eq!(matter, Ok(expected));
        let plain = of("name: 5\ndescription: true").unwrap();
        assert_eq!(
            (plain.name.as_deref(), &*plain.description),
            (Some("5"), "true")
        );
        for nameless in [
            "description: d",
            "name:\ndescription: d",
            "name: ''\ndescription: d",
        ] {
            assert_eq!(of(nameless).unwrap().name, None, "{nameless}");
        }
    }

    #[test]
    fn text_of_many_lines_becomes_one() {
        for text in [">\n  a\n  b", "|\n\n  a\n\n  b", "a\n  b", "\" a \\n b \""] {
            assert_eq!(
                described(&format!("description: {text}")).as_deref(),
                Some("a b")
            );
        }
    }

    #[test]
    fn what_people_forget_to_quote_is_read() {
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
    fn what_is_missing_or_wrong_is_named() {
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
        assert_eq!(of("name: n"), Err(FrontMatterError::NoDescription));
        assert_eq!(of("description: ''"), Err(FrontMatterError::NoDescription));
        assert_eq!(of("- a"), Err(FrontMatterError::NotYaml));
        assert_eq!(
            of("name: a\nname: b\ndescription: d"),
            Err(FrontMatterError::NotYaml)
        );
        assert_eq!(
            of("name: [a]\ndescription: d"),
            Err(FrontMatterError::Kind("name"))
        );
        let metadata = Err(FrontMatterError::Kind("metadata"));
        assert_eq!(of("description: d\nmetadata: x"), metadata);
        assert_eq!(
            of("description: d\nmetadata:\n  short-description: [a]"),
            metadata
        );
    }

    #[test]
    fn line_ends_and_spaces_after_dashes_do_not_matter() {
        let text = "--- \r\nname: n\r\ndescription: d\r\n---  \r\nbody";
        assert_eq!(FrontMatter::parse(text).unwrap().description, "d");
    }
}
