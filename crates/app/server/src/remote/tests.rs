//! Tests of the selection of credentials.

use std::{collections::BTreeMap, ffi::OsString, path::Path};

use super::{RemoteConfigError, RemoteCredentials, VendorServices};
use crate::cli::Cli;

/// Selects credentials for these flags and variables; the Codex home has a sign-in.
fn choose(
    flags: &[&str],
    variables: &[(&str, &str)],
) -> Result<RemoteCredentials, RemoteConfigError> {
    let line = ["exec-server", "--remote=https://h", "--environment-id=e"];
    let cli = Cli::read(line.iter().chain(flags)).unwrap();
    let variables: BTreeMap<_, _> = variables.iter().copied().collect();
    let lookup = |name: &str| variables.get(name).map(OsString::from);
    let signed_in = |path: &Path| path == Path::new("/codex/auth.json");
    RemoteCredentials::choose(
        &cli.registration,
        &cli.transport,
        &cli.chatgpt,
        &lookup,
        &signed_in,
    )
}

/// Returns the name of the selected kind.
fn name(credentials: Result<RemoteCredentials, RemoteConfigError>) -> &'static str {
    match credentials.unwrap() {
        RemoteCredentials::Token(_) => "token",
        RemoteCredentials::TokenFile(_) => "file",
        RemoteCredentials::ApiKey(_) => "key",
        RemoteCredentials::AccessToken(..) => "access",
        RemoteCredentials::SignIn(_) => "sign-in",
        RemoteCredentials::AgentIdentity(..) => "identity",
        RemoteCredentials::Stdin => "stdin",
        RemoteCredentials::RegistrationBearerStdin => "bearer",
        RemoteCredentials::ChatGptStdin(_) => "chatgpt",
        RemoteCredentials::Aws(_) => "aws",
    }
}

const HOME: (&str, &str) = ("CODEX_HOME", "/codex");
const ACCESS: (&str, &str) = ("CODEX_ACCESS_TOKEN", "at-1");
const KEY: (&str, &str) = ("CODEX_API_KEY", "key");
const TOKEN: (&str, &str) = ("EXEC_SERVER_REMOTE_TOKEN", "hub");
const ALL: [(&str, &str); 4] = [HOME, ACCESS, KEY, TOKEN];

#[test]
fn variables_have_an_order_and_the_sign_in_is_the_last() {
    let order = ["sign-in", "access", "key", "token"];
    for (count, expected) in (1..).zip(order) {
        assert_eq!(name(choose(&[], &ALL[..count])), expected);
    }
    let blank = [
        HOME,
        ("CODEX_API_KEY", " "),
        ("EXEC_SERVER_REMOTE_TOKEN", ""),
    ];
    assert_eq!(name(choose(&[], &blank)), "sign-in");
    assert_eq!(
        name(choose(&[], &[("OPENAI_API_KEY", "key"), HOME])),
        "sign-in"
    );
}

#[test]
fn flags_take_precedence_over_variables() {
    for (flags, expected) in [
        (&["--remote-token-file=f"][..], "file"),
        (&["--executor-credential-stdin"], "stdin"),
        (&["--registration-bearer-stdin"], "bearer"),
        (&["--chatgpt-token-stdin"], "chatgpt"),
        (&["--use-agent-identity-auth"], "identity"),
        (&["--remote-transport=direct", "--aws-sigv4"], "aws"),
        (
            &["--remote-transport=direct", "--remote-token-file=f"],
            "file",
        ),
        (&["--remote-transport=direct"], "token"),
    ] {
        assert_eq!(name(choose(flags, &ALL)), expected, "{flags:?}");
    }
}

#[test]
fn missing_credentials_error_lists_the_options() {
    let error = choose(&[], &[("CODEX_HOME", "/empty")]).unwrap_err();
    assert!(matches!(error, RemoteConfigError::NoCredentials) && !error.is_usage());
    for word in [
        "--remote-token-file",
        "EXEC_SERVER_REMOTE_TOKEN",
        "CODEX_API_KEY",
    ] {
        assert!(error.to_string().contains(word), "{error}");
    }
    let error = choose(&["--use-agent-identity-auth"], &[HOME, KEY]).unwrap_err();
    assert!(matches!(error, RemoteConfigError::NoIdentity));
    // Credentials for a relay that cannot read them are not sent to a peer that reads everything.
    let error = choose(&["--remote-transport=direct"], &[HOME, ACCESS, KEY]).unwrap_err();
    assert!(error.is_usage(), "{error}");
}

#[test]
fn invalid_variables_are_reported_without_their_values() {
    for (variable, value) in [
        ("CODEX_API_KEY", "s3cret\nx"),
        ("EXEC_SERVER_REMOTE_TOKEN", "s3cr\u{7f}t"),
    ] {
        let error = anyhow::Error::from(choose(&[], &[(variable, value)]).unwrap_err());
        let text = format!("{error:#}");
        assert!(
            text.starts_with(&format!("environment variable {variable}: ")),
            "{text}"
        );
        assert!(!text.contains("s3cr"), "{text}");
    }
    let url = ("CODEX_AUTHAPI_BASE_URL", "nowhere");
    let error = choose(&[], &[ACCESS, url]).unwrap_err().to_string();
    assert_eq!(error, "environment variable CODEX_AUTHAPI_BASE_URL");
}

#[test]
fn vendor_service_urls_can_be_overridden() {
    let variables = [
        ("CODEX_AUTHAPI_BASE_URL", "http://127.0.0.1:1/a/"),
        (
            "CODEX_AGENT_IDENTITY_AUTHAPI_BASE_URL",
            "http://127.0.0.1:2",
        ),
        ("CODEX_AGENT_IDENTITY_JWKS_BASE_URL", "http://127.0.0.1:3"),
    ];
    let lookup = |name: &str| {
        let set = variables.iter().find(|(variable, _)| *variable == name);
        set.map(|(_, value)| OsString::from(value))
    };
    let vendor = VendorServices::find(&lookup).unwrap();
    let urls = [vendor.issuer, vendor.tasks, vendor.keys].map(|url| url.to_string());
    assert_eq!(
        urls,
        [
            "http://127.0.0.1:1/a",
            "http://127.0.0.1:2",
            "http://127.0.0.1:3"
        ]
    );
    assert!(
        VendorServices::find(&|_| None)
            .unwrap()
            .keys
            .to_string()
            .ends_with("/backend-api")
    );
}

#[test]
fn aws_settings_come_from_flags_and_variables() {
    let flags = [
        "--remote-transport=direct",
        "--aws-sigv4",
        "--aws-profile=p",
        "--aws-region=r",
    ];
    let variables = [
        ("HOME", "/h"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
        ("AWS_REGION", "other"),
        ("AWS_CONFIG_FILE", "/c"),
    ];
    let RemoteCredentials::Aws(aws) = choose(&flags, &variables).unwrap() else {
        panic!("something else was chosen");
    };
    assert_eq!(aws.service, "execute-api");
    assert_eq!(aws.chain.profile.as_deref(), Some("p"));
    assert_eq!(aws.chain.region.as_deref(), Some("r"));
    assert_eq!(aws.chain.environment.access_key_id.as_deref(), Some("id"));
    assert_eq!(aws.chain.config_file.as_deref(), Some(Path::new("/c")));
    let credentials = Path::new("/h/.aws/credentials");
    assert_eq!(aws.chain.credentials_file.as_deref(), Some(credentials));
    assert!(!format!("{aws:?}").contains("s3cret"));
}
