//! Which setting decides.

use super::*;

const FILE: &str = "/home/me/.codex/environments.toml";
const CONFIG: &str = "/home/me/.codex/config.toml";

fn at_home() -> Scene {
    Scene::default().variable("HOME", "/home/me")
}

#[test]
fn the_variable_selects_here_nowhere_or_a_server() {
    for (value, selected) in [
        ("", local()),
        ("  ", local()),
        ("none", nowhere()),
        (" NoNe ", nowhere()),
        ("ws://127.0.0.1:9", remote("ws://127.0.0.1:9")),
        (" wss://box.example/x ", remote("wss://box.example/x")),
    ] {
        let scene = at_home().variable("CODEX_EXEC_SERVER_URL", value);
        assert_eq!(scene.find().unwrap(), selected, "{value:?}");
    }
    assert_eq!(at_home().find().unwrap(), local());
    assert_eq!(Scene::default().find().unwrap(), local());
}

#[test]
fn the_file_decides_before_the_variable_and_the_variable_before_the_configuration() {
    let configured = at_home().file(CONFIG, "[exec_server]\nurl = 'ws://c:1'\n");
    assert_eq!(configured.find().unwrap(), remote("ws://c:1"));
    let named = configured.variable("CODEX_EXEC_SERVER_URL", "ws://v:1");
    assert_eq!(named.find().unwrap(), remote("ws://v:1"));
    let listed = named.file(FILE, "default = 'none'\ninclude_local = false\n");
    assert_eq!(listed.find().unwrap(), nowhere());
}

#[test]
fn an_empty_file_selects_this_machine_whatever_the_variable_says() {
    let scene = at_home().variable("CODEX_EXEC_SERVER_URL", "ws://v:1");
    assert_eq!(scene.file(FILE, "").find().unwrap(), local());
}

#[test]
fn an_empty_variable_leaves_the_choice_to_the_configuration() {
    let scene = at_home().variable("CODEX_EXEC_SERVER_URL", "");
    let scene = scene.file(CONFIG, "[exec_server]\nurl = 'ws://c:1'\n");
    assert_eq!(scene.find().unwrap(), remote("ws://c:1"));
}

#[test]
fn of_the_configuration_only_the_key_counts() {
    for (text, selected) in [
        ("", local()),
        ("model = 'x'\n[other]\nurl = 3\n", local()),
        ("[exec_server]\n", local()),
        ("exec_server.url = ''\n", local()),
        ("exec_server.url = 'None'\n", nowhere()),
    ] {
        let scene = at_home().file(CONFIG, text);
        assert_eq!(scene.find().unwrap(), selected, "{text}");
    }
}

#[test]
fn the_codex_home_is_the_variables_or_below_the_accounts() {
    let text = "default = 'none'";
    let scene = at_home().variable("CODEX_HOME", "/elsewhere");
    assert_eq!(scene.find().unwrap(), local());
    let scene = scene.file("/elsewhere/environments.toml", text);
    assert_eq!(scene.find().unwrap().default, None);
    let scene = at_home().variable("CODEX_HOME", "").file(FILE, text);
    assert_eq!(scene.find().unwrap().default, None);
}

#[test]
fn a_wrong_variable_is_an_error_and_not_this_machine() {
    use std::os::unix::ffi::OsStringExt;

    let values = ["box", "http://box:1", "ws://user@box:1", "local"].map(OsString::from);
    let no_text = OsString::from_vec(b"ws://\xff:1".to_vec());
    for value in values.into_iter().chain([no_text]) {
        let scene = at_home().variable("CODEX_EXEC_SERVER_URL", value.clone());
        let error = scene.find().unwrap_err().to_string();
        assert!(
            error.contains("CODEX_EXEC_SERVER_URL"),
            "{value:?}: {error}"
        );
    }
}

#[test]
fn a_file_that_is_there_and_cannot_be_read_is_an_error() {
    for path in [FILE, CONFIG] {
        let error = at_home().file(path, "unreadable").find().unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read `{path}`"));
    }
}

#[test]
fn mistakes_in_the_configuration_are_told_with_their_place() {
    for (text, told) in [
        (
            "a = 1\n[exec_server]\nulr = 'ws://c:1'\n",
            ":3:1: `exec_server.ulr`: unknown key, expected one of url",
        ),
        (
            "exec_server = 'ws://c:1'\n",
            ":1:15: `exec_server`: expected a table",
        ),
        (
            "[exec_server]\n\nurl = 'box'\n",
            ":3:7: `exec_server.url`: expected ws://HOST:PORT or wss://HOST:PORT, \
             without user, password or fragment",
        ),
        (
            "[exec_server]\nurl = 8082\n",
            ":2:7: `exec_server.url`: expected a string",
        ),
    ] {
        let error = at_home().file(CONFIG, text).find().unwrap_err();
        assert_eq!(error.to_string(), format!("{CONFIG}{told}"));
    }
}
