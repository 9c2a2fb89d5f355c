//! Approval, sandboxes, and one more attempt after a denial.

use std::sync::{Arc, Mutex};

use exec_wire::path_uri::PathUri;
use futures_util::future::{BoxFuture, FutureExt, ready};

use super::{Stage, command, seen};
use crate::unified::{
    Approval, ApprovalRequest, AskNothing, Denied, ExecCommand, ExecCommandError, Program,
    SandboxChoice, Settings, ToolPolicy,
};

/// Approves so many times, encloses the first attempt, and retries if told to.
#[derive(Debug)]
struct Strict {
    approvals: Mutex<usize>,
    retries: bool,
    asked: Mutex<Vec<String>>,
}

impl Strict {
    fn new(approvals: usize, retries: bool) -> Arc<Self> {
        Arc::new(Self {
            approvals: Mutex::new(approvals),
            retries,
            asked: Mutex::default(),
        })
    }

    fn note(&self, line: String) {
        self.asked.lock().unwrap().push(line);
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl ToolPolicy for Strict {
    fn approve(&self, request: ApprovalRequest) -> BoxFuture<'_, Approval> {
        let denied = request.denied.map(|denied| denied.exit_code);
        self.note(format!("approve {} {denied:?}", request.argv.join(" ")));
        let mut approvals = self.approvals.lock().unwrap();
        let approval = match approvals.checked_sub(1) {
            None => Approval::Refused("not today".to_owned()),
            Some(left) => {
                *approvals = left;
                Approval::Approved
            }
        };
        ready(approval).boxed()
    }

    fn sandbox(&self, request: &ApprovalRequest, attempt: usize) -> SandboxChoice {
        self.note(format!("sandbox {attempt}"));
        match attempt {
            0 => AskNothing {
                workspace: vec![request.cwd.clone()],
            }
            .sandbox(request, 0),
            _ => SandboxChoice::None,
        }
    }

    fn retry(&self, _: &ApprovalRequest, denied: &Denied) -> BoxFuture<'_, bool> {
        self.note(format!("retry {} {}", denied.exit_code, denied.output));
        ready(self.retries).boxed()
    }
}

fn staged(policy: &Arc<Strict>) -> Stage {
    let stage = Stage::with(Settings::default(), policy.clone());
    stage.backend.next(|fake| {
        fake.prints("no");
        fake.is_denied(1);
    });
    stage.backend.next(|fake| {
        fake.prints("yes");
        fake.exits(0);
        fake.closes();
    });
    stage
}

#[tokio::test(start_paused = true)]
async fn a_refusal_starts_nothing() {
    let policy = Strict::new(0, true);
    let stage = staged(&policy);
    let error = stage.exec.exec_command(command()).await.unwrap_err();
    assert!(
        matches!(&error, ExecCommandError::Refused(why) if why == "not today"),
        "{error}"
    );
    assert_eq!(stage.backend.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_denied_command_is_approved_again_and_run_once_more() {
    let policy = Strict::new(2, true);
    let stage = staged(&policy);
    let output = stage.run(command()).await;
    assert_eq!(seen(&output), ("yes", Some(0), false));
    let expected = [
        "approve prog None",
        "sandbox 0",
        "retry 1 no",
        "approve prog Some(1)",
        "sandbox 1",
    ];
    assert_eq!(policy.asked(), expected);
    let first = stage.backend.started(0).await.0.sandbox.unwrap();
    assert_eq!(
        first.workspace_roots,
        [PathUri::parse("file:///work").unwrap()]
    );
    assert!(stage.backend.started(1).await.0.sandbox.is_none());
    let told: Vec<String> = stage.told.lines();
    let told: Vec<&str> = told.iter().map(|line| &line[..9]).collect();
    let expected = [
        "c begin 1",
        "c Stdout ",
        "c end 1 O",
        "c begin 2",
        "c Stdout ",
        "c end 2 O",
    ];
    assert_eq!(told, expected);
}

#[tokio::test(start_paused = true)]
async fn a_second_denial_is_the_last_word() {
    let policy = Strict::new(9, true);
    let stage = Stage::with(Settings::default(), policy.clone());
    for _ in 0..2 {
        stage.backend.next(|fake| fake.is_denied(1));
    }
    let output = stage.run(command()).await;
    assert_eq!(seen(&output), ("", Some(1), false));
    assert_eq!(stage.backend.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_denied_command_is_shown_if_it_may_not_run_again() {
    for policy in [Strict::new(1, true), Strict::new(2, false)] {
        let stage = staged(&policy);
        let output = stage.run(command()).await;
        assert_eq!(seen(&output), ("no", Some(1), false));
        assert_eq!(stage.backend.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_to_run_is_said_before_anybody_is_asked() {
    let policy = Strict::new(1, true);
    let stage = staged(&policy);
    let empty = ExecCommand {
        program: Program::Argv(Vec::new()),
        ..command()
    };
    let error = stage.exec.exec_command(empty).await.unwrap_err();
    assert!(matches!(error, ExecCommandError::Empty), "{error}");
    assert!(policy.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_the_first_attempt_said_is_shown_if_the_second_does_not_start() {
    let policy = Strict::new(2, true);
    let stage = staged(&policy);
    stage.backend.starts_only(1);
    let output = stage.exec.exec_command(command()).await.unwrap();
    assert_eq!(seen(&output), ("no", Some(1), false));
}
