//! The environment variables, `arg0` and working directory of a process.

use std::{collections::BTreeMap, path::Path};

use exec_env::environment::Command;
use exec_wire::process::{EnvInherit, EnvPolicy, ProcessMetadata};

use crate::{
    bounded_wait::within,
    difference::Difference,
    scratch_dir::ScratchDir,
    subject::{HOST_ENVIRONMENT, Subject, on_terminal, uri},
};

const POLICY: EnvPolicy = EnvPolicy {
    inherit: EnvInherit::All,
    ignore_default_excludes: false,
    exclude: Vec::new(),
    set: BTreeMap::new(),
    include_only: Vec::new(),
};

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

async fn environment_of(subject: &Subject, command: Command) -> BTreeMap<String, String> {
    let told = subject.start(command).await.finish().await;
    assert_eq!(told.code(), 0);
    let text = told.text();
    map(&text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect::<Vec<_>>())
}

async fn under_policy(
    subject: &Subject,
    policy: EnvPolicy,
    env: &[(&str, &str)],
) -> BTreeMap<String, String> {
    let command = subject.probe(&["environment"]);
    environment_of(
        subject,
        Command {
            env: map(env),
            env_policy: Some(policy),
            ..command
        },
    )
    .await
}

pub async fn environment_is_exactly_the_given_map(subject: &Subject) {
    let given = map(&[
        ("A", "1"),
        ("EMPTY", ""),
        ("UNICODE", "ü€"),
        ("EQUALS", "x=y"),
    ]);
    let command = Command {
        env: given.clone(),
        ..subject.probe(&["environment"])
    };
    assert_eq!(environment_of(subject, command).await, given);
    let command = Command {
        env: BTreeMap::new(),
        ..subject.probe(&["environment"])
    };
    assert_eq!(environment_of(subject, command).await, BTreeMap::new());
}

pub async fn env_policy_inherits_all_but_secrets(subject: &Subject) {
    let [(plain, value), (secret, hidden)] = HOST_ENVIRONMENT;
    let env = under_policy(subject, POLICY, &[("OWN", "1")]).await;
    assert_eq!(env.get(plain).map(String::as_str), Some(value));
    assert_eq!(env.get("OWN").map(String::as_str), Some("1"));
    assert!(env.contains_key("PATH") && !env.contains_key(secret));
    let policy = EnvPolicy {
        ignore_default_excludes: true,
        ..POLICY
    };
    let env = under_policy(subject, policy, &[]).await;
    assert_eq!(env.get(secret).map(String::as_str), Some(hidden));
}

pub async fn env_policy_inherits_the_core_or_nothing(subject: &Subject) {
    let policy = EnvPolicy {
        inherit: EnvInherit::Core,
        ..POLICY
    };
    let env = under_policy(subject, policy, &[]).await;
    assert!(
        env.contains_key("PATH") && !env.contains_key(HOST_ENVIRONMENT[0].0),
        "{env:?}"
    );
    let policy = EnvPolicy {
        inherit: EnvInherit::None,
        set: map(&[("SET", "1")]),
        ..POLICY
    };
    let env = under_policy(subject, policy, &[("OWN", "2")]).await;
    assert_eq!(env, map(&[("SET", "1"), ("OWN", "2")]));
}

pub async fn env_policy_filters_by_pattern(subject: &Subject) {
    let plain = HOST_ENVIRONMENT[0].0;
    let policy = EnvPolicy {
        exclude: vec!["exec_conformance_*".to_owned()],
        ..POLICY
    };
    assert!(!under_policy(subject, policy, &[]).await.contains_key(plain));
    let policy = EnvPolicy {
        set: map(&[("KEPT", "1"), ("DROPPED", "1")]),
        include_only: vec!["EXEC_*PLAIN".to_owned(), "KEP?".to_owned()],
        ..POLICY
    };
    let env = under_policy(subject, policy, &[("OVERLAY", "1")]).await;
    // Variables set by the request are not filtered.
    assert_eq!(
        env,
        map(&[
            ("KEPT", "1"),
            ("OVERLAY", "1"),
            (plain, HOST_ENVIRONMENT[0].1)
        ])
    );
}

pub async fn thread_and_tool_call_ids_are_exported(subject: &Subject) {
    let metadata = ProcessMetadata {
        thread_id: Some("0b0c2d9e-6f1a-4b43-9a57-3c1f6f0e2a11".to_owned()),
        tool_call_id: Some("call 1".to_owned()),
    };
    let thread = metadata.thread_id.clone().unwrap();
    let command = Command {
        metadata,
        env: BTreeMap::new(),
        ..subject.probe(&["environment"])
    };
    let expected = map(&[
        ("CODEX_THREAD_ID", &thread),
        ("CODEX_TOOL_CALL_ID", "call 1"),
    ]);
    assert_eq!(environment_of(subject, command).await, expected);
}

pub async fn arg0_changes_only_the_name(subject: &Subject) {
    let command = subject.probe(&["arguments", "two words", ""]);
    let renamed = || Command {
        arg0: Some("another".to_owned()),
        ..command.clone()
    };
    let told = subject.start(renamed()).await.finish().await;
    assert_eq!(told.text(), "another\narguments\ntwo words\n\n");
    let again = Command {
        process_id: subject.command(&[]).process_id,
        ..renamed()
    };
    if subject.differs(Difference::TerminalsRunArg0) {
        let error = subject.refused(on_terminal(again, 24, 80)).await;
        return assert!(error.to_string().contains("another"), "{error}");
    }
    let told = subject
        .start(on_terminal(again, 24, 80))
        .await
        .finish()
        .await;
    assert_eq!(
        told.terminal(),
        b"another\r\narguments\r\ntwo words\r\n\r\n"
    );
}

pub async fn command_starts_in_its_working_directory(subject: &Subject) {
    let scratch = ScratchDir::new();
    let directory = scratch.path("with space");
    std::fs::create_dir(&directory).unwrap();
    let directory = directory.canonicalize().unwrap();
    let command = Command {
        cwd: uri(&directory),
        ..subject.command(&["pwd"])
    };
    let told = subject.start(command).await.finish().await;
    assert_eq!(Path::new(told.text().trim_end()), directory);
}

pub async fn program_is_looked_up_in_the_childs_path(subject: &Subject) {
    let probe = Path::new(subject.probe_path());
    let name = probe.file_name().unwrap().to_str().unwrap();
    let path = probe.parent().unwrap().to_str().unwrap();
    let command = Command {
        env: map(&[("PATH", path)]),
        ..subject.command(&[name, "arguments"])
    };
    let told = subject.start(command).await.finish().await;
    assert_eq!(told.text(), format!("{name}\narguments\n"));
}

pub async fn environment_info_describes_the_host(subject: &Subject) {
    let info = within("response arrives", subject.backend.info())
        .await
        .unwrap();
    assert!(Path::new(&info.shell.path).is_absolute());
    assert_eq!(info.platform_os.as_deref(), Some(std::env::consts::OS));
    assert!(info.cwd.is_some());
}
