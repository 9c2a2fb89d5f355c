//! Tests of precedence.

use super::*;

const FILE: &str = "/home/me/.codex/environments.toml";
const CONFIG: &str = "/home/me/.codex/config.toml";

fn at_home() -> SelectionFixture {
    SelectionFixture::default().variable("HOME", "/home/me")
}

#[test]
fn variable_selects_local_none_or_a_server() {
    for (value, selected) in [
        ("", local()),
        ("  ", local()),
        ("none", nowhere()),
        (" NoNe ", nowhere()),
        ("ws://127.0.0.1:9", remote("ws://127.0.0.1:9")),
        (" wss://box.example/x ", remote("wss://box.example/x")),
    ] {
        let fixture = at_home().variable("CODEX_EXEC_SERVER_URL", value);
        assert_eq!(fixture.find().unwrap(), selected, "{value:?}");
    }
    assert_eq!(at_home().find().unwrap(), local());
    assert_eq!(SelectionFixture::default().find().unwrap(), local());
}

#[test]
fn file_precedes_variable_and_variable_precedes_configuration() {
    let configured = at_home().file(CONFIG, "[exec_server]\nurl = 'ws://c:1'\n");
    assert_eq!(configured.find().unwrap(), remote("ws://c:1"));
    let named = configured.variable("CODEX_EXEC_SERVER_URL", "ws://v:1");
    assert_eq!(named.find().unwrap(), remote("ws://v:1"));
    let listed = named.file(FILE, "default = 'none'\ninclude_local = false\n");
    assert_eq!(listed.find().unwrap(), nowhere());
}

#[test]
fn empty_file_selects_this_machine_over_the_variable() {
    let fixture = at_home().variable("CODEX_EXEC_SERVER_URL", "ws://v:1");
    assert_eq!(fixture.file(FILE, "").find().unwrap(), local());
}

#[test]
fn empty_variable_falls_back_to_the_configuration() {
    let fixture = at_home().variable("CODEX_EXEC_SERVER_URL", "");
    let fixture = fixture.file(CONFIG, "[exec_server]\nurl = 'ws://c:1'\n");
    assert_eq!(fixture.find().unwrap(), remote("ws://c:1"));
}

#[test]
fn only_the_url_key_of_the_configuration_is_read() {
    for (text, selected) in [
        ("", local()),
        ("model = 'x'\n[other]\nurl = 3\n", local()),
        ("[exec_server]\n", local()),
        ("exec_server.url = ''\n", local()),
        ("exec_server.url = 'None'\n", nowhere()),
    ] {
        let fixture = at_home().file(CONFIG, text);
        assert_eq!(fixture.find().unwrap(), selected, "{text}");
    }
}

#[test]
fn codex_home_comes_from_the_variable_or_the_home_directory() {
    let text = "default = 'none'";
    let fixture = at_home().variable("CODEX_HOME", "/elsewhere");
    assert_eq!(fixture.find().unwrap(), local());
    let fixture = fixture.file("/elsewhere/environments.toml", text);
    assert_eq!(fixture.find().unwrap().default, None);
    let fixture = at_home().variable("CODEX_HOME", "").file(FILE, text);
    assert_eq!(fixture.find().unwrap().default, None);
}

#[test]
fn invalid_variable_is_an_error_without_fallback() {
    use std::os::unix::ffi::OsStringExt;

    let values = ["box", "http://box:1", "ws://user@box:1", "local"].map(OsString::from);
    let no_text = OsString::from_vec(b"ws://\xff:1".to_vec());
    for value in values.into_iter().chain([no_text]) {
        let fixture = at_home().variable("CODEX_EXEC_SERVER_URL", value.clone());
        let error = fixture.find().unwrap_err().to_string();
        assert!(
            error.contains("CODEX_EXEC_SERVER_URL"),
            "{value:?}: {error}"
        );
    }
}

#[test]
fn unreadable_file_is_an_error() {
    for path in [FILE, CONFIG] {
        let error = at_home().file(path, "unreadable").find().unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read `{path}`"));
    }
}

