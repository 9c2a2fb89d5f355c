//! Tests that every error has file, line, column and key.

use super::*;

const URL: &str = "[[environments]]\nid = 'a'\nurl = 'ws://h:1'\n";
const PROGRAM: &str = "[[environments]]\nid = 'a'\nprogram = 'p'\n";
const KEYS: &str = "unknown key, expected one of id, url, auth_bearer_token, connect_timeout_sec, \
                    initialize_timeout_sec, program, args, env, cwd, target, registry_url, \
                    environment_id, auth_token, auth_token_env, auth_token_file, skills";
const SECONDS: &str = "expected seconds from 0 to 3162240000, such as 30 or 0.5";
const WEBSOCKET: &str =
    "expected ws://HOST:PORT or wss://HOST:PORT, without user, password or fragment";

/// Parses `text` and compares the error.
#[track_caller]
fn refused(text: &str, line: usize, column: usize, key: &str, fault: &str) {
    let error = SelectionFixture::default().parse(text).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("/codex/environments.toml:{line}:{column}: `{key}`: {fault}"),
        "{text}"
    );
    assert!(!error.to_string().contains("s3cret"), "{error}");
}

#[test]
fn unknown_keys_are_refused_in_every_table() {
    let head = "unknown key, expected one of default, include_local, environments";
    refused("defualt = 'a'\n", 1, 1, "defualt", head);
    refused(
        "default = 'none'\n[environment]\n",
        2,
        2,
        "environment",
        head,
    );
    refused(&format!("{URL}ulr = 1\n"), 4, 1, "environments.ulr", KEYS);
    let skills = format!("{URL}[environments.skills]\nwanted = []\n");
    let known = "unknown key, expected one of required";
    refused(&skills, 5, 1, "environments.skills.wanted", known);
    let first = format!("\n# comment\n{URL}z = 1\n  b = 2\n");
    refused(&first, 6, 1, "environments.z", KEYS);
}

