//! Behaviour of sandboxed processes other than file access.

use std::{net::TcpListener, path::Path, process};

use exec_env::environment::{Command, StartError, StartedProcess};
use exec_wire::{
    error::ErrorCode,
    process::{ExitCause, SandboxType, TerminateMode},
};
use futures_util::future::join_all;
use serde_json::json;

use super::sandbox_file_access::run;
use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::{FollowedProcess, contains},
    pattern,
    sandbox_policy::{PolicyBuilder, glob, path, special},
    scratch_dir::{LifelinePipe, ScratchDir},
    subject::{Subject, on_terminal, piped},
};

/// Returns policies that need different enforcement mechanisms.
fn policies(root: &Path) -> [PolicyBuilder; 5] {
    let minimal = PolicyBuilder::minimal().entry(path(root), "write");
    [
        PolicyBuilder::read_only(),
        PolicyBuilder::read_only().with_network(),
        PolicyBuilder::workspace(root),
        PolicyBuilder::workspace(root).with_network(),
        minimal,
    ]
}

/// Returns policies that restrict nothing.
fn open_policies() -> [PolicyBuilder; 4] {
    let unrestricted = json!({"type": "unrestricted"});
    [
        PolicyBuilder::of(&json!({"type": "disabled"})),
        PolicyBuilder::of(&json!({"type": "external", "network": "enabled"})),
        PolicyBuilder::of(
            &json!({"type": "managed", "file_system": unrestricted, "network": "enabled"}),
        ),
        PolicyBuilder::nothing()
            .entry(special("root"), "write")
            .with_network(),
    ]
}

async fn started(subject: &Subject, command: Command) -> StartedProcess {
    let started = within("command starts", subject.backend.start(command)).await;
    started.expect("command failed to start")
}

pub async fn exit_code_is_reported_from_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    for policy in policies(scratch.root()) {
        for code in [0, 1, 3, 126, 127] {
            let told = run(subject, &policy, &format!("exit {code}"), &[]).await;
            let exit = told.exit().unwrap();
            subject.assert_end(&exit, code, None, ExitCause::Exit);
            assert!(!exit.sandbox_denied, "nothing speaks of a denial");
        }
    }
}

pub async fn signal_death_is_reported_from_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    for policy in policies(scratch.root()) {
        for (script, code, signal) in [
            ("kill -KILL $$", 137, "SIGKILL"),
            ("kill -TERM $$", 143, "SIGTERM"),
            ("kill -SYS $$", 159, "SIGSYS"),
        ] {
            let told = run(subject, &policy, script, &[]).await;
            let exit = told.exit().unwrap();
            subject.assert_end(&exit, code, Some(signal), ExitCause::Signal);
            assert_eq!(exit.sandbox_denied, code == 159, "{script}");
        }
    }
}

pub async fn unrestricted_policy_restricts_nothing(subject: &Subject) {
    let scratch = ScratchDir::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for policy in open_policies() {
        let new = scratch.path("new");
        let script = r#"echo x >"$1" && rm "$1" && mkdir "$1" && rmdir "$1""#;
        let told = run(subject, &policy, script, &[&new]).await;
        assert_eq!(told.code(), 0, "{policy:?}");
        let connect = policy.sandboxed_command(subject.probe(&["connect", &address]));
        assert_eq!(subject.start(connect).await.finish().await.code(), 0);
        let told = started(subject, policy.sandboxed_command(subject.sh("exit 0", &[]))).await;
        assert_eq!(told.sandbox_type, Some(enclosing()));
    }
}

fn enclosing() -> SandboxType {
    if cfg!(target_os = "macos") {
        SandboxType::MacosSeatbelt
    } else {
        SandboxType::LinuxSeccomp
    }
}

pub async fn sandbox_type_is_reported(subject: &Subject) {
    let scratch = ScratchDir::new();
    let exit = || subject.sh("exit 0", &[]);
    let free = started(subject, exit()).await;
    assert_eq!(free.sandbox_type, Some(SandboxType::None));
    for policy in policies(scratch.root()) {
        let enclosed = started(subject, policy.sandboxed_command(exit())).await;
        assert_eq!(enclosed.sandbox_type, Some(enclosing()));
    }
}

