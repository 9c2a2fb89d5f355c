//! Tests of the sources of options and their precedence.

use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use exec_sandbox::{MechanismChoice, ProcessIsolation};

use super::*;

#[test]
fn defaults_are_as_documented() {
    let config = Start::new().run(&[]).unwrap();
    assert_eq!(config.listen.to_string(), "ws://127.0.0.1:0");
    assert!(!config.auth.is_required());
    assert_eq!(config.tls, None);
    assert_eq!(config.session_ttl, Duration::from_secs(80));
    assert_eq!(config.process_retention, Duration::from_secs(80));
    assert_eq!(config.retained_output_bytes, 1_048_576);
    assert_eq!(config.max_processes, 1024);
    assert_eq!(config.shutdown_grace, Duration::ZERO);
    assert!(config.allow_direct_exec && config.allow_prepared_exec);
    assert_eq!(config.concurrent_requests, ConcurrentRequests::Unlimited);
    assert!(!config.insecure_no_auth);
    assert_eq!(config.sandbox.mechanism, MechanismChoice::Cheapest);
    assert_eq!(config.sandbox.processes, ProcessIsolation::Isolated);
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn every_option_can_come_from_every_source() {
    let values = [
        ("concurrent_requests", "3"),
        ("session_ttl", "1.5"),
        ("process_retention", "2.5"),
        ("retained_output_bytes", "10"),
        ("max_processes", "11"),
        ("shutdown_grace", "12"),
        ("allow_direct_exec", "false"),
        ("allow_prepared_exec", "false"),
        ("insecure_no_auth", "true"),
        ("sandbox_mechanism", "namespaces"),
        ("linux_sandbox_pid_namespace", "inherit"),
    ];
    let quoted = |value: &str| match value {
        "namespaces" | "inherit" => format!("'{value}'"),
        plain => plain.to_owned(),
    };
    let text: String = values
        .iter()
        .map(|(key, value)| format!("{key} = {}\n", quoted(value)))
        .collect();
    let file = Start::with_file(&text);
    let environment = values.iter().fold(Start::new(), |start, (key, value)| {
        start.variable(&format!("EXEC_SERVER_{}", key.to_uppercase()), value)
    });
    let flags: Vec<_> = values
        .iter()
        .map(|(key, value)| format!("--{}={value}", key.replace('_', "-")))
        .collect();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let overrides: Vec<_> = values
        .iter()
        .map(|(key, value)| format!("-c{key}={value}"))
        .collect();
    let overrides: Vec<_> = overrides.iter().map(String::as_str).collect();

    let configs = [
        file.run(&[]),
        environment.run(&[]),
        Start::new().run(&flags),
        Start::new().run(&overrides),
    ];
    for config in configs {
        let config = config.unwrap();
        let three = NonZeroUsize::new(3).unwrap();
        assert_eq!(
            config.concurrent_requests,
            ConcurrentRequests::AtMost(three)
        );
        assert_eq!(config.session_ttl, Duration::from_millis(1500));
        assert_eq!(config.process_retention, Duration::from_millis(2500));
        assert_eq!(config.retained_output_bytes, 10);
        assert_eq!(config.max_processes, 11);
        assert_eq!(config.shutdown_grace, Duration::from_secs(12));
        assert!(!config.allow_direct_exec && !config.allow_prepared_exec);
        assert!(config.insecure_no_auth);
        assert_eq!(config.sandbox.mechanism, MechanismChoice::Namespaces);
        assert_eq!(config.sandbox.processes, ProcessIsolation::Inherited);
    }
}

#[test]
fn process_retention_is_never_shorter_than_the_session_ttl() {
    for arguments in [
        ["--session-ttl=600", "--process-retention=1"].as_slice(),
        &["--session-ttl=600"],
    ] {
        let config = Start::new().run(arguments).unwrap();
        assert_eq!(config.process_retention, Duration::from_secs(600));
    }
    let config = Start::new().run(&["--session-ttl=0"]).unwrap();
    assert_eq!(config.process_retention, Duration::from_secs(80));
}

#[test]
fn unknown_mechanisms_are_refused_with_their_place() {
    let start = Start::new().variable("EXEC_SERVER_SANDBOX_MECHANISM", "chroot");
    assert_eq!(
        start.refusal(&[]),
        "environment variable EXEC_SERVER_SANDBOX_MECHANISM: invalid value: expected cheapest, \
         landlock, namespaces or bubblewrap"
    );
    let start = Start::with_file("linux_sandbox_pid_namespace = 'host'");
    assert_eq!(
        start.refusal(&["--strict-config"]),
        "config.toml:1: `linux_sandbox_pid_namespace`: invalid value: expected isolate or inherit"
    );
}

#[test]
fn private_ips_flag_warns_that_it_has_no_effect() {
    let warning = "--proxy-private-ips-via-upstream has no effect";
    let flag = "--proxy-private-ips-via-upstream";
    let variable = "CODEX_EXEC_SERVER_PROXY_PRIVATE_IPS_VIA_UPSTREAM";
    assert_eq!(Start::new().warnings(&[flag]), [warning]);
    for (value, warnings) in [("1", &[warning][..]), ("perhaps", &[warning]), ("0", &[])] {
        let start = Start::new().variable(variable, value);
        assert_eq!(start.warnings(&[]), warnings, "{value}");
    }
    let off = format!("{flag}=false");
    let start = Start::new().variable(variable, "true");
    assert_eq!(start.warnings(&[&off]), [""; 0]);
}

#[test]
fn flags_win_over_overrides_over_environment_over_file() {
    let ttl =
        |start: &Start, arguments: &[&str]| start.run(arguments).unwrap().session_ttl.as_secs();
    let file = Start::with_file("session_ttl = 1");
    assert_eq!(ttl(&file, &[]), 1);
    let both = file.variable("EXEC_SERVER_SESSION_TTL", "2");
    assert_eq!(ttl(&both, &[]), 2);
    assert_eq!(ttl(&both, &["-c", "session_ttl=3"]), 3);
    assert_eq!(
        ttl(&both, &["-c", "session_ttl=3", "-c", "session_ttl=4"]),
        4
    );
    assert_eq!(
        ttl(&both, &["-c", "session_ttl=3", "--session-ttl", "5"]),
        5
    );
}

#[test]
fn false_on_the_command_line_wins_over_true_below() {
    let start = Start::with_file("insecure_no_auth = true");
    assert!(start.run(&[]).unwrap().insecure_no_auth);
    assert!(
        !start
            .run(&["--insecure-no-auth=false"])
            .unwrap()
            .insecure_no_auth
    );
}

#[test]
fn empty_variables_count_as_unset_and_wrong_ones_are_errors() {
    let empty = Start::new()
        .variable("EXEC_SERVER_SESSION_TTL", "")
        .variable("EXEC_SERVER_CONFIG", "")
        .variable("EXEC_SERVER_STRICT_CONFIG", "");
    assert_eq!(empty.run(&[]).unwrap().session_ttl, Duration::from_secs(80));

    let wrong = Start::new().variable("EXEC_SERVER_LISTEN", "ws://localhost:0");
    let refusal = wrong.refusal(&[]);
    assert!(refusal.starts_with("environment variable EXEC_SERVER_LISTEN: invalid value: "));
    assert!(refusal.contains("127.0.0.1:0"), "{refusal}");
    let wrong = Start::new().variable("EXEC_SERVER_STRICT_CONFIG", "perhaps");
    assert_eq!(
        wrong.refusal(&[]),
        "environment variable EXEC_SERVER_STRICT_CONFIG: invalid value: expected true or false"
    );
    let wrong = Start::new().variable("EXEC_SERVER_WS_ISSUER", OsString::from_vec(vec![0xff]));
    assert_eq!(
        wrong.refusal(&[]),
        "environment variable EXEC_SERVER_WS_ISSUER: invalid value: expected text in UTF-8"
    );
}

#[test]
fn configuration_file_is_found_in_the_default_directory() {
    let mut start = Start::new();
    start.write(".config/exec-server/config.toml", "session_ttl = 7");
    start.variables.remove("EXEC_SERVER_HOME");
    assert_eq!(start.run(&[]).unwrap().session_ttl, Duration::from_secs(80));
    let start = start.variable("HOME", "");
    assert_eq!(start.run(&[]).unwrap().session_ttl, Duration::from_secs(80));
    let home = start.home.path().to_owned();
    let start = start.variable("HOME", home);
    assert_eq!(start.run(&[]).unwrap().session_ttl, Duration::from_secs(7));
}

#[test]
fn named_file_replaces_the_default_one() {
    let start = Start::with_file("session_ttl = 1\nmax_processes = 1");
    let one = start.write("one.toml", "session_ttl = 2");
    let two = start.write("two.toml", "session_ttl = 3");
    let start = start.variable("EXEC_SERVER_CONFIG", one);
    let config = start.run(&[]).unwrap();
    assert_eq!(
        (config.session_ttl.as_secs(), config.max_processes),
        (2, 1024)
    );
    assert_eq!(
        start
            .run(&["--config", &two])
            .unwrap()
            .session_ttl
            .as_secs(),
        3
    );
}

#[test]
fn unknown_keys_are_warnings_unless_strict() {
    let start = Start::with_file("# ours\nsession_ttl = 1\nsesion_ttl = 2\n[features]\nx = 1\n");
    let unknown = "config.toml:3: `sesion_ttl`: unknown key";
    let ignored = "config.toml:3: `sesion_ttl`: ignoring unknown key";
    let warnings = start.warnings(&[]);
    let section = "config.toml:4: `features`: ignoring unknown key";
    assert_eq!(warnings, [ignored, section]);
    assert_eq!(start.run(&[]).unwrap().session_ttl.as_secs(), 1);
    assert!(
        start
            .refusal(&["--strict-config"])
            .ends_with(": unknown key")
    );
    let start = start.variable("EXEC_SERVER_STRICT_CONFIG", "1");
    assert_eq!(start.refusal(&[]), unknown);
}

#[test]
fn broken_file_is_a_warning_unless_strict_or_named() {
    let broken = [
        ("session_ttl = 1\nlisten =\n", "config.toml:2: "),
        (
            "session_ttl = 1\nmax_processes = 0",
            "config.toml:2: `max_processes`: invalid value: ",
        ),
        (
            "session_ttl = 1\nmax_processes = [1]",
            "config.toml:2: `max_processes`: invalid value: ",
        ),
        ("session_ttl = 1\nsession_ttl = 2", "config.toml:2: "),
    ];
    for (text, message) in broken {
        let start = Start::with_file(text);
        let path = start.home.path().join("config.toml");
        let config = start.run(&[]).unwrap();
        assert_eq!(
            config.session_ttl.as_secs(),
            80,
            "no part of a broken file counts"
        );
        let warnings = start.warnings(&[]);
        let [warning] = warnings.as_slice() else {
            panic!("{warnings:?}")
        };
        assert!(warning.starts_with(&format!("ignoring configuration file: {message}")));
        assert!(start.refusal(&["--strict-config"]).starts_with(message));
        assert!(
            start
                .refusal(&["--config", path.to_str().unwrap()])
                .starts_with(message)
        );
    }
}

#[test]
fn missing_file_matters_only_when_it_is_named() {
    let start = Start::new();
    assert_eq!(start.warnings(&["--strict-config"]), [""; 0]);
    let refusal = start.refusal(&["--config", "/nonexistent/config.toml"]);
    assert!(refusal.starts_with("cannot read configuration file `/nonexistent/config.toml`: "));
    let huge = start.write("huge.toml", "#".repeat(1024 * 1024 + 1));
    assert_eq!(
        start.refusal(&["--config", &huge]),
        "cannot read configuration file `huge.toml`: file is larger than 1 MiB"
    );
    let binary = start.write("config.toml", [0xff]);
    assert_eq!(
        start.refusal(&["--config", &binary]),
        "cannot read configuration file `config.toml`: file is not UTF-8 text"
    );
    assert_eq!(start.warnings(&[]).len(), 1);
}

#[test]
fn overrides_name_keys_of_the_file() {
    let start = Start::new();
    let arguments = ["-c", "model=\"x\"", "-c", "session_ttl=9"];
    assert_eq!(
        start.warnings(&arguments),
        ["-c: ignoring unknown key `model`"]
    );
    assert_eq!(start.run(&arguments).unwrap().session_ttl.as_secs(), 9);
    assert_eq!(
        start.refusal(&["-cmodel=1", "--strict-config"]),
        "-c `model`: unknown key"
    );
    let refusal = start.refusal(&["-c", "session_ttl=soon"]);
    assert!(refusal.starts_with("-c `session_ttl`: invalid value: expected seconds"));
}

#[test]
fn feature_flags_are_ignored_with_a_warning() {
    let warnings = Start::new().warnings(&["--enable", "a", "--enable=b", "--disable", "c"]);
    assert_eq!(
        warnings,
        [
            "ignoring --enable a",
            "ignoring --enable b",
            "ignoring --disable c"
        ]
    );
}
