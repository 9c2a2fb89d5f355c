//! Cases that hold in every environment.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use exec_env::environment::Environment;
use exec_tools::unified::{
    CommandProgram, ExecCommand, ExecCommandError, ExecEvent, OutputView, WaitFor,
    WorkspaceWritePolicy,
};
use exec_wire::path_uri::PathUri;

use crate::fixture::{ExecFixture, exit_code, shell_command, wait_for_pattern};

pub(crate) async fn finished_command_is_shown_with_its_exit_code(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let output = fixture
        .run(shell_command("printf out; printf err >&2; exit 3"))
        .await;
    let text = output.transcript.text.as_str();
    assert!(["outerr", "errout"].contains(&text), "{text}");
    assert_eq!((exit_code(&output), output.running), (Some(3), None));
    assert!(output.wall_time < Duration::from_secs(20), "{output:?}");
    assert!(fixture.exec.processes().is_empty());
}

pub(crate) async fn interactive_session_continues_across_calls(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let wait = wait_for_pattern("name\\? $");
    let line =
        "printf 'name? '; read n; echo hello $n; printf 'more? '; read m; echo bye $m; exit 4";
    let first = fixture
        .run(ExecCommand {
            wait,
            ..shell_command(line)
        })
        .await;
    assert_eq!(first.transcript.text, "name? ");
    let number = first.running.unwrap();
    let second = fixture
        .write(number, "ann\n", wait_for_pattern("\\? $"))
        .await;
    assert_eq!(second.transcript.text, "hello ann\nmore? ");
    let last = fixture.write(number, "bob\n", WaitFor::Exit).await;
    assert_eq!(last.transcript.text, "bye bob\n");
    assert_eq!((exit_code(&last), last.running), (Some(4), None));
}

pub(crate) async fn command_gets_noninteractive_and_custom_variables(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let line = "echo $PAGER $GIT_PAGER $TERM $NO_COLOR $LC_ALL $HOST_PLAIN [$HOST_TOKEN] $OWN";
    let env = BTreeMap::from([("OWN".to_owned(), "own".to_owned())]);
    let output = fixture
        .run(ExecCommand {
            env,
            ..shell_command(line)
        })
        .await;
    assert_eq!(
        output.transcript.text,
        "cat cat dumb 1 C.UTF-8 plain [] own\n"
    );
}

pub(crate) async fn tty_command_gets_a_terminal(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let line = "test -t 0 && test -t 1 && stty size && echo $TERM [$NO_COLOR]";
    let output = fixture
        .run(ExecCommand {
            tty: true,
            ..shell_command(line)
        })
        .await;
    assert_eq!(output.transcript.text, "24 80\nxterm-256color []\n");
    assert_eq!(exit_code(&output), Some(0));
}

pub(crate) async fn screen_view_shows_the_drawing(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let line = r"printf 'gone\n\033[2J\033[2;3Hmenu\033[4;1H\033[7mquit\033[0m\033[2;3H'; read x";
    let call = ExecCommand {
        tty: true,
        view: OutputView::Screen,
        wait: wait_for_pattern("quit"),
        ..shell_command(line)
    };
    let output = fixture.run(call).await;
    let expected = "\n  menu\n\nquit\n[cursor at row 2, column 3]\n";
    assert_eq!(output.transcript.text, expected);
    let ended = fixture
        .write(output.running.unwrap(), "\n", WaitFor::Exit)
        .await;
    assert_eq!(exit_code(&ended), Some(0));
}

async fn expect_interrupt(environment: Environment, call: ExecCommand) {
    let fixture = ExecFixture::new(environment);
    let output = fixture.run(call).await;
    let number = output.running.expect("the command keeps running");
    let output = fixture.write(number, "\u{3}", WaitFor::Exit).await;
    assert!(output.transcript.text.ends_with("caught\n"), "{output:?}");
    assert_eq!(exit_code(&output), Some(7));
}

const TRAP: &str = "trap 'echo caught; exit 7' INT; echo ready; while :; do read x || exit 1; done";

pub(crate) async fn interrupt_reaches_a_command_with_a_terminal(environment: Environment) {
    let wait = wait_for_pattern("ready");
    let call = ExecCommand {
        tty: true,
        wait,
        ..shell_command(TRAP)
    };
    expect_interrupt(environment, call).await;
}

pub(crate) async fn interrupt_reaches_a_command_without_a_terminal(environment: Environment) {
    let wait = wait_for_pattern("ready");
    expect_interrupt(
        environment,
        ExecCommand {
            wait,
            ..shell_command(TRAP)
        },
    )
    .await;
}

