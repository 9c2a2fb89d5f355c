use proptest::prelude::*;

use super::*;

#[test]
fn without_a_policy_only_request_variables_are_set() {
    let host = os([("PATH", "/bin"), ("HOME", "/home/a")]);
    let environment = child_environment(
        &host,
        None,
        &pairs([("A", "1")]),
        &ProcessMetadata::default(),
    );
    assert_eq!(environment, os([("A", "1")]));
}

#[test]
fn policy_steps_apply_in_order() {
    let host = os([
        ("PATH", "/bin"),
        ("Home", "/home/a"),
        ("LC_CTYPE", "C"),
        ("EDITOR", "vi"),
        ("aws_region", "x"),
        ("API_KEY", "k"),
        ("MyTokenFile", "t"),
        ("CLIENT_SECRET", "s"),
    ]);
    let all = policy(EnvInherit::All);
    let cases: [(&str, EnvPolicy, &[&str]); 9] = [
        (
            "all, without what looks secret",
            all.clone(),
            &["EDITOR", "Home", "LC_CTYPE", "PATH", "aws_region"],
        ),
        ("none", policy(EnvInherit::None), &[]),
        (
            "core, in any case",
            policy(EnvInherit::Core),
            &["Home", "LC_CTYPE", "PATH"],
        ),
        (
            "secrets on demand",
            EnvPolicy {
                ignore_default_excludes: true,
                ..all.clone()
            },
            &[
                "API_KEY",
                "CLIENT_SECRET",
                "EDITOR",
                "Home",
                "LC_CTYPE",
                "MyTokenFile",
                "PATH",
                "aws_region",
            ],
        ),
        (
            "exclude",
            EnvPolicy {
                exclude: names(["AWS_*", "?ATH"]),
                ..all.clone()
            },
            &["EDITOR", "Home", "LC_CTYPE"],
        ),
        (
            "set brings back what was excluded",
            EnvPolicy {
                exclude: names(["*"]),
                set: pairs([("API_KEY", "new"), ("CI", "1")]),
                ..all.clone()
            },
            &["API_KEY", "CI"],
        ),
        (
            "includeOnly comes after set",
            EnvPolicy {
                set: pairs([("CI", "1"), ("PATHS", "p")]),
                include_only: names(["path*", "home"]),
                ..all.clone()
            },
            &["Home", "PATH", "PATHS"],
        ),
        (
            "includeOnly does not bring back what was excluded",
            EnvPolicy {
                include_only: names(["API_KEY", "PATH"]),
                ..all.clone()
            },
            &["PATH"],
        ),
        (
            "non-inheritable names are dropped even if set",
            EnvPolicy {
                set: pairs([("openai_identity_token_file", "f")]),
                ..policy(EnvInherit::None)
            },
            &[],
        ),
    ];
    for (case, policy, expected) in cases {
        let environment = child_environment(
            &host,
            Some(&policy),
            &BTreeMap::new(),
            &ProcessMetadata::default(),
        );
        let names: Vec<_> = environment
            .keys()
            .map(|name| name.to_str().unwrap())
            .collect();
        assert_eq!(names, expected, "{case}");
    }
}

#[test]
fn request_variables_override_and_are_not_filtered() {
    let host = os([("PATH", "/bin"), ("LANG", "C")]);
    let policy = EnvPolicy {
        set: pairs([("LANG", "D")]),
        ..policy(EnvInherit::Core)
    };
    let overlay = pairs([("LANG", "E"), ("API_KEY", "k")]);
    assert_eq!(
        child_environment(&host, Some(&policy), &overlay, &ProcessMetadata::default()),
        os([("PATH", "/bin"), ("LANG", "E"), ("API_KEY", "k")])
    );
}

#[test]
fn metadata_overrides_request_variables() {
    let overlay = pairs([("CODEX_THREAD_ID", "old"), ("CODEX_TOOL_CALL_ID", "kept")]);
    let metadata = ProcessMetadata {
        thread_id: Some("new".to_owned()),
        tool_call_id: None,
    };
    assert_eq!(
        child_environment(&BTreeMap::new(), None, &overlay, &metadata),
        os([("CODEX_THREAD_ID", "new"), ("CODEX_TOOL_CALL_ID", "kept")])
    );
}

#[test]
fn non_inheritable_names_are_removed_even_when_requested() {
    let overlay = pairs([
        ("NODE_REPL_AUTH_TOKEN", "t"),
        ("EXEC_SERVER_REMOTE_TOKEN", "t"),
        ("Exec_Server_Hub_Token", "t"),
        ("openai_federation_rule_id", "r"),
        ("OPENAI_WORKLOAD_IDENTITY_CONTEXT", "c"),
        ("Codex_Exec_Server_Noise_Auth_Token", "n"),
        ("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "1"),
        ("codex_exec_server_exit_on_stdin_close", "stays"),
    ]);
    assert_eq!(
        child_environment(
            &BTreeMap::new(),
            None,
            &overlay,
            &ProcessMetadata::default()
        ),
        os([("codex_exec_server_exit_on_stdin_close", "stays")])
    );
}

#[test]
fn patterns_match_whole_names_case_insensitively() {
    let cases = [
        ("", "", true),
        ("*", "", true),
        ("?", "", false),
        ("A", "AB", false),
        ("B", "AB", false),
        ("a?c", "ABC", true),
        ("*KEY*", "my_key", true),
        ("*a*b", "aab_b", true),
        ("*a*b", "aab_c", false),
        ("a**c", "abc", true),
        ("?", "é", true),
        ("É*", "été", true),
        ("[A]", "A", false),
    ];
    for (pattern, name, expected) in cases {
        assert_eq!(
            matches(pattern, name),
            expected,
            "{pattern:?} against {name:?}"
        );
    }
}

#[test]
fn many_stars_match_in_bounded_time() {
    assert!(!matches(&"*a".repeat(2_000), &"a".repeat(1_999)));
    assert!(!matches(
        &format!("{}b", "a*".repeat(100)),
        &"a".repeat(10_000)
    ));
}

proptest! {
    #[test]
    fn matcher_agrees_with_a_naive_matcher(
        pattern in "[abAB*?é]{0,8}",
        name in "[abABÉé]{0,10}",
    ) {
        let (p, n): (Vec<_>, Vec<_>) = (pattern.chars().collect(), name.chars().collect());
        prop_assert_eq!(matches(&pattern, &name), naive(&p, &n));
    }
}

fn naive(pattern: &[char], name: &[char]) -> bool {
    match (pattern, name) {
        ([], _) => name.is_empty(),
        (['*', rest @ ..], _) => (0..=name.len()).any(|taken| naive(rest, &name[taken..])),
        (_, []) => false,
        ([expected, rest @ ..], [found, others @ ..]) => {
            let same = expected.to_lowercase().to_string() == found.to_lowercase().to_string();
            (*expected == '?' || same) && naive(rest, others)
        }
    }
}

fn policy(inherit: EnvInherit) -> EnvPolicy {
    EnvPolicy {
        inherit,
        ignore_default_excludes: false,
        exclude: Vec::new(),
        set: BTreeMap::new(),
        include_only: Vec::new(),
    }
}

fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

fn os<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<OsString, OsString> {
    pairs
        .map(|(name, value)| (name.into(), value.into()))
        .into()
}