#[test]
fn configuration_errors_name_their_location() {
    for (text, expected) in [
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
        assert_eq!(error.to_string(), format!("{CONFIG}{expected}"));
    }
}

const OWN: &str = "/home/me/.config/exec-server/environments.toml";

#[test]
fn own_file_is_in_the_settings_directory() {
    let text = "default = 'none'";
    for (variable, value, path) in [
        ("HOME", "/home/me", OWN),
        (
            "XDG_CONFIG_HOME",
            "/xdg",
            "/xdg/exec-server/environments.toml",
        ),
        ("XDG_CONFIG_HOME", "relative", OWN),
        ("EXEC_SERVER_HOME", "/own", "/own/environments.toml"),
    ] {
        let fixture = at_home().variable(variable, value).file(path, text);
        assert_eq!(fixture.find().unwrap().default, None, "{variable}={value}");
    }
}

#[test]
fn own_file_overrides_codex_settings() {
    let own = "[[environments]]\nid = 'mine'\nurl = 'ws://m:1'\n\
               [[environments]]\nid = 'both'\nurl = 'ws://m:2'\n";
    let codex = "default = 'theirs'\ninclude_local = false\n\
                  [[environments]]\nid = 'theirs'\nurl = 'ws://t:1'\n\
                  [[environments]]\nid = 'both'\nurl = 'ws://t:2'\n";
    let summary = |selection: EnvironmentSelection| {
        let url = |remote: &RemoteEntry| match &remote.endpoint {
            EnvEndpoint::Url(url) => format!("{}={}", remote.id, url.url),
            endpoint @ (EnvEndpoint::Program(_)
            | EnvEndpoint::Relay(_)
            | EnvEndpoint::Target(_)) => panic!("{endpoint:?}"),
        };
        let urls: Vec<_> = selection.remotes.iter().map(url).collect();
        let default = selection.default.map(|id| id.to_string());
        (default.unwrap_or_default(), selection.local, urls.join(" "))
    };
    let both = at_home().file(OWN, own).file(FILE, codex).find().unwrap();
    let all = "mine=ws://m:1 both=ws://m:2 theirs=ws://t:1";
    assert_eq!(summary(both), ("theirs".to_owned(), false, all.to_owned()));
    let alone = at_home().file(OWN, own).find().unwrap();
    let own_remotes = "mine=ws://m:1 both=ws://m:2";
    assert_eq!(
        summary(alone),
        ("local".to_owned(), true, own_remotes.to_owned())
    );
    let variable = at_home().variable("CODEX_EXEC_SERVER_URL", "ws://v:1");
    let fixture = variable.file(OWN, "default = 'remote'\ninclude_local = true\n");
    let expected = ("remote".to_owned(), true, "remote=ws://v:1".to_owned());
    assert_eq!(summary(fixture.find().unwrap()), expected);
    for (text, expected_error) in [
        (
            "default = 'x'\n",
            ":1:11: `default`: no environment has the id `x`",
        ),
        ("includes = 1\n", ":1:1: `includes`: unknown key"),
    ] {
        let error = at_home().file(OWN, text).file(FILE, codex).find();
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{OWN}{expected_error}")),
            "{error}"
        );
    }
}

#[test]
fn foreign_keys_in_the_codex_file_are_found() {
    let text = "default = 'b'\n[[environments]]\nid = 'a'\nurl = 'ws://h'\n\
                [[environments]]\nid = 'b'\nregistry_url = 'https://h'\nauth_token = 'x'\n\
                [[environments]]\nprogram = 'p'\nauth_token_env = 'X'\n";
    let fixture = at_home().file(FILE, text);
    let inputs = SelectionInputs {
        lookup: &|name| fixture.variables.get(name).cloned(),
        read: &|path| fixture.read(path),
    };
    let keys: Vec<_> = foreign_keys(inputs)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        keys,
        [
            format!(
                "Codex refuses to start: it does not know `registry_url` in {FILE}:7; move the line \
                 `default` and the [[environments]] table of `b` to {OWN}"
            ),
            format!(
                "Codex refuses to start: it does not know `auth_token_env` in {FILE}:11; move that \
                 [[environments]] table to {OWN}"
            ),
        ]
    );
}
