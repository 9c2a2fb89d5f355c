//! Metadata of a skill: the front matter of `SKILL.md` and the optional `agents/openai.yaml`.

use std::collections::BTreeMap;

use exec_wire::discovery::{SkillDependencies, SkillPolicy, SkillTool};

use super::yaml::{YamlScalar, YamlValue};

/// Dependencies and policy of a skill from `agents/openai.yaml`. An invalid file has no effect.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct SkillMetadata {
    pub(super) dependencies: Option<SkillDependencies>,
    pub(super) policy: Option<SkillPolicy>,
}

type Members = BTreeMap<String, YamlValue>;

impl SkillMetadata {
    /// Parses the file. One invalid value invalidates the whole file.
    pub(super) fn parse(text: &str) -> Self {
        let members = YamlValue::parse(text).and_then(members);
        members.as_ref().and_then(Self::of).unwrap_or_default()
    }

    fn of(file: &Members) -> Option<Self> {
        optional(file.get("interface"), interface)?;
        Some(Self {
            dependencies: optional(file.get("dependencies"), dependencies)?.flatten(),
            policy: optional(file.get("policy"), policy)?,
        })
    }
}

/// Applies `read` to a present value: `Some(None)` if it is absent, `None` if it is invalid.
fn optional<T>(
    value: Option<&YamlValue>,
    read: impl FnOnce(&YamlValue) -> Option<T>,
) -> Option<Option<T>> {
    match value {
        Some(value) if !value.is_null() => read(value).map(Some),
        Some(_) | None => Some(None),
    }
}

fn members(value: YamlValue) -> Option<Members> {
    match value {
        YamlValue::Map(members) => Some(members),
        YamlValue::Scalar(_) | YamlValue::List(_) => None,
    }
}

fn as_map(value: &YamlValue) -> Option<&Members> {
    match value {
        YamlValue::Map(members) => Some(members),
        YamlValue::Scalar(_) | YamlValue::List(_) => None,
    }
}

fn as_list(value: &YamlValue) -> Option<&[YamlValue]> {
    match value {
        YamlValue::List(values) => Some(values),
        YamlValue::Scalar(_) | YamlValue::Map(_) => None,
    }
}

/// Validates the display fields, which must be text. Clients interpret them.
fn interface(value: &YamlValue) -> Option<()> {
    let interface = as_map(value)?;
    let is_text = |name: &str| text_line(interface, name).is_some();
    INTERFACE.iter().all(|name| is_text(name)).then_some(())
}

/// Returns `Some(None)` if no tool remains.
fn dependencies(value: &YamlValue) -> Option<Option<SkillDependencies>> {
    let tools = as_map(value)?.get("tools");
    let tools = optional(tools, |tools| as_list(tools)?.iter().map(tool).collect())?;
    let tools: Vec<Option<SkillTool>> = tools.unwrap_or_default();
    let tools: Vec<SkillTool> = tools.into_iter().flatten().collect();
    Some((!tools.is_empty()).then_some(SkillDependencies { tools }))
}

/// Returns `Some(None)` if the tool has no type or value.
fn tool(value: &YamlValue) -> Option<Option<SkillTool>> {
    let tool = as_map(value)?;
    let text = |name, most: usize| {
        let text = text_line(tool, name)?;
        Some(text.filter(|text| text.chars().count() <= most))
    };
    let (kind, value) = (
        text("type", MAX_NAME_CHARS)?,
        text("value", MAX_TEXT_CHARS)?,
    );
    let (description, transport) = (
        text("description", MAX_TEXT_CHARS)?,
        text("transport", MAX_NAME_CHARS)?,
    );
    let (command, url) = (
        text("command", MAX_TEXT_CHARS)?,
        text("url", MAX_TEXT_CHARS)?,
    );
    let oauth_callback_port = optional(tool.get("oauth"), port)?.flatten();
    let (Some(kind), Some(value)) = (kind, value) else {
        return Some(None);
    };
    Some(Some(SkillTool {
        kind,
        value,
        description,
        transport,
        command,
        url,
        oauth_callback_port,
    }))
}

