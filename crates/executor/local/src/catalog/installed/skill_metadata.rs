//! Metadata of a skill beside its `SKILL.md`: the optional `agents/openai.yaml`.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use exec_env::yaml::{YamlScalar, YamlValue};
use exec_wire::discovery::{SkillDependencies, SkillPolicy, SkillTool};

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
        let file = YamlValue::parse(text);
        let members = file.as_ref().and_then(as_map);
        members.and_then(Self::from_members).unwrap_or_default()
    }

    fn from_members(file: &Members) -> Option<Self> {
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

/// Returns a field as one line of text: `Some(None)` if it is absent, `None` if it is not text.
fn text_line(members: &Members, name: &str) -> Option<Option<String>> {
    match members.get(name) {
        None => Some(None),
        Some(value) if value.is_null() => Some(None),
        Some(YamlValue::Scalar(scalar)) => {
            Some(Some(one_line(&scalar.text)).filter(|line| !line.is_empty()))
        }
        Some(YamlValue::List(_) | YamlValue::Map(_)) => None,
    }
}

/// Joins the words of a text with single spaces.
pub(super) fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}
