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