pub async fn sandbox_denied_is_false_without_a_sandbox(subject: &Subject) {
    let script = "echo Permission denied >&2; exit 1";
    let told = subject.start(subject.sh(script, &[])).await.finish().await;
    assert!(!told.exit().unwrap().sandbox_denied);
    let told = subject
        .start(subject.sh("kill -SYS $$", &[]))
        .await
        .finish()
        .await;
    assert!(!told.exit().unwrap().sandbox_denied);
}

pub async fn sandbox_has_no_network_unless_enabled(subject: &Subject) {
    let scratch = ScratchDir::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let unrestricted = json!({"type": "unrestricted"});
    let open = json!({"type": "managed", "file_system": unrestricted, "network": "restricted"});
    let probe = Path::new(subject.probe_path());
    let closed = [
        PolicyBuilder::read_only(),
        PolicyBuilder::workspace(scratch.root()),
        PolicyBuilder::minimal().entry(path(probe), "read"),
        PolicyBuilder::of(&open),
        PolicyBuilder::of(&json!({"type": "external", "network": "restricted"})),
    ];
    for policy in closed {
        let connect = policy.sandboxed_command(subject.probe(&["connect", &address]));
        let told = subject.start(connect).await.finish().await;
        assert_eq!(told.code(), 1, "{policy:?}");
        assert!(listener.accept().is_err(), "unexpected connection");
    }
    for policy in [
        PolicyBuilder::read_only().with_network(),
        PolicyBuilder::workspace(scratch.root()).with_network(),
    ] {
        let connect = policy.sandboxed_command(subject.probe(&["connect", &address]));
        let told = subject.start(connect).await.finish().await;
        assert_eq!(told.code(), 0, "{policy:?}");
        assert!(listener.accept().is_ok(), "no connection arrived");
    }
}

pub async fn signals_do_not_leave_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let pid = process::id().to_string();
    let script = r#"kill -0 "$1""#;
    let free = subject.start(subject.sh(script, &[&pid])).await;
    assert_eq!(free.finish().await.code(), 0, "without one they do");
    for policy in policies(scratch.root()) {
        let command = policy.sandboxed_command(subject.sh(script, &[&pid]));
        let told = subject.start(command).await.finish().await;
        assert_ne!(told.code(), 0, "{policy:?}");
    }
}

pub async fn terminal_works_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let script = r#"
        [ -t 0 ] && [ -t 1 ] && [ -t 2 ] || exit 1
        echo controlling >/dev/tty
        read line
        echo "got $line"
        exit 5
    "#;
    for policy in policies(scratch.root()) {
        let command = on_terminal(policy.sandboxed_command(subject.sh(script, &[])), 24, 80);
        let mut running = subject.start(command).await;
        if subject.differs(Difference::SandboxedTerminalsAreNotControlling) {
            running
                .until_terminal_contains("cannot create /dev/tty")
                .await;
        } else {
            running.until_terminal_contains("controlling").await;
        }
        running.write(b"this\n").await;
        let told = running.finish().await;
        assert_eq!(told.code(), 5, "{policy:?}");
        assert!(contains(&told.terminal(), "got this"));
    }
}

pub async fn stdin_and_stdout_work_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let probe = Path::new(subject.probe_path());
    let cat: &[&str] = if subject.differs(Difference::NoCloseStdin) {
        &["head", "-c", "7"]
    } else {
        &["cat"]
    };
    for policy in policies(scratch.root()) {
        let cat = subject
            .start(policy.sandboxed_command(piped(subject.command(cat))))
            .await;
        cat.write(b"through").await;
        cat.close_stdin().await;
        assert_eq!(cat.finish().await.text(), "through");
    }
    for policy in [
        PolicyBuilder::read_only(),
        PolicyBuilder::minimal().entry(path(probe), "read"),
    ] {
        let bytes = 3 << 20;
        let emit = policy.sandboxed_command(subject.probe(&["emit", &bytes.to_string()]));
        let told = subject.start(emit).await.finish().await;
        pattern::assert_same(&told.stdout(), &pattern::bytes(bytes));
    }
}

