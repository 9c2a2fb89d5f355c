//! Tests of environments behind a relay: by variables, and in the file.

use std::time::Duration;

use exec_registry::{
    api::RegistryEnvironmentId as EnvironmentName,
    credentials::{AccountId, RegistryToken},
    http::BaseUrl,
};

use super::*;

const VARIABLES: [(&str, &str); 3] = [
    (
        "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL",
        " http://hub.example/ ",
    ),
    ("CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID", " env/1 "),
    ("CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN", " t0ken\n"),
];
const ACCOUNT: &str = "CODEX_EXEC_SERVER_NOISE_CHATGPT_ACCOUNT_ID";
const HEAD: &str = "[[environments]]\nid = 'a'\nregistry_url = 'https://h'\n";

fn endpoint(url: &str, id: &str, auth_token: TokenSource) -> RelayEndpoint {
    let ten = Duration::from_secs(10);
    RelayEndpoint {
        registry_url: BaseUrl::parse(url).unwrap(),
        environment_id: EnvironmentName::new(id).unwrap(),
        auth_token,
        chatgpt_account_id: None,
        connect_timeout: ten,
        initialize_timeout: ten,
    }
}

fn token(text: &str) -> TokenSource {
    TokenSource::Value(RegistryToken::new(text).unwrap())
}

fn from(variable: &str, text: &str) -> TokenSource {
    TokenSource::Variable(variable.to_owned(), RegistryToken::new(text).unwrap())
}

