//! What holds wherever commands run.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use exec_env::environment::Environment;
use exec_tools::unified::{
    AskNothing, CallId, ExecCommand, ExecCommandError, ExecEvent, Program, View, WaitFor,
};
use exec_wire::path_uri::PathUri;

use crate::fixture::{Stage, code, sh, until};

pub(crate) async fn a_command_that_ends_is_shown_with_its_code(place: Environment) {
    let stage = Stage::new(place);
    let output = stage.run(sh("printf out; printf err >&2; exit 3")).await;
    let text = output.transcript.text.as_str();
    assert!(["outerr", "errout"].contains(&text), "{text}");
    assert_eq!((code(&output), output.running), (Some(3), None));
    assert!(output.wall_time < Duration::from_secs(20), "{output:?}");
    assert!(stage.exec.processes().is_empty());
}

pub(crate) async fn a_conversation_goes_on_where_it_stopped(place: Environment) {
    let stage = Stage::new(place);
    let wait = until("name\\? $");
    let line =
        "printf 'name? '; read n; echo hello $n; printf 'more? '; read m; echo bye $m; exit 4";
    let first = stage.run(ExecCommand { wait, ..sh(line) }).await;
    assert_eq!(first.transcript.text, "name? ");
    let number = first.running.unwrap();
    let second = stage.write(number, "ann\n", until("\\? $")).await;
    assert_eq!(second.transcript.text, "hello ann\nmore? ");
    let last = stage.write(number, "bob\n", WaitFor::Exit).await;
    assert_eq!(last.transcript.text, "bye bob\n");
    assert_eq!((code(&last), last.running), (Some(4), None));
}

pub(crate) async fn a_command_has_quiet_variables_and_its_own(place: Environment) {
    let stage = Stage::new(place);
    let line = "echo $PAGER $GIT_PAGER $TERM $NO_COLOR $LC_ALL $HOST_PLAIN [$HOST_TOKEN] $OWN";
    let env = BTreeMap::from([("OWN".to_owned(), "own".to_owned())]);
    let output = stage.run(ExecCommand { env, ..sh(line) }).await;
    assert_eq!(
        output.transcript.text,
        "cat cat dumb 1 C.UTF-8 plain [] own\n"
    );
}

pub(crate) async fn a_terminal_is_one(place: Environment) {
    let stage = Stage::new(place);
    let line = "test -t 0 && test -t 1 && stty size && echo $TERM [$NO_COLOR]";
    let output = stage
        .run(ExecCommand {
            tty: true,
            ..sh(line)
        })
        .await;
    assert_eq!(output.transcript.text, "24 80\nxterm-256color []\n");
    assert_eq!(code(&output), Some(0));
}

pub(crate) async fn a_screen_shows_what_was_drawn(place: Environment) {
    let stage = Stage::new(place);
    let line = r"printf 'gone\n\033[2J\033[2;3Hmenu\033[4;1H\033[7mquit\033[0m\033[2;3H'; read x";
    let call = ExecCommand {
        tty: true,
        view: View::Screen,
        wait: until("quit"),
        ..sh(line)
    };
    let output = stage.run(call).await;
    let shown = "\n  menu\n\nquit\n[cursor at row 2, column 3]\n";
    assert_eq!(output.transcript.text, shown);
    let ended = stage
        .write(output.running.unwrap(), "\n", WaitFor::Exit)
        .await;
    assert_eq!(code(&ended), Some(0));
}

async fn interrupted(place: Environment, call: ExecCommand) {
    let stage = Stage::new(place);
    let output = stage.run(call).await;
    let number = output.running.expect("it waits to be interrupted");
    let output = stage.write(number, "\u{3}", WaitFor::Exit).await;
    assert!(output.transcript.text.ends_with("caught\n"), "{output:?}");
    assert_eq!(code(&output), Some(7));
}

const TRAP: &str = "trap 'echo caught; exit 7' INT; echo ready; while :; do read x || exit 1; done";

pub(crate) async fn an_interrupt_reaches_a_command_with_a_terminal(place: Environment) {
    let wait = until("ready");
    let call = ExecCommand {
        tty: true,
        wait,
        ..sh(TRAP)
    };
    interrupted(place, call).await;
}

pub(crate) async fn an_interrupt_reaches_a_command_without_a_terminal(place: Environment) {
    let wait = until("ready");
    interrupted(place, ExecCommand { wait, ..sh(TRAP) }).await;
}