/// Starts a process tree that holds the lifeline, under a policy that allows it.
async fn tree(subject: &Subject, scratch: &ScratchDir, lifeline: &LifelinePipe) -> FollowedProcess {
    let script = r#"
        exec 9>"$1"
        sleep 1000 &
        setsid sh -c 'setsid sleep 1000 </dev/null >/dev/null 2>&1 & exit' &
        wait $!
        echo held >&9
        exec sleep 1000
    "#;
    let policy = PolicyBuilder::workspace(scratch.root());
    let command = policy.sandboxed_command(subject.sh(script, &[lifeline.path()]));
    let running = subject.start(command).await;
    lifeline.held().await;
    running
}

pub async fn terminate_kills_the_whole_tree_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    let running = tree(subject, &scratch, &lifeline).await;
    let terminate = running.process.terminate(TerminateMode::Force);
    assert_eq!(within("terminate completes", terminate).await, Ok(true));
    lifeline.gone().await;
    let exit = running.finish().await.exit().unwrap();
    subject.assert_end(&exit, 137, Some("SIGKILL"), ExitCause::Terminated);
}

pub async fn dropping_the_last_handle_kills_the_tree_in_a_sandbox(subject: &Subject) {
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    drop(tree(subject, &scratch, &lifeline).await);
    lifeline.gone().await;
}

pub async fn descendants_in_a_sandbox_keep_writing_after_exit(subject: &Subject) {
    for which in 0..5 {
        let scratch = ScratchDir::new();
        let gate = scratch.gate();
        let policy = &policies(scratch.root())[which];
        let script = r#"(read line <"$1"; echo late) & exit 3"#;
        let command = policy.sandboxed_command(subject.sh(script, &[gate.path()]));
        let mut running = subject.start(command).await;
        assert_eq!(running.exit().await.code, 3);
        if !subject.differs(Difference::SandboxesEndWithTheirCommand) {
            gate.open();
            assert_eq!(running.finish().await.text(), "late\n");
        } else {
            assert_eq!(running.finish().await.text(), "");
        }
    }
}

pub async fn many_sandboxes_run_concurrently(subject: &Subject) {
    let scratch = ScratchDir::new();
    let runs = (0..16).map(|number| {
        let root = scratch.directory(number.to_string());
        async move {
            let script = r#"echo x >"$1/file" && exit 3"#;
            let told = run(subject, &PolicyBuilder::workspace(&root), script, &[&root]).await;
            assert_eq!(told.code(), 3);
        }
    });
    join_all(runs).await;
}

pub async fn unenforceable_policy_is_refused_for_processes(subject: &Subject) {
    let scratch = ScratchDir::new();
    let entry = "entries[1]";
    let broken = |pattern: &str, access: &str| {
        PolicyBuilder::read_only()
            .entry(glob(pattern), access)
            .rooted(scratch.root())
    };
    for (policy, culprit) in [
        (broken("**/.env", "read"), entry),
        (broken("**/.env", "write"), entry),
        (broken("/**/.env", "deny"), entry),
        (broken("/*/.env", "deny"), entry),
        (broken("[", "deny"), entry),
        (
            PolicyBuilder::read_only().with("windowsSandboxLevel", json!("mxc")),
            "windowsSandboxLevel",
        ),
        (
            PolicyBuilder::workspace(scratch.root()).with("useLegacyLandlock", json!(true)),
            "useLegacyLandlock",
        ),
    ] {
        let command = policy.sandboxed_command(subject.sh("exit 0", &[]));
        if culprit != "windowsSandboxLevel" && subject.differs(Difference::FewerRefusals) {
            drop(subject.start(command).await);
            continue;
        }
        let error = subject.refused(command).await;
        let refused = matches!(&error, StartError::Refused { .. })
            || matches!(&error, StartError::Remote(error) if error.code == ErrorCode::INVALID_PARAMS);
        assert!(refused, "{error:?}");
        subject.assert_names(&error.to_string(), culprit);
    }
}
