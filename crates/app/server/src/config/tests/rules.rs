//! Tests of which options go together.

use std::time::Duration;

use exec_transport::{
    auth::{AuthPolicy, UnixSeconds},
    listen_url::ListenUrl,
};

use super::*;
use exec_settings::shutdown_signal::StdinClose;

const OPEN: [&str; 2] = ["--listen", "ws://0.0.0.0:0"];
const SECRET: [u8; 32] = [b's'; 32];

/// Every option that requires `--ws-auth`, with a value, and the kind it requires.
const SUB_OPTIONS: [(&str, &str, &str); 6] = [
    ("--ws-token-file", "t", "capability-token"),
    ("--ws-token-sha256", DIGEST, "capability-token"),
    ("--ws-shared-secret-file", "s", "signed-bearer-token"),
    ("--ws-issuer", "i", "signed-bearer-token"),
    ("--ws-audience", "a", "signed-bearer-token"),
    ("--ws-max-clock-skew-seconds", "1", "signed-bearer-token"),
];

fn lets_in(auth: &AuthPolicy, token: &str) -> bool {
    auth.check(Some(format!("Bearer {token}").as_bytes()), UnixSeconds(0))
        .is_ok()
}

#[test]
fn open_network_listener_is_rejected_with_advice() {
    for listen in ["ws://0.0.0.0:0", "ws://[::]:0", "ws://192.0.2.1:80"] {
        let refusal = Start::new().refusal(&["--listen", listen]);
        for advice in [listen, "--ws-auth", "--ws-token-file", "--insecure-no-auth"] {
            assert!(refusal.contains(advice), "{refusal}");
        }
    }
    let tls = ["--listen=wss://0.0.0.0:0", "--tls-cert=c", "--tls-key=k"];
    assert!(matches!(
        Start::new().run(&tls),
        Err(ConfigError::OpenToNetwork(_))
    ));
    for listen in [
        "ws://127.0.0.1:0",
        "ws://[::1]:0",
        "unix:///x",
        "stdio",
        "stdio://",
        "off",
    ] {
        assert!(Start::new().run(&["--listen", listen]).is_ok(), "{listen}");
    }
}

#[test]
fn insecure_no_auth_opens_the_network_with_a_warning() {
    let arguments = [OPEN[0], OPEN[1], "--insecure-no-auth"];
    assert_eq!(
        Start::new().warnings(&arguments),
        ["everyone who can reach `ws://0.0.0.0:0` can run commands here"]
    );
    let token = ["--ws-auth=capability-token", "--ws-token-sha256", DIGEST];
    let both = [arguments.as_slice(), &token].concat();
    assert!(Start::new().run(&both).unwrap().auth.is_required());
    assert_eq!(
        Start::new().warnings(&both),
        ["--insecure-no-auth has no effect with --ws-auth"]
    );
}

#[test]
fn authentication_options_require_ws_auth() {
    for (option, value, _) in SUB_OPTIONS {
        for listen in ["ws://127.0.0.1:0", "ws://0.0.0.0:0", "stdio"] {
            let refusal = Start::new().refusal(&["--listen", listen, option, value]);
            assert_eq!(refusal, format!("{option} needs --ws-auth"));
        }
    }
}

#[test]
fn options_of_another_authentication_are_rejected() {
    for (option, value, needed) in SUB_OPTIONS {
        let other = ["capability-token", "signed-bearer-token"]
            .iter()
            .find(|mode| **mode != needed);
        let refusal = Start::new().refusal(&["--ws-auth", other.unwrap(), option, value]);
        assert_eq!(refusal, format!("{option} needs --ws-auth {needed}"));
    }
}

#[test]
fn authentication_needs_a_network_listener() {
    for listen in ["stdio", "unix:///x", "off"] {
        let arguments = ["--listen", listen, "--ws-auth=capability-token"];
        let refusal =
            Start::new().refusal(&[&arguments[..], &["--ws-token-sha256", DIGEST]].concat());
        let expected =
            format!("--ws-auth needs a ws:// or wss:// listener, which `{listen}` is not");
        assert_eq!(refusal, expected);
    }
    let file = Start::with_file("ws_auth = 'capability-token'\nws_token_file = 't'");
    let refused = file.run(&["--listen", "stdio"]);
    assert!(
        matches!(refused, Err(ConfigError::AuthWithoutNetwork(_))),
        "also from the file"
    );
}