fn port(value: &YamlValue) -> Option<Option<u16>> {
    let oauth = as_map(value)?;
    let port = oauth.get("callback_port").or(oauth.get("callbackPort"));
    optional(port, |port| match port {
        YamlValue::Scalar(YamlScalar { text, plain: true }) => text.parse().ok(),
        YamlValue::Scalar(_) | YamlValue::List(_) | YamlValue::Map(_) => None,
    })
}

fn policy(value: &YamlValue) -> Option<SkillPolicy> {
    let policy = as_map(value)?;
    let allow = policy.get("allow_implicit_invocation");
    let products = policy.get("products");
    let products = optional(products, |all| as_list(all)?.iter().map(product).collect())?;
    Some(SkillPolicy {
        allow_implicit_invocation: optional(allow, parse_bool)?,
        products: products.unwrap_or_default(),
    })
}

fn parse_bool(value: &YamlValue) -> Option<bool> {
    let YamlValue::Scalar(YamlScalar { text, plain: true }) = value else {
        return None;
    };
    match text.as_str() {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

fn product(value: &YamlValue) -> Option<String> {
    let YamlValue::Scalar(scalar) = value else {
        return None;
    };
    let known = |name: &&str| *name == scalar.text || name.to_uppercase() == scalar.text;
    PRODUCTS
        .into_iter()
        .find(|name| known(name))
        .map(str::to_owned)
}

/// Display fields of a skill.
const INTERFACE: [&str; 6] = [
    "display_name",
    "short_description",
    "icon_small",
    "icon_large",
    "brand_color",
    "default_prompt",
];
/// Products that a skill can be limited to.
const PRODUCTS: [&str; 3] = ["chatgpt", "codex", "atlas"];
/// Maximum length of a tool's type or transport, as in the stock server.
const MAX_NAME_CHARS: usize = 64;
/// Maximum length of a tool's other texts, as in the stock server.
const MAX_TEXT_CHARS: usize = 1024;

/// Front matter of a `SKILL.md`, between its first two lines of dashes.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct FrontMatter {
    /// Absent: the skill is named after its directory.
    pub(super) name: Option<String>,
    pub(super) description: String,
    pub(super) short_description: Option<String>,
}

/// Why front matter is invalid. The author of the file must act.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum FrontMatterError {
    /// Caller: the opening or closing line is missing.
    #[error("it does not begin with front matter between two lines of `---`")]
    Missing,
    /// Caller: the front matter is not valid YAML.
    #[error("its front matter is not YAML")]
    NotYaml,
    /// Caller: a field has the wrong type.
    #[error("`{0}` in its front matter has the wrong type")]
    Kind(&'static str),
    /// Caller: the description is missing.
    #[error("its front matter has no description")]
    NoDescription,
}

impl FrontMatter {
    /// Parses the front matter of a file.
    pub(super) fn parse(text: &str) -> Result<Self, FrontMatterError> {
        let matter = between_dashes(text).ok_or(FrontMatterError::Missing)?;
        let yaml = YamlValue::parse(&matter).or_else(|| YamlValue::parse(&with_quotes(&matter)));
        let Some(YamlValue::Map(members)) = yaml else {
            return Err(FrontMatterError::NotYaml);
        };
        let short_description = match members.get("metadata") {
            Some(YamlValue::Map(metadata)) => text_line(metadata, "short-description")
                .ok_or(FrontMatterError::Kind("metadata"))?,
            Some(metadata) if !metadata.is_null() => {
                return Err(FrontMatterError::Kind("metadata"));
            }
            Some(_) | None => None,
        };
        let description = text_line(&members, "description");
        let description = description.ok_or(FrontMatterError::Kind("description"))?;
        Ok(Self {
            name: text_line(&members, "name").ok_or(FrontMatterError::Kind("name"))?,
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

/// Returns a field as one line of text: `Some(None)` if it is absent, `None` if it is not text.
fn text_line(members: &BTreeMap<String, YamlValue>, name: &str) -> Option<Option<String>> {
    match members.get(name) {
        None => Some(None),
        Some(value) if value.is_null() => Some(None),
        Some(YamlValue::Scalar(scalar)) => {
            let words: Vec<&str> = scalar.text.split_whitespace().collect();
            Some((!words.is_empty()).then(|| words.join(" ")))
        }
        Some(YamlValue::List(_) | YamlValue::Map(_)) => None,
    }
}

/// Quotes unquoted values that YAML would reject, such as `description: use: with care`. A tab
/// after a key becomes a space.
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

    fn tool(kind: &str, value: &str) -> SkillTool {
        SkillTool {
            kind: kind.to_owned(),
            value: value.to_owned(),
            description: None,
            transport: None,
            command: None,
            url: None,
            oauth_callback_port: None,
        }
    }

    fn tools(text: &str) -> Option<Vec<SkillTool>> {
        let metadata = SkillMetadata::parse(&format!("dependencies:\n  tools:\n{text}"));
        metadata.dependencies.map(|dependencies| dependencies.tools)
    }

    #[test]
    fn all_tool_fields_are_parsed() {
        let text = "    - type: ' mcp '\n      value: a  b\n      description: d\n      \
                transport: t\n      command: c\n      url: http://x\n      oauth:\n        \
                callback_port: 80\n";
        let expected = SkillTool {
            description: Some("d".to_owned()),
            transport: Some("t".to_owned()),
            command: Some("c".to_owned()),
            url: Some("http://x".to_owned()),
            oauth_callback_port: Some(80),
            ..tool("mcp", "a b")
        };
        assert_eq!(tools(text), Some(vec![expected]));
    }

    #[test]
    fn tool_without_type_or_value_is_omitted() {
        let text = "    - value: x\n    - type: x\n    - {type: m, value: ok, url: ''}\n";
        assert_eq!(tools(text), Some(vec![tool("m", "ok")]));
        assert_eq!(tools("    - value: x\n"), None);
        assert_eq!(
            tools(&format!("    - {{type: m, value: {}}}\n", "v".repeat(1025))),
            None
        );
        let long = format!("    - {{type: m, value: v, url: {}}}\n", "v".repeat(1025));
        assert_eq!(tools(&long), Some(vec![tool("m", "v")]));
    }

    #[test]
    fn skill_policy_is_parsed() {
        let policy = |text: &str| SkillMetadata::parse(&format!("policy:{text}\n")).policy;
        let expected = |allow, products: &[&str]| {
            Some(SkillPolicy {
                allow_implicit_invocation: allow,
                products: products.iter().map(|&name| name.to_owned()).collect(),
            })
        };
        assert_eq!(policy(""), None);
        assert_eq!(policy(" {}"), expected(None, &[]));
        assert_eq!(
            policy("\n  allow_implicit_invocation: false"),
            expected(Some(false), &[])
        );
        assert_eq!(
            policy("\n  products: [CODEX, atlas]"),
            expected(None, &["codex", "atlas"])
        );
        for wrong in [
            " 5",
            "\n  products: [Codex]",
            "\n  allow_implicit_invocation: \"true\"",
        ] {
            assert_eq!(policy(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn one_invalid_value_invalidates_the_whole_file() {
        let text = "policy: {}\ndependencies:\n  tools:\n    - type: m\n      value: v\n      \
                oauth:\n        callback_port: x\n";
        assert_eq!(SkillMetadata::parse(text), SkillMetadata::default());
        for interface in ["5", "{display_name: [x]}"] {
            let text = format!("interface: {interface}\npolicy: {{}}\n");
            assert_eq!(SkillMetadata::parse(&text), SkillMetadata::default());
        }
        assert_eq!(SkillMetadata::parse("bad: ["), SkillMetadata::default());
        assert_eq!(SkillMetadata::parse("[]"), SkillMetadata::default());
    }

    fn of(matter: &str) -> Result<FrontMatter, FrontMatterError> {
        FrontMatter::parse(&format!("---\n{matter}\n---\nbody"))
    }

    fn described(matter: &str) -> Option<String> {
        of(matter).ok().map(|matter| matter.description)
    }

    #[test]
    fn front_matter_has_name_and_descriptions() {
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
    fn multi_line_text_becomes_one_line() {
        for text in [">\n  a\n  b", "|\n\n  a\n\n  b", "a\n  b", "\" a \\n b \""] {
            assert_eq!(
                described(&format!("description: {text}")).as_deref(),
                Some("a b")
            );
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
    fn crlf_and_trailing_spaces_are_accepted() {
        let text = "--- \r\nname: n\r\ndescription: d\r\n---  \r\nbody";
        assert_eq!(FrontMatter::parse(text).unwrap().description, "d");
    }
}
