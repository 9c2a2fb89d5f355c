//! Tests of valid files.

use std::time::Duration;

use exec_transport::connect::{BearerToken, ServerProgram};

use super::*;

const EVERYTHING: &str = r#"
default = "devbox"
include_local = true

[[environments]]
id = "devbox"
url = "ws://127.0.0.1:8765"
auth_bearer_token = "t0ken"
connect_timeout_sec = 2.5
initialize_timeout_sec = 0
[environments.skills]
required = ["review", "deploy"]

[[environments]]
id = "ssh-dev"
program = "ssh"
args = ["dev", "exec-server --listen stdio"]
env = { CODEX_LOG = "debug" }
cwd = "sub/dir"
initialize_timeout_sec = 30
"#;

fn id(text: &str) -> EnvironmentId {
    EnvironmentId::parse_user_defined(text).unwrap()
}

fn parsed(text: &str) -> EnvironmentSelection {
    SelectionFixture::default().parse(text).unwrap()
}

#[test]
fn every_key_is_read() {
    let devbox = RemoteEntry {
        id: id("devbox"),
        endpoint: EnvEndpoint::Url(UrlEndpoint {
            url: "ws://127.0.0.1:8765".to_owned(),
            auth_bearer_token: Some(BearerToken::new("t0ken").unwrap()),
            connect_timeout: Duration::from_millis(2500),
            initialize_timeout: Duration::ZERO,
        }),
        required_skills: vec!["review".to_owned(), "deploy".to_owned()],
    };
    let ssh = RemoteEntry {
        id: id("ssh-dev"),
        endpoint: EnvEndpoint::Program(ProgramEndpoint {
            program: ServerProgram {
                program: "ssh".into(),
                args: vec!["dev".into(), "exec-server --listen stdio".into()],
                env: BTreeMap::from([("CODEX_LOG".into(), "debug".into())]),
                cwd: Some("/codex/sub/dir".into()),
            },
            initialize_timeout: Duration::from_secs(30),
        }),
        required_skills: Vec::new(),
    };
    let all = EnvironmentSelection {
        default: Some(id("devbox")),
        local: true,
        remotes: vec![devbox, ssh],
    };
    assert_eq!(parsed(EVERYTHING), all);
}

#[test]
fn missing_keys_have_defaults() {
    let selection = parsed(
        "[[environments]]\nid = 'a'\nurl = 'ws://h:1'\n\
         [[environments]]\nid = 'b'\nprogram = 'p'\n",
    );
    let endpoints: Vec<_> = selection.remotes.iter().map(|one| &one.endpoint).collect();
    let ten = Duration::from_secs(10);
    assert_eq!(
        selection.default.as_ref().map(EnvironmentId::as_str),
        Some("local")
    );
    assert!(selection.local);
    assert_eq!(
        endpoints,
        [
            &EnvEndpoint::Url(UrlEndpoint {
                url: "ws://h:1".to_owned(),
                auth_bearer_token: None,
                connect_timeout: ten,
                initialize_timeout: ten,
            }),
            &EnvEndpoint::Program(ProgramEndpoint {
                program: ServerProgram::new("p"),
                initialize_timeout: ten,
            }),
        ]
    );
}

#[test]
fn default_is_local_if_included_else_none() {
    let one = "[[environments]]\nid = 'a'\nurl = 'ws://h:1'\n";
    for (head, default) in [
        ("", Some("local")),
        ("include_local = false\n", None),
        ("default = 'none'\n", None),
        ("default = 'local'\n", Some("local")),
        ("default = 'a'\ninclude_local = false\n", Some("a")),
    ] {
        let selection = parsed(&format!("{head}{one}"));
        assert_eq!(
            selection.default.as_ref().map(EnvironmentId::as_str),
            default,
            "{head}"
        );
        assert_eq!(selection.local, !head.contains("include_local"), "{head}");
    }
}

#[test]
fn relative_directories_start_at_the_codex_home() {
    for (cwd, expected) in [("/srv", "/srv"), ("x/y", "/codex/x/y"), (".", "/codex/.")] {
        let text = format!("[[environments]]\nid = 'b'\nprogram = 'p'\ncwd = '{cwd}'\n");
        let selection = parsed(&text);
        let EnvEndpoint::Program(program) = &selection.remotes[0].endpoint else {
            panic!("{selection:?}");
        };
        assert_eq!(program.program.cwd.as_deref(), Some(Path::new(expected)));
    }
}

#[test]
fn ids_may_have_every_allowed_character_and_64_of_them() {
    let long = "x".repeat(64);
    for id in ["a", "A-Z_0-9", "LOCAL", &long] {
        let text = format!("[[environments]]\nid = '{id}'\nurl = 'ws://h:1'\n");
        assert_eq!(parsed(&text).remotes[0].id.as_str(), id);
    }
}

#[test]
fn token_is_accepted_for_encrypted_and_loopback_urls() {
    for url in ["wss://box.example", "ws://localhost:1", "ws://[::1]:1"] {
        let text =
            format!("[[environments]]\nid = 'a'\nurl = '{url}'\nauth_bearer_token = 'secret'\n");
        let debug = format!("{:?}", parsed(&text));
        assert!(!debug.contains("secret"), "{debug}");
    }
}

#[test]
fn url_token_can_come_from_file_or_variable() {
    let fixture = SelectionFixture::default()
        .variable("BOX_TOKEN", " t0ken ")
        .file("/codex/tokens/box", "t0ken\n");
    let url = "[[environments]]\nid = 'a'\nurl = 'ws://127.0.0.1:1'\n";
    for line in [
        "auth_token_env = 'BOX_TOKEN'",
        "auth_token_file = 'tokens/box'",
    ] {
        let selection = fixture.parse(&format!("{url}{line}\n")).unwrap();
        let EnvEndpoint::Url(endpoint) = &selection.remotes[0].endpoint else {
            panic!("{selection:?}");
        };
        let token = BearerToken::new("t0ken").unwrap();
        assert_eq!(endpoint.auth_bearer_token, Some(token), "{line}");
    }
    for (lines, expected) in [
        (
            "auth_token_env = 'BOX_TOKEN'\nauth_bearer_token = 's3cret'",
            "5:1: `environments.auth_bearer_token`: expected one of",
        ),
        (
            "auth_token_file = 'nowhere'",
            "4:19: `environments.auth_token_file`: cannot read `/codex/nowhere`",
        ),
        (
            "auth_token_env = 'NONE'",
            "4:18: `environments.auth_token_env`: environment variable `NONE`",
        ),
    ] {
        let error = fixture.parse(&format!("{url}{lines}\n")).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(expected) && !error.contains("s3cret"),
            "{error}"
        );
    }
    let clear = "[[environments]]\nid = 'a'\nurl = 'ws://box'\nauth_token_env = 'BOX_TOKEN'\n";
    let error = fixture.parse(clear).unwrap_err().to_string();
    assert!(error.contains("wss://"), "{error}");
}
