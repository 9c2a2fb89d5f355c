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

fn parse_matter(matter: &str) -> Result<FrontMatter, FrontMatterError> {
    FrontMatter::parse(&format!("---\n{matter}\n---\nbody"))
}

fn described(matter: &str) -> Option<String> {
    parse_matter(matter).ok().map(|matter| matter.description)
}

#[test]
fn front_matter_has_name_and_descriptions() {
    let parsed = parse_matter("name: n\ndescription: d\nmetadata:\n  short-description: s");
    let expected = FrontMatter {
        name: Some("n".to_owned()),
        description: "d".to_owned(),
        short_description: Some("s".to_owned()),
    };
    assert_eq!(parsed, Ok(expected));
    let plain = parse_matter("name: 5\ndescription: true").unwrap();
    assert_eq!(
        (plain.name.as_deref(), &*plain.description),
        (Some("5"), "true")
    );
    for nameless in [
        "description: d",
        "name:\ndescription: d",
        "name: ''\ndescription: d",
    ] {
        assert_eq!(parse_matter(nameless).unwrap().name, None, "{nameless}");
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
    assert_eq!(
        parse_matter("name: n"),
        Err(FrontMatterError::NoDescription)
    );
    assert_eq!(
        parse_matter("description: ''"),
        Err(FrontMatterError::NoDescription)
    );
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
    assert_eq!(FrontMatter::parse(text).unwrap().description, "d");
}
