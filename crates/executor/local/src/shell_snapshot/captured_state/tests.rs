use exec_wire::process::EnvInherit;

use super::*;

#[test]
fn scripts_print_the_markers_of_the_parser() {
    for kind in [ShellKind::Bash, ShellKind::Zsh, ShellKind::Sh] {
        let argv = capture_argv(kind, "/bin/shell");
        assert_eq!(argv[..2], ["/bin/shell", "-lc"]);
        for marker in [EXPORTS, RESTORE, END] {
            let name = str::from_utf8(marker).unwrap().trim_matches('\0');
            let printed = format!(r"printf '\000{name}\000'");
            assert_eq!(argv[2].matches(&printed).count(), 1, "{kind:?} {name}");
        }
    }
}

#[test]
fn state_is_parsed_between_unrelated_output() {
    let stdout = printed(
        b"Welcome\0!\n",
        b"A=1\0B=x\ny=z\0C=\0",
        b"alias a='b'\n",
        b"\nbye",
    );
    let expected = CapturedState {
        exports: [("A", "1"), ("B", "x\ny=z"), ("C", "")]
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        restore: b"alias a='b'\n".to_vec(),
    };
    assert_eq!(parse_capture(&stdout), Some(expected));
}

#[test]
fn non_utf8_bytes_are_preserved() {
    let state = parse_capture(&printed(b"", b"A=\xff\xfe\0", b"f () { \xff; }", b"")).unwrap();
    assert_eq!(
        state.exports[&OsString::from("A")],
        OsString::from_vec(vec![0xff, 0xfe])
    );
    assert_eq!(state.restore, b"f () { \xff; }");
}

#[test]
fn malformed_variables_are_skipped() {
    let state = parse_capture(&printed(b"", b"A=1\0nonsense\0=x\0\0", b"", b"")).unwrap();
    assert_eq!(state.exports.len(), 1);
}

#[test]
fn incomplete_capture_fails() {
    let whole = printed(b"", b"A=1\0", b"x", b"");
    for length in 0..whole.len() {
        assert_eq!(parse_capture(&whole[..length]), None, "{length} bytes");
    }
    assert_eq!(
        parse_capture(&printed(b"", b"", b"x", b"")),
        None,
        "no variables"
    );
}

#[test]
fn capture_beyond_the_size_limit_fails() {
    let frame = printed(b"", b"A=1\0", b"", b"").len();
    let fits = vec![b'#'; MAX_CAPTURE_BYTES - frame];
    assert!(parse_capture(&printed(&fits, b"A=1\0", b"", b"")).is_some());
    assert_eq!(parse_capture(&printed(&fits, b"A=1\0", b"#", b"")), None);
}

#[test]
fn debug_output_hides_values() {
    let state = parse_capture(&printed(b"", b"API_KEY=hunter2\0", b"", b"")).unwrap();
    assert!(!format!("{state:?}").contains("hunter2"));
}

fn printed(before: &[u8], exports: &[u8], restore: &[u8], after: &[u8]) -> Vec<u8> {
    [before, EXPORTS, exports, RESTORE, restore, END, after].concat()
}

#[test]
fn rewritten_command_has_shell_flags_and_keeps_its_arguments() {
    let argv = ["/bin/x", "-lc", "echo 'a b'", "zero", "one"].map(str::to_owned);
    let bash = format!("{{ builtin . /dev/fd/9; exec 9<&-; }} >/dev/null 2>&1; {EVAL_LAST}");
    let bash = bash.as_str();
    let sh = r#"{ command . /dev/fd/9; exec 9<&-; } >/dev/null 2>&1; eval "\shift; $1""#;
    for (kind, flags, script) in [
        (ShellKind::Bash, "-pc", bash),
        (ShellKind::Zsh, "-fc", bash),
        (ShellKind::Sh, "-c", sh),
    ] {
        let bare = rewrite_command(kind, &argv[..3], 9);
        assert_eq!(bare, ["/bin/x", flags, script, "/bin/x", "echo 'a b'"]);
        let full = rewrite_command(kind, &argv, 9);
        assert_eq!(full, ["/bin/x", flags, script, "zero", "echo 'a b'", "one"]);
    }
}

#[test]
fn argv_without_a_command_is_unchanged() {
    let argv = ["/bin/x", "-lc"].map(str::to_owned);
    assert_eq!(rewrite_command(ShellKind::Bash, &argv, 9), argv);
}

#[test]
fn request_variables_override_captured_ones() {
    let captured = state(&[
        ("A", "profile"),
        ("B", "profile"),
        ("PWD", "/x"),
        ("SHLVL", "7"),
    ]);
    let overlay = BTreeMap::from([("B".to_owned(), "request".to_owned())]);
    let environment = replayed(ShellKind::Sh, &captured, None, &overlay);
    assert_eq!(environment, os(&[("A", "profile"), ("B", "request")]));
}

#[test]
fn policy_filters_captured_variables_regardless_of_inherit() {
    let captured = state(&[("A", "1"), ("MY_TOKEN", "t"), ("B", "1"), ("NVM_DIR", "n")]);
    let policy = EnvPolicy {
        inherit: EnvInherit::None,
        ignore_default_excludes: false,
        exclude: vec!["B".to_owned()],
        set: [("CI".to_owned(), "1".to_owned())].into(),
        include_only: Vec::new(),
    };
    let environment = replayed(ShellKind::Zsh, &captured, Some(&policy), &BTreeMap::new());
    assert_eq!(
        environment,
        os(&[("A", "1"), ("CI", "1"), ("NVM_DIR", "n")])
    );
}

#[test]
fn only_per_run_variables_come_from_the_host() {
    let captured = state(&[
        ("A", "1"),
        ("SHLVL", "3"),
        ("OPENAI_IDENTITY_TOKEN_FILE", "f"),
    ]);
    let policy = EnvPolicy {
        inherit: EnvInherit::All,
        ignore_default_excludes: true,
        exclude: Vec::new(),
        set: BTreeMap::new(),
        include_only: Vec::new(),
    };
    let environment = replayed(ShellKind::Bash, &captured, Some(&policy), &BTreeMap::new());
    assert_eq!(environment, os(&[("A", "1"), ("SHLVL", "2")]));
}

#[test]
fn exported_functions_reach_bash_only_through_the_state() {
    let function = ("BASH_FUNC_f%%", "() { :; }");
    let captured = state(&[function]);
    assert_eq!(
        replayed(ShellKind::Bash, &captured, None, &BTreeMap::new()),
        os(&[])
    );
    assert_eq!(
        replayed(ShellKind::Zsh, &captured, None, &BTreeMap::new()),
        os(&[function])
    );
}

fn replayed(
    kind: ShellKind,
    captured: &CapturedState,
    policy: Option<&EnvPolicy>,
    overlay: &BTreeMap<String, String>,
) -> BTreeMap<OsString, OsString> {
    let host = os(&[("SHLVL", "2"), ("UNSET_BY_PROFILE", "1")]);
    replay_environment(
        kind,
        captured,
        policy,
        &host,
        overlay,
        &ProcessMetadata::default(),
    )
}

fn state(exports: &[(&str, &str)]) -> CapturedState {
    CapturedState {
        exports: os(exports),
        restore: Vec::new(),
    }
}

fn os(pairs: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
    pairs
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}
