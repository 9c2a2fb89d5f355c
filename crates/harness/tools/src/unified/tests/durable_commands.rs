//! Commands of a store that outlive the program that started them.

use std::sync::{Arc, Mutex};

use exec_env::{
    environment::{Command, Environment, ExecBackend, StartError, StartedProcess},
    process::{ExecProcess, ProcessError},
};
use exec_test_support::fake_environment::FakeBackend;
use exec_wire::{
    error::RpcError,
    id::ProcessId,
    process::{ProcessOwner, ProcessSummary},
};
use futures_util::future::{BoxFuture, FutureExt, ready};

use super::{ExecFixture, command, quick, summary, write};
use crate::unified::{
    CommandStore, Durability, HandleScope, NullEventSink, OutputView, UnifiedExec,
    UnifiedExecSettings, UnrestrictedPolicy,
};

/// Keeps every process until it is forgotten.
#[derive(Debug, Default)]
struct FakeStore {
    backend: Arc<FakeBackend>,
    kept: Mutex<Vec<(ProcessSummary, Arc<dyn ExecProcess>)>>,
}

impl FakeStore {
    fn ids(&self) -> Vec<ProcessId> {
        let kept = self.kept.lock().unwrap();
        kept.iter().map(|(one, _)| one.process_id.clone()).collect()
    }

    /// Creates a program with the store.
    fn program(self: &Arc<Self>, scope: &str) -> UnifiedExec {
        let environment: Environment = self.backend.environment();
        let settings = UnifiedExecSettings {
            scope: HandleScope::new(scope),
            ..UnifiedExecSettings::default()
        };
        UnifiedExec::with_store(
            environment,
            settings,
            Arc::new(UnrestrictedPolicy),
            Arc::new(NullEventSink),
            Arc::<Self>::clone(self),
        )
    }
}

impl CommandStore for FakeStore {
    fn durability(&self) -> Durability {
        Durability::Durable
    }

    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        async move {
            let (process_id, argv) = (command.process_id.clone(), command.argv.clone());
            let cwd = command.cwd.clone();
            let started = self.backend.start(command).await?;
            let listed = ProcessSummary {
                process_id,
                argv,
                cwd,
                tty: false,
                running: true,
                exit_code: None,
                started_at_ms: 0,
                os_pid: None,
                detached: true,
                usage: None,
                owner: Some(ProcessOwner::Server),
                state: None,
                output_bytes: None,
                durable: None,
                ended_at_ms: None,
                size: None,
            };
            let kept = (listed, Arc::clone(&started.process));
            self.kept.lock().unwrap().push(kept);
            Ok(started)
        }
        .boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ProcessSummary>, RpcError>> {
        let kept = self.kept.lock().unwrap();
        let listed = kept.iter().map(|(listed, process)| ProcessSummary {
            running: process.status().exit.is_none(),
            ..listed.clone()
        });
        ready(Ok(listed.collect())).boxed()
    }

    fn attach(
        &self,
        listed: ProcessSummary,
    ) -> BoxFuture<'_, Result<Arc<dyn ExecProcess>, RpcError>> {
        let kept = self.kept.lock().unwrap();
        let mut kept = kept.iter();
        let found = kept.find(|(one, _)| one.process_id == listed.process_id);
        let found = found.map(|(_, process)| Arc::clone(process));
        ready(found.ok_or_else(|| RpcError::internal("gone".to_owned()))).boxed()
    }

    fn forget(&self, id: ProcessId) -> BoxFuture<'_, ()> {
        self.kept
            .lock()
            .unwrap()
            .retain(|(one, _)| one.process_id != id);
        ready(()).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn another_program_finds_a_command_and_reads_its_output_from_the_start() {
    let store = Arc::new(FakeStore::default());
    let first = store.program("scope");
    let output = first.exec_command(quick()).await.unwrap();
    let (_, fake) = store.backend.started(0).await;
    fake.print("early ");
    first
        .write_stdin(write(output.running.unwrap(), ""))
        .await
        .unwrap();
    first.detach().await;
    assert!(!fake.is_dropped());

    let stranger = store.program("other");
    assert_eq!(stranger.find(&output.process_id).await.unwrap(), None);
    assert!(stranger.stored().await.unwrap().is_empty());
    let second = store.program("scope");
    let stored = second.stored().await.unwrap();
    assert_eq!(stored[0].process_id, output.process_id);
    let number = second.find(&output.process_id).await.unwrap().unwrap();
    assert_eq!(second.find(&output.process_id).await.unwrap(), Some(number));
    assert!(second.stored().await.unwrap().is_empty());
    fake.print("late");
    fake.exit(5);
    fake.close();
    let shown = second.write_stdin(write(number, "")).await.unwrap();
    assert_eq!(summary(&shown), ("early late", Some(5), false));
    // Its exit was shown, so that no program finds it again.
    assert_eq!(second.find(&output.process_id).await.unwrap(), None);
    while !store.ids().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn result_of_a_task_stays_until_it_is_forgotten() {
    let store = Arc::new(FakeStore::default());
    let first = store.program("scope");
    let number = first.start_task(command()).await.unwrap();
    let task = first.process(number).unwrap();
    let id = task.id().clone();
    let (_, fake) = store.backend.started(0).await;
    fake.print("\u{1b}[1mall of it\u{1b}[0m");
    let shown = first.write_stdin(write(number, "")).await.unwrap();
    assert_eq!(shown.transcript.text, "all of it");
    fake.exit(0);
    fake.close();
    task.wait_for_end().await;
    for _ in 0..2 {
        let report = task.report(OutputView::Plain, 100);
        assert_eq!(summary(&report), ("all of it", Some(0), false));
    }
    first.end_task(&task);
    assert!(first.processes().is_empty());

    let second = store.program("scope");
    assert!(second.stored().await.unwrap().is_empty(), "it has ended");
    let number = second.find(&id).await.unwrap().unwrap();
    let task = second.process(number).unwrap();
    task.wait_for_end().await;
    assert_eq!(
        task.report(OutputView::Plain, 100).transcript.text,
        "all of it"
    );
    second.forget_task(&id).await;
    assert!(store.ids().is_empty());
}

#[tokio::test(start_paused = true)]
async fn command_out_of_reach_is_not_ended_later() {
    let store = Arc::new(FakeStore::default());
    let exec = store.program("scope");
    let output = exec.exec_command(quick()).await.unwrap();
    let (_, fake) = store.backend.started(0).await;
    fake.fail(ProcessError::missing_close());
    let shown = exec.write_stdin(write(output.running.unwrap(), "")).await;
    assert!(shown.unwrap().failure.is_some());
    tokio::task::yield_now().await;
    assert_eq!(store.ids(), [output.process_id]);
}

#[tokio::test(start_paused = true)]
async fn commands_without_a_store_end_with_the_program() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let id = fixture.exec.process(number).unwrap().id().clone();
    assert_eq!(fixture.exec.find(&id).await.unwrap(), Some(number));
    assert!(fixture.exec.stored().await.unwrap().is_empty());
    fixture.exec.detach().await;
    let (_, fake) = fixture.backend.started(0).await;
    assert!(fake.is_dropped());
    assert_eq!(fixture.exec.find(&id).await.unwrap(), None);
}
