//! Approval, sandboxes, and a retry after a denial.

use std::sync::{Arc, Mutex};

use exec_core::output_log::ExitInfo;
use exec_env::environment::StartError;
use exec_test_support::fake_process::{FakeProcess, exit_info};
use exec_wire::{path_uri::PathUri, sandbox::SandboxPolicy};
use futures_util::future::{BoxFuture, FutureExt, ready};

use super::{ExecFixture, command, summary};
use crate::unified::{
    ApprovalDecision, ApprovalRequest, CommandProgram, ExecCommand, ExecCommandError,
    SandboxDenial, ToolPolicy, UnifiedExecSettings, WorkspaceWritePolicy,
};

/// Approves a number of times, sandboxes the first attempt, and retries if configured.
#[derive(Debug)]
struct ScriptedPolicy {
    approvals: Mutex<usize>,
    retries: bool,
    requests: Mutex<Vec<String>>,
}

impl ScriptedPolicy {
    fn new(approvals: usize, retries: bool) -> Arc<Self> {
        Arc::new(Self {
            approvals: Mutex::new(approvals),
            retries,
            requests: Mutex::default(),
        })
    }

    fn note(&self, line: String) {
        self.requests.lock().unwrap().push(line);
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl ToolPolicy for ScriptedPolicy {
    fn approve(&self, request: ApprovalRequest) -> BoxFuture<'_, ApprovalDecision> {
        let denied = request.denied.map(|denied| denied.exit_code);
        self.note(format!("approve {} {denied:?}", request.argv.join(" ")));
        let mut approvals = self.approvals.lock().unwrap();
        let approval = match approvals.checked_sub(1) {
            None => ApprovalDecision::Refused("not today".to_owned()),
            Some(remaining) => {
                *approvals = remaining;
                ApprovalDecision::Approved
            }
        };
        ready(approval).boxed()
    }

    fn sandbox(&self, request: &ApprovalRequest, attempt: usize) -> Option<Box<SandboxPolicy>> {
        self.note(format!("sandbox {attempt}"));
        match attempt {
            0 => WorkspaceWritePolicy {
                workspace: vec![request.cwd.clone()],
            }
            .sandbox(request, 0),
            _ => None,
        }
    }

    fn retry(&self, _: &ApprovalRequest, denied: &SandboxDenial) -> BoxFuture<'_, bool> {
        self.note(format!("retry {} {}", denied.exit_code, denied.output));
        ready(self.retries).boxed()
    }
}

/// Ends the command because of its sandbox.
fn deny(fake: &FakeProcess) {
    fake.exit_with(ExitInfo {
        sandbox_denied: true,
        ..exit_info(1)
    });
    fake.close();
}

fn fixture_with(policy: &Arc<ScriptedPolicy>) -> ExecFixture {
    let fixture = ExecFixture::with(UnifiedExecSettings::default(), policy.clone());
    fixture.backend.script_next(|fake| {
        fake.print("no");
        deny(fake);
    });
    fixture.backend.script_next(|fake| {
        fake.print("yes");
        fake.exit(0);
        fake.close();
    });
    fixture
}

#[tokio::test(start_paused = true)]
async fn refused_command_is_not_started() {
    let policy = ScriptedPolicy::new(0, true);
    let fixture = fixture_with(&policy);
    let error = fixture.exec.exec_command(command()).await.unwrap_err();
    assert!(
        matches!(&error, ExecCommandError::Refused(why) if why == "not today"),
        "{error}"
    );
    assert_eq!(fixture.backend.start_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn denied_command_is_approved_and_run_again() {
    let policy = ScriptedPolicy::new(2, true);
    let fixture = fixture_with(&policy);
    let output = fixture.run(command()).await;
    assert_eq!(summary(&output), ("yes", Some(0), false));
    let expected = [
        "approve prog None",
        "sandbox 0",
        "retry 1 no",
        "approve prog Some(1)",
        "sandbox 1",
    ];
    assert_eq!(policy.requests(), expected);
    let first = fixture.backend.started(0).await.0.sandbox.unwrap();
    assert_eq!(
        first.workspace_roots,
        [PathUri::parse("file:///work").unwrap()]
    );
    assert!(fixture.backend.started(1).await.0.sandbox.is_none());
    let events: Vec<String> = fixture.events.lines();
    let events: Vec<&str> = events.iter().map(|line| &line[..9]).collect();
    let expected = [
        "c begin 1",
        "c Stdout ",
        "c end 1 O",
        "c begin 2",
        "c Stdout ",
        "c end 2 O",
    ];
    assert_eq!(events, expected);
}

#[tokio::test(start_paused = true)]
async fn second_denial_is_final() {
    let policy = ScriptedPolicy::new(9, true);
    let fixture = ExecFixture::with(UnifiedExecSettings::default(), policy.clone());
    for _ in 0..2 {
        fixture.backend.script_next(deny);
    }
    let output = fixture.run(command()).await;
    assert_eq!(summary(&output), ("", Some(1), false));
    assert_eq!(fixture.backend.start_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn denied_command_is_shown_if_not_retried() {
    for policy in [ScriptedPolicy::new(1, true), ScriptedPolicy::new(2, false)] {
        let fixture = fixture_with(&policy);
        let output = fixture.run(command()).await;
        assert_eq!(summary(&output), ("no", Some(1), false));
        assert_eq!(fixture.backend.start_count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn empty_command_is_rejected_before_approval() {
    let policy = ScriptedPolicy::new(1, true);
    let fixture = fixture_with(&policy);
    let empty = ExecCommand {
        program: CommandProgram::Argv(Vec::new()),
        ..command()
    };
    let error = fixture.exec.exec_command(empty).await.unwrap_err();
    assert!(matches!(error, ExecCommandError::Empty), "{error}");
    assert!(policy.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn first_attempt_is_shown_if_the_retry_does_not_start() {
    let policy = ScriptedPolicy::new(2, true);
    let fixture = fixture_with(&policy);
    let mut processes = vec![FakeProcess::default()];
    fixture
        .backend
        .on_start(move |_| processes.pop().ok_or(StartError::EmptyArgv));
    let output = fixture.exec.exec_command(command()).await.unwrap();
    assert_eq!(summary(&output), ("no", Some(1), false));
}