#[test]
fn capability_token_comes_from_exactly_one_place() {
    let start = Start::new();
    let token = start.write("token", " abc \n");
    let mode = "--ws-auth=capability-token";
    let run = |arguments: &[&str]| start.run(&[&[mode], arguments].concat());

    for arguments in [["--ws-token-file", &token], ["--ws-token-sha256", DIGEST]] {
        let auth = run(&arguments).unwrap().auth;
        assert!(
            lets_in(&auth, "abc") && !lets_in(&auth, "abd"),
            "{arguments:?}"
        );
    }
    assert!(matches!(run(&[]), Err(ConfigError::TokenSource)));
    let both = ["--ws-token-file", &token, "--ws-token-sha256", DIGEST];
    assert!(matches!(run(&both), Err(ConfigError::TokenSource)));
}

#[test]
fn token_of_a_higher_source_replaces_the_other_spelling_below() {
    let start = Start::with_file("ws_auth = 'capability-token'\nws_token_file = '/nonexistent'");
    assert!(matches!(
        start.run(&[]),
        Err(ConfigError::ReadSecret { .. })
    ));
    let start = start.variable("EXEC_SERVER_WS_TOKEN_SHA256", DIGEST);
    assert!(lets_in(&start.run(&[]).unwrap().auth, "abc"));
    let token = start.write("token", "xyz");
    assert!(lets_in(
        &start.run(&["--ws-token-file", &token]).unwrap().auth,
        "xyz"
    ));
}

#[test]
fn token_file_must_hold_a_token() {
    let start = Start::new();
    let refusal =
        |path: &str| start.refusal(&["--ws-auth=capability-token", "--ws-token-file", path]);
    for blank in ["", " \r\n\t"] {
        let path = start.write("blank", blank);
        assert_eq!(
            refusal(&path),
            "`blank` given with --ws-token-file is empty"
        );
    }
    assert!(
        refusal("/nonexistent").starts_with("cannot read `/nonexistent` given with --ws-token")
    );
    let binary = start.write("binary", [0xff]);
    assert!(refusal(&binary).ends_with("file is not UTF-8 text"));
}

#[test]
fn signed_bearer_needs_a_secret_of_some_length() {
    let start = Start::new();
    let mode = "--ws-auth=signed-bearer-token";
    let good = start.write("good", SECRET);
    let short = start.write("short", &SECRET[1..]);
    let all = [
        mode,
        "--ws-issuer=i",
        "--ws-audience=a",
        "--ws-max-clock-skew-seconds=5",
    ];
    let config = start
        .run(&[&all[..], &["--ws-shared-secret-file", &good]].concat())
        .unwrap();
    let debug = format!("{:?}", config.auth);
    assert_eq!(
        debug,
        r#"SignedBearer(JwtRules { issuer: Some("i"), audience: Some("a"), skew: 5s, .. })"#
    );
    let config = start
        .run(&[mode, "--ws-shared-secret-file", &good])
        .unwrap();
    assert!(format!("{config:?}").contains("skew: 30s"));
    assert!(matches!(
        start.run(&[mode]),
        Err(ConfigError::NoSharedSecret)
    ));
    assert_eq!(
        start.refusal(&[mode, "--ws-shared-secret-file", &short]),
        "`short` given with --ws-shared-secret-file is not usable: shared secret must have at \
         least 32 bytes"
    );
}