#[test]
fn invalid_toml_is_rejected_at_the_error_position() {
    refused(
        "default = 'a'\ndefault = 'b'\n",
        2,
        1,
        "default",
        "duplicate key",
    );
    let twice = format!("{URL}url = 'ws://h:2'\n");
    refused(&twice, 4, 1, "url", "duplicate key");
    let header = format!("{URL}[environments.skills]\n[environments.skills]\n");
    refused(&header, 5, 15, "environments.skills", "duplicate key");
    for text in ["auth_bearer_token = s3cret", "a = '''\ns3cret"] {
        let error = SelectionFixture::default().parse(text).unwrap_err();
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}

#[test]
fn values_of_another_kind_are_refused() {
    for (text, column, key, kind) in [
        ("default = 1", 11, "default", "a string"),
        (
            "include_local = 'yes'",
            17,
            "include_local",
            "true or false",
        ),
        ("environments = 'a'", 16, "environments", "an array"),
        ("environments = ['a']", 17, "environments", "a table"),
        ("environments = {}", 16, "environments", "an array"),
    ] {
        refused(text, 1, column, key, &format!("expected {kind}"));
    }
    for (base, value, column, kind) in [
        (PROGRAM, "args = 'a'", 8, "an array"),
        (PROGRAM, "args = ['a', 2]", 14, "a string"),
        (PROGRAM, "env = ['A=1']", 7, "a table"),
        (PROGRAM, "cwd = ''", 7, "a string that is not empty"),
        (PROGRAM, "skills = 'a'", 10, "a table"),
        (
            PROGRAM,
            "initialize_timeout_sec = '9'",
            26,
            "a number of seconds",
        ),
        (URL, "connect_timeout_sec = true", 23, "a number of seconds"),
        (URL, "auth_bearer_token = 3", 21, ""),
    ] {
        let key = value.split(' ').next().unwrap();
        let key = format!("environments.{key}");
        let fault = match kind {
            "" => "a token needs a wss:// URL or one of this machine, or others can read it".into(),
            kind => format!("expected {kind}"),
        };
        refused(&format!("{base}{value}\n"), 4, column, &key, &fault);
    }
    let env = format!("{PROGRAM}env = {{ A = '1', B = 2 }}\n");
    refused(&env, 4, 22, "environments.env.B", "expected a string");
    let required = format!("{URL}[environments.skills]\nrequired = [\n  'a',\n  '',\n]\n");
    let key = "environments.skills.required";
    refused(&required, 7, 3, key, "expected a string that is not empty");
}

#[test]
fn missing_reserved_malformed_and_duplicate_ids_are_rejected() {
    let nameless = "\n[[environments]]\nurl = 'ws://h:1'\n";
    refused(nameless, 2, 1, "environments.id", "missing key");
    let long = "x".repeat(65);
    for (id, fault) in [
        ("", "id has 0 bytes, not 1 to 64"),
        (&long, "id has 65 bytes, not 1 to 64"),
        (
            "a b",
            "id holds ' ': only letters, digits, `_` and `-` are allowed",
        ),
        (
            "a.b",
            "id holds '.': only letters, digits, `_` and `-` are allowed",
        ),
        (
            "ä",
            "id holds 'ä': only letters, digits, `_` and `-` are allowed",
        ),
        ("local", "id `local` is reserved"),
        ("none", "id `none` is reserved"),
    ] {
        let text = format!("[[environments]]\nid = '{id}'\nurl = 'ws://h:1'\n");
        let fault = format!("environment {fault}");
        refused(&text, 2, 6, "environments.id", &fault);
    }
    let taken = "`a` is already the id of the environment in line 2";
    refused(&format!("{URL}{PROGRAM}"), 5, 6, "environments.id", taken);
}

#[test]
fn environment_requires_exactly_one_way_to_connect() {
    let both = "an environment has one of `url`, `program`, `target` and `registry_url`";
    refused(
        &format!("{URL}program = 'p'\n"),
        4,
        1,
        "environments.program",
        both,
    );
    refused(
        &format!("{PROGRAM}url = 'ws://h:1'\n"),
        4,
        1,
        "environments.url",
        both,
    );
    refused(
        &format!("{PROGRAM}registry_url = 'https://h'\nurl = 'ws://h:1'\n"),
        4,
        1,
        "environments.registry_url",
        both,
    );
    let none = "an environment needs `url`, `program`, `target` or `registry_url`";
    refused(
        "[[environments]]\nid = 'a'\n",
        1,
        1,
        "environments.url",
        none,
    );
    refused(
        "environments = [{ id = 'a' }]\n",
        1,
        17,
        "environments.url",
        none,
    );
}

#[test]
fn keys_of_another_connection_kind_are_rejected() {
    for (base, value, owner) in [
        (URL, "args = []", "program"),
        (URL, "env = {}", "program"),
        (URL, "cwd = 'x'", "program"),
        (PROGRAM, "auth_bearer_token = 's3cret'", "url"),
        (PROGRAM, "connect_timeout_sec = 1", "url` or `registry_url"),
        (URL, "auth_token = 's3cret'", "registry_url"),
        (PROGRAM, "environment_id = 'x'", "registry_url"),
    ] {
        let key = format!("environments.{}", value.split(' ').next().unwrap());
        let fault = format!("only an environment with `{owner}` has this key");
        refused(&format!("{base}{value}\n"), 4, 1, &key, &fault);
    }
}

#[test]
fn invalid_durations_are_rejected() {
    for number in [
        "-1",
        "-0.5",
        "nan",
        "+nan",
        "inf",
        "-inf",
        "1e300",
        "9223372036854775807",
    ] {
        for (base, key) in [
            (URL, "connect_timeout_sec"),
            (URL, "initialize_timeout_sec"),
            (PROGRAM, "initialize_timeout_sec"),
        ] {
            let text = format!("{base}{key} = {number}\n");
            let key_path = format!("environments.{key}");
            refused(&text, 4, key.len() + 4, &key_path, SECONDS);
        }
    }
}

#[test]
fn urls_that_are_not_of_a_websocket_are_refused() {
    for url in [
        "",
        "box:1",
        "http://box",
        "unix:///x",
        "ws://u:s3cret@box",
        "ws://",
        "none",
    ] {
        let text = format!("[[environments]]\nid = 'a'\nurl = '{url}'\n");
        refused(&text, 3, 7, "environments.url", WEBSOCKET);
    }
}

#[test]
fn unencrypted_and_invalid_tokens_are_rejected() {
    let key = "environments.auth_bearer_token";
    let clear = "a token needs a wss:// URL or one of this machine, or others can read it";
    for url in ["ws://box.example", "ws://10.0.0.5:1", "ws://[fe80::1]:1"] {
        let text =
            format!("[[environments]]\nid = 'a'\nauth_bearer_token = 's3cret'\nurl = '{url}'\n");
        refused(&text, 3, 21, key, clear);
    }
    for (token, fault) in [
        ("", "bearer token is empty"),
        (" ", "bearer token is empty"),
        ("s3cret\\ns3cret", "bearer token holds a control character"),
    ] {
        let text = format!(
            "[[environments]]\nid = 'a'\nauth_bearer_token = \"{token}\"\nurl = 'wss://h'\n"
        );
        refused(&text, 3, 21, key, fault);
    }
}

#[test]
fn nul_bytes_are_rejected() {
    let nul = "must not contain a NUL byte";
    for (value, column) in [("args = [\"a\\u0000\"]", 9), ("cwd = \"\\u0000\"", 7)] {
        let key = format!("environments.{}", value.split(' ').next().unwrap());
        refused(&format!("{PROGRAM}{value}\n"), 4, column, &key, nul);
    }
    let program = "[[environments]]\nid = 'a'\nprogram = ''\n";
    let empty = "expected a string that is not empty";
    refused(program, 3, 11, "environments.program", empty);
    let name = "expected the name of a variable: not empty, without `=` and NUL";
    let text = format!("{PROGRAM}[environments.env]\n'A=B' = 'x'\n");
    refused(&text, 5, 1, "environments.env.A=B", name);
}

#[test]
fn unknown_default_is_rejected() {
    let unknown = "no environment has the id `b`";
    refused(&format!("default = 'b'\n{URL}"), 1, 11, "default", unknown);
    let excluded = "`local` cannot be the default while include_local is false";
    refused(
        "include_local = false\ndefault = 'local'\n",
        2,
        11,
        "default",
        excluded,
    );
}

#[test]
fn too_many_environments_are_rejected() {
    let many = |count| -> String {
        (0..count)
            .map(|n| format!("[[environments]]\nid = 'e{n}'\nurl = 'ws://h:1'\n"))
            .collect()
    };
    let count = |text: &str| {
        let selection = SelectionFixture::default().parse(text).unwrap();
        selection.remotes.len()
    };
    let alone = |count| format!("include_local = false\n{}", many(count));
    assert_eq!(count(&many(255)), 255);
    assert_eq!(count(&alone(256)), 256);
    let fault = "more than 255 environments";
    refused(&many(256), 766, 1, "environments", fault);
    let fault = "more than 256 environments";
    refused(&alone(257), 770, 1, "environments", fault);
}