/// A process with some of the variables, and otherwise invalid settings.
fn with(variables: &[(&'static str, &str)]) -> SelectionFixture {
    let broken = SelectionFixture::default()
        .variable("CODEX_HOME", "/codex")
        .variable("CODEX_EXEC_SERVER_URL", "nonsense")
        .file("/codex/environments.toml", "broken [");
    variables.iter().fold(broken, |fixture, (name, value)| {
        fixture.variable(name, value)
    })
}

#[test]
fn relay_variables_take_precedence() {
    let selected = |endpoint| EnvironmentSelection {
        default: Some(EnvironmentId::remote()),
        local: false,
        remotes: vec![RemoteEntry {
            id: EnvironmentId::remote(),
            endpoint: EnvEndpoint::Relay(endpoint),
            required_skills: Vec::new(),
        }],
    };
    let token = from(VARIABLES[2].0, "t0ken");
    let plain = endpoint("http://hub.example", "env/1", token);
    let fixture = with(&VARIABLES);
    assert_eq!(fixture.find().unwrap(), selected(plain.clone()));
    let fixture = fixture.variable(ACCOUNT, " acct ");
    let account = RelayEndpoint {
        chatgpt_account_id: Some(AccountId::new("acct").unwrap()),
        ..plain
    };
    assert_eq!(fixture.find().unwrap(), selected(account));
}

#[test]
fn incomplete_relay_variables_name_the_first_missing_one() {
    for missing in 0..3 {
        for blank in [None, Some(""), Some("  ")] {
            let mut variables = VARIABLES.to_vec();
            let (name, _) = variables.remove(missing);
            variables.extend(blank.map(|blank| (name, blank)));
            let error = with(&variables).find().unwrap_err().to_string();
            let start = format!("environment variable {name} is missing: ");
            assert!(error.starts_with(&start), "{error}");
        }
        let alone = with(&VARIABLES[missing..=missing]).find();
        assert!(matches!(alone, Err(SelectionError::RelayIncomplete { .. })));
    }
}

#[test]
fn blank_variables_and_the_account_alone_select_nothing() {
    let blank = VARIABLES.map(|(name, _)| (name, " "));
    let fixture = blank
        .iter()
        .fold(SelectionFixture::default(), |fixture, (name, value)| {
            fixture.variable(name, value)
        });
    let fixture = fixture.variable(ACCOUNT, "acct");
    assert_eq!(fixture.find().unwrap(), local());
}

#[test]
fn invalid_variables_are_reported_without_their_values() {
    use std::os::unix::ffi::OsStringExt;

    for (index, value, expected) in [
        (
            0,
            "ws://s3cret",
            "URL begins with http:// or https://, not with `ws:`",
        ),
        (
            0,
            "https://u:s3cret@h",
            "URL holds a user name or a password",
        ),
        (1, "../s3cret", "environment id has a segment"),
        (2, "s3cret\nx", "token holds a control character"),
    ] {
        let mut variables = VARIABLES;
        variables[index].1 = value;
        let error = anyhow::Error::from(with(&variables).find().unwrap_err());
        let text = format!("{error:#}");
        let start = format!("environment variable {}: ", variables[index].0);
        assert!(text.starts_with(&start), "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    let fixture = with(&VARIABLES).variable(VARIABLES[1].0, OsString::from_vec(vec![0xff]));
    let error = anyhow::Error::from(fixture.find().unwrap_err());
    assert!(
        format!("{error:#}").ends_with("expected text in UTF-8"),
        "{error:#}"
    );
}

#[test]
fn file_entries_accept_three_token_sources() {
    let fixture = SelectionFixture::default()
        .variable("HUB_TOKEN", " from-variable ")
        .file("/codex/tokens/hub", "from-file\n");
    let text = "[[environments]]\nid = 'a'\nregistry_url = 'https://h/'\nauth_token = 't0ken'\n\
                [[environments]]\nid = 'b'\nregistry_url = 'http://127.0.0.1:1'\n\
                environment_id = ' env-1 '\nauth_token_env = 'HUB_TOKEN'\n\
                connect_timeout_sec = 1\ninitialize_timeout_sec = 2\n\
                [[environments]]\nid = 'c'\nregistry_url = 'https://h'\n\
                auth_token_file = 'tokens/hub'\n";
    let selection = fixture.parse(text).unwrap();
    let endpoints: Vec<_> = selection
        .remotes
        .into_iter()
        .map(|one| one.endpoint)
        .collect();
    let b = RelayEndpoint {
        connect_timeout: Duration::from_secs(1),
        initialize_timeout: Duration::from_secs(2),
        ..endpoint(
            "http://127.0.0.1:1",
            "env-1",
            from("HUB_TOKEN", "from-variable"),
        )
    };
    let file = TokenSource::File("/codex/tokens/hub".into());
    assert_eq!(
        endpoints,
        [
            EnvEndpoint::Relay(endpoint("https://h", "a", token("t0ken"))),
            EnvEndpoint::Relay(b),
            EnvEndpoint::Relay(endpoint("https://h", "c", file)),
        ]
    );
}

#[test]
fn file_errors_name_their_location() {
    let fixture = SelectionFixture::default()
        .variable("EMPTY", "")
        .file("/codex/locked", "unreadable")
        .file("/codex/empty", "\n");
    let source = "expected one of `auth_token`, `auth_token_env` and `auth_token_file`";
    for (lines, location, expected) in [
        ("", "1:1: `environments.auth_token`", source),
        (
            "auth_token_env = 'A'\nauth_token = 's3cret'\n",
            "5:1: `environments.auth_token`",
            source,
        ),
        (
            "auth_token = 3\n",
            "4:14: `environments.auth_token`",
            "expected a string",
        ),
        (
            "auth_token = ' '\n",
            "4:14: `environments.auth_token`",
            "token is empty",
        ),
        (
            "auth_token_env = 'NONE'\n",
            "4:18: `environments.auth_token_env`",
            "environment variable `NONE` is not set or not UTF-8",
        ),
        (
            "auth_token_env = 'EMPTY'\n",
            "4:18: `environments.auth_token_env`",
            "token is empty",
        ),
        (
            "auth_token_file = 'locked'\n",
            "4:19: `environments.auth_token_file`",
            "cannot read `/codex/locked`: permission denied",
        ),
        (
            "auth_token_file = 'empty'\n",
            "4:19: `environments.auth_token_file`",
            "token is empty",
        ),
        (
            "auth_token = 's3cret'\nenvironment_id = ' '\n",
            "5:18: `environments.environment_id`",
            "environment id is empty",
        ),
    ] {
        let error = fixture
            .parse(&format!("{HEAD}{lines}"))
            .unwrap_err()
            .to_string();
        let expected = format!("/codex/environments.toml:{location}: {expected}");
        assert_eq!(error, expected, "{lines}");
    }
    for (url, expected) in [
        (
            "ws://h",
            "URL begins with http:// or https://, not with `ws:`",
        ),
        ("", "URL is empty"),
        ("hub", "URL is malformed"),
    ] {
        let text =
            format!("[[environments]]\nid = 'a'\nregistry_url = '{url}'\nauth_token = 's3cret'\n");
        let error = fixture.parse(&text).unwrap_err().to_string();
        let location = "/codex/environments.toml:3:16: `environments.registry_url`";
        assert_eq!(error, format!("{location}: {expected}"));
    }
    let clear = "[[environments]]\nid = 'a'\nregistry_url = 'http://h'\nauth_token = 's3cret'\n";
    assert_eq!(
        fixture.parse(clear).unwrap_err().to_string(),
        "/codex/environments.toml:4:14: `environments.auth_token`: \
         a token needs a https:// URL or one of this machine, or others can read it"
    );
}