#[test]
fn tls_files_and_wss_need_each_other() {
    let (cert, key) = ("--tls-cert=c", "--tls-key=k");
    let wss = "--listen=wss://127.0.0.1:0";
    let tls = Start::new().run(&[wss, cert, key]).unwrap().tls;
    assert_eq!(
        tls,
        Some(TlsPaths {
            cert: "c".into(),
            key: "k".into()
        })
    );

    let incomplete = [
        (&[wss][..], "--tls-cert"),
        (&[wss, key], "--tls-cert"),
        (&[wss, cert], "--tls-key"),
    ];
    for (arguments, missing) in incomplete {
        let refusal = Start::new().refusal(arguments);
        assert!(
            refusal.ends_with(&format!("{missing} is missing")),
            "{refusal}"
        );
    }
    for listen in ["ws://127.0.0.1:0", "stdio", "unix:///x", "off"] {
        for (option, file) in [("--tls-cert", cert), ("--tls-key", key)] {
            let refusal = Start::new().refusal(&["--listen", listen, file]);
            let expected = format!("{option} needs a wss:// listener, which `{listen}` is not");
            assert_eq!(refusal, expected);
        }
    }
}

#[test]
fn debug_output_hides_secrets() {
    let start = Start::new();
    let token = start.write("token", "hush-hush");
    let config = start
        .run(&["--ws-auth=capability-token", "--ws-token-file", &token])
        .unwrap();
    assert!(format!("{config:?}").contains("CapabilityToken(TokenDigest(..))"));
}

#[cfg(feature = "remote")]
#[test]
fn executor_behind_registry_ignores_listener_settings() {
    let start = Start::with_file(
        "listen = 'ws://0.0.0.0:80'\nws_auth = 'capability-token'\nsession_ttl = 7\n",
    );
    let start = start.variable("EXEC_SERVER_TLS_CERT", "c");
    assert!(start.run(&[]).is_err());
    let config = start
        .run(&["--remote=https://h", "--environment-id=e"])
        .unwrap();
    assert_eq!(config.listen, ListenUrl::Off);
    assert!(!config.auth.is_required() && config.tls.is_none());
    assert_eq!(config.session_ttl, Duration::from_secs(7));
    let error = ServerConfig::from_flags(["--remote=https://h", "--environment-id=e"]).unwrap_err();
    assert!(
        error.to_string().contains("RemoteEnvironmentConfig"),
        "{error}"
    );
}

#[test]
fn stdin_close_is_enabled_by_flag_or_variable() {
    let variable = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE";
    let close = |start: Start, flags: &[&str]| start.run(flags).unwrap().stdin_close;
    assert_eq!(close(Start::new(), &[]), StdinClose::Ignored);
    assert_eq!(
        close(Start::new(), &["--exit-on-stdin-close"]),
        StdinClose::Ends
    );
    assert_eq!(
        close(Start::new().variable(variable, "true"), &[]),
        StdinClose::Ends
    );
    assert_eq!(
        close(Start::new().variable(variable, "0"), &[]),
        StdinClose::Ignored
    );
    let refusal = Start::new().variable(variable, "perhaps").refusal(&[]);
    assert_eq!(
        refusal,
        format!("environment variable {variable}: invalid value: expected true or false")
    );
}

#[test]
fn background_server_exits_when_idle_and_ignores_other_listeners() {
    let idle = |start: &Start, line: &[&str]| start.run(line).unwrap().idle_exit;
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let plain = Start::new();
    assert_eq!(idle(&plain, &[]), None);
    assert_eq!(idle(&plain, &["--idle-exit", "0"]), None);
    assert_eq!(idle(&plain, &["--idle-exit", "5"]), seconds(5));
    let background = ["--background", "--listen", "unix:///x.sock"];
    assert_eq!(idle(&plain, &background), seconds(900));
    for (set, span) in [("7", seconds(7)), ("0", None)] {
        let start = Start::new().variable("EXEC_SERVER_IDLE_EXIT", set);
        assert_eq!(idle(&start, &background), span);
    }
    let file = "ws_auth = 'capability-token'\nws_token_file = '/nowhere'\ntls_cert = 'c'\n\
                metrics_listen = '127.0.0.1:9'\nsession_ttl = 5\n";
    let config = Start::with_file(file).run(&background).unwrap();
    assert_eq!(config.listen, ListenUrl::Unix("/x.sock".into()));
    assert_eq!(config.session_ttl, Duration::from_secs(5));
    assert!(config.metrics_listen.is_none());
    assert!(Start::with_file(file).run(&background[1..]).is_err());
}