pub(crate) async fn large_output_keeps_its_head_and_tail(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let output = fixture.run(shell_command("seq 1 300000")).await;
    let written: String = (1..=300_000).map(|line| format!("{line}\n")).collect();
    let text = &output.transcript.text;
    assert!(text.starts_with("1\n2\n3\n") && text.ends_with("\n299999\n300000\n"));
    let (from, to) = (text.find("[...").unwrap(), text.find("...]\n").unwrap() + 5);
    assert!(written.starts_with(&text[..from]) && written.ends_with(&text[to..]));
    assert!(from + text.len() - to <= 40_000);
    let shown_bytes = (from + text.len() - to) as u64;
    assert_eq!(
        output.transcript.omitted_bytes + shown_bytes,
        written.len() as u64
    );
    assert_eq!(output.transcript.original_tokens, written.len().div_ceil(4));
    assert_eq!(fixture.events.output(), written.as_bytes());
    let (_, aggregated) = fixture.events.end().await;
    assert!(aggregated.len() > 1 << 20 && aggregated.len() < (1 << 20) + 100);
}

pub(crate) async fn later_exit_is_reported_and_then_shown(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    let line = format!(
        "mkfifo {0}; echo waiting; read x < {0}; echo $x; exit 6",
        gate.display()
    );
    let wait = wait_for_pattern("waiting");
    let output = fixture
        .run(ExecCommand {
            wait,
            ..shell_command(&line)
        })
        .await;
    let number = output.running.unwrap();
    let opened = tokio::task::spawn_blocking(move || std::fs::write(gate, "late\n"));
    opened.await.unwrap().unwrap();
    let (events, aggregated) = fixture.events.end().await;
    assert_eq!((events, aggregated.as_str()), (6, "waiting\nlate\n"));
    let output = fixture.write(number, "", WaitFor::Exit).await;
    assert_eq!(
        (output.transcript.text.as_str(), exit_code(&output)),
        ("late\n", Some(6))
    );
}

pub(crate) async fn background_process_does_not_block_a_call(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let output = fixture
        .run(shell_command("sleep 1000 & echo started"))
        .await;
    assert_eq!(output.transcript.text, "started\n");
    assert_eq!((exit_code(&output), output.running), (Some(0), None));
    assert!(output.wall_time < Duration::from_secs(20), "{output:?}");
}

pub(crate) async fn endless_background_output_does_not_block_a_call(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let output = fixture.run(shell_command("yes & echo started")).await;
    assert_eq!((exit_code(&output), output.running), (Some(0), None));
    assert!(output.wall_time < Duration::from_secs(20), "{output:?}");
}

pub(crate) async fn command_writes_only_in_its_workspace(environment: Environment) {
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let workspace = outside.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let uri = |path: &Path| PathUri::from_native(path).unwrap();
    let policy = WorkspaceWritePolicy {
        workspace: vec![uri(&workspace)],
    };
    let fixture = ExecFixture::with(environment, Arc::new(policy));
    let call = ExecCommand {
        workdir: Some(uri(&workspace)),
        ..shell_command(
            "echo in > in.txt; t=$(mktemp) && echo t > $t && rm $t && cat in.txt; echo out > ../out.txt",
        )
    };
    let output = fixture.run(call).await;
    assert!(output.transcript.text.starts_with("in\n"), "{output:?}");
    assert_ne!(exit_code(&output), Some(0), "{output:?}");
    assert!(output.exit.unwrap().sandbox_denied);
    assert!(!outside.path().join("out.txt").exists());
}

pub(crate) async fn missing_program_is_a_start_error(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let call = ExecCommand {
        program: CommandProgram::Argv(vec!["/does/not/exist".to_owned()]),
        ..shell_command("")
    };
    let error = fixture.exec.exec_command(call).await.unwrap_err();
    assert!(matches!(error, ExecCommandError::Start(_)), "{error:?}");
    assert!(fixture.exec.processes().is_empty());
}

pub(crate) async fn dropped_call_terminates_its_command(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let exec = fixture.exec.clone();
    let call = tokio::spawn(async move {
        exec.exec_command(shell_command("echo on; exec sleep 1000"))
            .await
    });
    let wrote = |event: &ExecEvent| matches!(event, ExecEvent::ExecCommandOutputDelta { .. });
    fixture
        .events
        .first(|event| wrote(event).then_some(()))
        .await;
    call.abort();
    let (events, output) = fixture.events.end().await;
    assert_eq!((events, output.as_str()), (137, "on\n"));
    assert!(fixture.exec.processes().is_empty());
}

pub(crate) async fn terminate_kills_the_process_tree(environment: Environment) {
    let fixture = ExecFixture::new(environment);
    let wait = wait_for_pattern("both");
    let line = "trap '' TERM; sleep 1000 & echo both; sleep 1000";
    let output = fixture
        .run(ExecCommand {
            wait,
            ..shell_command(line)
        })
        .await;
    let number = output.running.unwrap();
    let output = fixture.exec.terminate(number).await.unwrap();
    assert_eq!((exit_code(&output), output.running), (Some(137), None));
}