pub(crate) async fn much_output_keeps_its_two_ends(place: Environment) {
    let stage = Stage::new(place);
    let output = stage.run(sh("seq 1 300000")).await;
    let written: String = (1..=300_000).map(|line| format!("{line}\n")).collect();
    let text = &output.transcript.text;
    assert!(text.starts_with("1\n2\n3\n") && text.ends_with("\n299999\n300000\n"));
    let (from, to) = (text.find("[...").unwrap(), text.find("...]\n").unwrap() + 5);
    assert!(written.starts_with(&text[..from]) && written.ends_with(&text[to..]));
    assert!(from + text.len() - to <= 40_000);
    let shown = (from + text.len() - to) as u64;
    assert_eq!(
        output.transcript.omitted_bytes + shown,
        written.len() as u64
    );
    assert_eq!(output.transcript.original_tokens, written.len().div_ceil(4));
    assert_eq!(stage.told.output(), written.as_bytes());
    let (_, aggregated) = stage.told.end().await;
    assert!(aggregated.len() > 1 << 20 && aggregated.len() < (1 << 20) + 100);
}

pub(crate) async fn a_later_end_is_told_and_then_shown(place: Environment) {
    let stage = Stage::new(place);
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    let line = format!(
        "mkfifo {0}; echo waiting; read x < {0}; echo $x; exit 6",
        gate.display()
    );
    let wait = until("waiting");
    let output = stage.run(ExecCommand { wait, ..sh(&line) }).await;
    let number = output.running.unwrap();
    let opened = tokio::task::spawn_blocking(move || std::fs::write(gate, "late\n"));
    opened.await.unwrap().unwrap();
    let (told, aggregated) = stage.told.end().await;
    assert_eq!((told, aggregated.as_str()), (6, "waiting\nlate\n"));
    let output = stage.write(number, "", WaitFor::Exit).await;
    assert_eq!(
        (output.transcript.text.as_str(), code(&output)),
        ("late\n", Some(6))
    );
}

pub(crate) async fn something_left_in_the_background_does_not_hold_a_call(place: Environment) {
    let stage = Stage::new(place);
    let output = stage.run(sh("sleep 1000 & echo started")).await;
    assert_eq!(output.transcript.text, "started\n");
    assert_eq!((code(&output), output.running), (Some(0), None));
    assert!(output.wall_time < Duration::from_secs(20), "{output:?}");
}

pub(crate) async fn something_that_goes_on_writing_in_the_background_does_not_hold_a_call(
    place: Environment,
) {
    let stage = Stage::new(place);
    let output = stage.run(sh("yes & echo started")).await;
    assert_eq!((code(&output), output.running), (Some(0), None));
    assert!(output.wall_time < Duration::from_secs(20), "{output:?}");
}

pub(crate) async fn a_command_writes_in_its_workspace_only(place: Environment) {
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let workspace = outside.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let uri = |path: &Path| PathUri::from_native(path).unwrap();
    let policy = AskNothing {
        workspace: vec![uri(&workspace)],
    };
    let stage = Stage::with(place, Arc::new(policy));
    let call = ExecCommand {
        workdir: Some(uri(&workspace)),
        ..sh(
            "echo in > in.txt; t=$(mktemp) && echo t > $t && rm $t && cat in.txt; echo out > ../out.txt",
        )
    };
    let output = stage.run(call).await;
    assert!(output.transcript.text.starts_with("in\n"), "{output:?}");
    assert_ne!(code(&output), Some(0), "{output:?}");
    assert!(output.exit.unwrap().sandbox_denied);
    assert!(!outside.path().join("out.txt").exists());
}

pub(crate) async fn a_program_that_does_not_exist_is_said_so(place: Environment) {
    let stage = Stage::new(place);
    let call = ExecCommand {
        program: Program::Argv(vec!["/does/not/exist".to_owned()]),
        ..sh("")
    };
    let error = stage.exec.exec_command(call).await.unwrap_err();
    assert!(matches!(error, ExecCommandError::Start(_)), "{error:?}");
    assert!(stage.exec.processes().is_empty());
}

pub(crate) async fn a_call_that_is_dropped_ends_its_command(place: Environment) {
    let stage = Stage::new(place);
    let exec = stage.exec.clone();
    let call = tokio::spawn(async move { exec.exec_command(sh("echo on; exec sleep 1000")).await });
    let wrote = |event: &ExecEvent| matches!(event, ExecEvent::ExecCommandOutputDelta { .. });
    stage.told.first(|event| wrote(event).then_some(())).await;
    call.abort();
    let (told, output) = stage.told.end().await;
    assert_eq!((told, output.as_str()), (137, "on\n"));
    assert!(stage.exec.processes().is_empty());
}

pub(crate) async fn terminating_ends_the_tree(place: Environment) {
    let stage = Stage::new(place);
    let wait = until("both");
    let line = "trap '' TERM; sleep 1000 & echo both; sleep 1000";
    let output = stage.run(ExecCommand { wait, ..sh(line) }).await;
    let (call, number) = (CallId("t".to_owned()), output.running.unwrap());
    let output = stage.exec.terminate(&call, number).await.unwrap();
    assert_eq!((code(&output), output.running), (Some(137), None));
}
