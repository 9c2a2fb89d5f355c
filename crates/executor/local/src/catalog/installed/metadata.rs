//! What `agents/openai.yaml` says of a skill: what it needs, and when it may be used.

use std::collections::BTreeMap;

use exec_wire::discovery::{SkillDependencies, SkillPolicy, SkillTool};

use super::{
    front_matter::line,
    yaml::{Scalar, Yaml},
};

/// What further describes a skill. A file that cannot be read says nothing.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Metadata {
    pub(super) dependencies: Option<SkillDependencies>,
    pub(super) policy: Option<SkillPolicy>,
}

type Members = BTreeMap<String, Yaml>;

impl Metadata {
    /// Reads it. One wrong value makes all of it wrong.
    pub(super) fn parse(text: &str) -> Self {
        let members = Yaml::parse(text).and_then(members);
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

/// Applies `read` to what is there: `Some(None)` if nothing is, `None` if it is wrong.
fn optional<T>(value: Option<&Yaml>, read: impl FnOnce(&Yaml) -> Option<T>) -> Option<Option<T>> {
    match value {
        Some(value) if !value.is_null() => read(value).map(Some),
        Some(_) | None => Some(None),
    }
}

fn members(value: Yaml) -> Option<Members> {
    match value {
        Yaml::Map(members) => Some(members),
        Yaml::Scalar(_) | Yaml::List(_) => None,
    }
}

fn as_map(value: &Yaml) -> Option<&Members> {
    match value {
        Yaml::Map(members) => Some(members),
        Yaml::Scalar(_) | Yaml::List(_) => None,
    }
}

fn as_list(value: &Yaml) -> Option<&[Yaml]> {
    match value {
        Yaml::List(values) => Some(values),
        Yaml::Scalar(_) | Yaml::Map(_) => None,
    }
}

/// What is shown of a skill is the client's business, but must be text.
fn interface(value: &Yaml) -> Option<()> {
    let interface = as_map(value)?;
    let is_text = |name: &str| line(interface, name).is_some();
    INTERFACE.iter().all(|name| is_text(name)).then_some(())
}

/// `Some(None)` if no tool is left.
fn dependencies(value: &Yaml) -> Option<Option<SkillDependencies>> {
    let tools = as_map(value)?.get("tools");
    let tools = optional(tools, |tools| as_list(tools)?.iter().map(tool).collect())?;
    let tools: Vec<Option<SkillTool>> = tools.unwrap_or_default();
    let tools: Vec<SkillTool> = tools.into_iter().flatten().collect();
    Some((!tools.is_empty()).then_some(SkillDependencies { tools }))
}

/// `Some(None)` if the tool is not said well enough to be named.
fn tool(value: &Yaml) -> Option<Option<SkillTool>> {
    let tool = as_map(value)?;
    let text = |name, most: usize| {
        let text = line(tool, name)?;
        Some(text.filter(|text| text.chars().count() <= most))
    };
    let (kind, value) = (text("type", MAX_WORD)?, text("value", MAX_TEXT)?);
    let (description, transport) = (text("description", MAX_TEXT)?, text("transport", MAX_WORD)?);
    let (command, url) = (text("command", MAX_TEXT)?, text("url", MAX_TEXT)?);
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

fn port(value: &Yaml) -> Option<Option<u16>> {
    let oauth = as_map(value)?;
    let port = oauth.get("callback_port").or(oauth.get("callbackPort"));
    optional(port, |port| match port {
        Yaml::Scalar(Scalar { text, plain: true }) => text.parse().ok(),
        Yaml::Scalar(_) | Yaml::List(_) | Yaml::Map(_) => None,
    })
}

fn policy(value: &Yaml) -> Option<SkillPolicy> {
    let policy = as_map(value)?;
    let allow = policy.get("allow_implicit_invocation");
    let products = policy.get("products");
    let products = optional(products, |all| as_list(all)?.iter().map(product).collect())?;
    Some(SkillPolicy {
        allow_implicit_invocation: optional(allow, truth)?,
        products: products.unwrap_or_default(),
    })
}

fn truth(value: &Yaml) -> Option<bool> {
    let Yaml::Scalar(Scalar { text, plain: true }) = value else {
        return None;
    };
    match text.as_str() {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

fn product(value: &Yaml) -> Option<String> {
    let Yaml::Scalar(scalar) = value else {
        return None;
    };
    let known = |name: &&str| *name == scalar.text || name.to_uppercase() == scalar.text;
    PRODUCTS
        .into_iter()
        .find(|name| known(name))
        .map(str::to_owned)
}

/// What may be said of how a skill is shown.
const INTERFACE: [&str; 6] = [
    "display_name",
    "short_description",
    "icon_small",
    "icon_large",
    "brand_color",
    "default_prompt",
];
/// The products that a skill may be for.
const PRODUCTS: [&str; 3] = ["chatgpt", "codex", "atlas"];
/// Longest type or transport of a tool: as the stock server.
const MAX_WORD: usize = 64;
/// Longest other text of a tool: as the stock server.
const MAX_TEXT: usize = 1024;

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
        let metadata = Metadata::parse(&format!("dependencies:\n  tools:\n{text}"));
        metadata.dependencies.map(|dependencies| dependencies.tools)
    }

    #[test]
    fn tools_are_read_member_by_member() {
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
    fn a_tool_that_is_not_named_is_left_out() {
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
    fn a_policy_says_when_and_where() {
        let policy = |text: &str| Metadata::parse(&format!("policy:{text}\n")).policy;
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
    fn one_wrong_value_makes_all_of_it_wrong() {
        let text = "policy: {}\ndependencies:\n  tools:\n    - type: m\n      value: v\n      \
                    oauth:\n        callback_port: x\n";
        assert_eq!(Metadata::parse(text), Metadata::default());
        for interface in ["5", "{display_name: [x]}"] {
            let text = format!("interface: {interface}\npolicy: {{}}\n");
            assert_eq!(Metadata::parse(&text), Metadata::default());
        }
        assert_eq!(Metadata::parse("bad: ["), Metadata::default());
        assert_eq!(Metadata::parse("[]"), Metadata::default());
    }
}
