//! Aborted starts, and snapshots that race with replacements.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use exec_env::environment::Environment;
use futures_util::future::{BoxFuture, FutureExt};
use tokio::{
    sync::{mpsc, watch},
    task::yield_now,
};

use super::manager;
use crate::{
    fakes::{ControlledSource, ScriptedSource, environment, id, label, within},
    manager::{
        EnvironmentError, EnvironmentManager, EnvironmentOpenError, EnvironmentSource, InsertError,
        StartMode,
    },
};

/// Never finishes opening, and counts pending opens.
#[derive(Debug)]
struct HangingSource(Arc<watch::Sender<usize>>);

impl HangingSource {
    fn new() -> (Arc<Self>, watch::Receiver<usize>) {
        let (sender, receiver) = watch::channel(0);
        (Arc::new(Self(Arc::new(sender))), receiver)
    }
}

impl EnvironmentSource for HangingSource {
    fn open(&self) -> BoxFuture<'static, Result<Environment, EnvironmentOpenError>> {
        let count = Arc::clone(&self.0);
        async move {
            count.send_modify(|count| *count += 1);
            let _counted = OpenGuard(count);
            pending().await
        }
        .boxed()
    }
}

/// Counts a pending open until dropped.
struct OpenGuard(Arc<watch::Sender<usize>>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

async fn wait_for_count(count: &mut watch::Receiver<usize>, expected: usize) {
    within(count.wait_for(|count| *count == expected))
        .await
        .unwrap();
}

#[tokio::test]
async fn dropping_the_last_clone_aborts_starts() {
    let manager = manager();
    let (source, mut open) = HangingSource::new();
    manager
        .insert(id("worker"), source, StartMode::Eager)
        .unwrap();
    let clone = manager.clone();
    drop(manager);
    wait_for_count(&mut open, 1).await;
    drop(clone);
    wait_for_count(&mut open, 0).await;
}

#[tokio::test]
async fn replace_and_remove_abort_the_previous_start() {
    let manager = manager();
    let (source, mut open) = HangingSource::new();
    manager
        .insert(id("worker"), source.clone(), StartMode::Eager)
        .unwrap();
    wait_for_count(&mut open, 1).await;
    manager
        .replace(id("worker"), ControlledSource::new(), StartMode::Lazy)
        .unwrap();
    wait_for_count(&mut open, 0).await;
    manager
        .replace(id("worker"), source, StartMode::Eager)
        .unwrap();
    wait_for_count(&mut open, 1).await;
    assert!(manager.remove(&id("worker")));
    wait_for_count(&mut open, 0).await;
    assert!(!manager.remove(&id("worker")));
}

#[tokio::test]
async fn waiter_of_a_removed_environment_gets_missing() {
    let manager = manager();
    let (source, mut open) = HangingSource::new();
    manager
        .insert(id("worker"), source, StartMode::Lazy)
        .unwrap();
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.environment(&id("worker")).await }
    });
    wait_for_count(&mut open, 1).await;
    manager.remove(&id("worker"));
    let error = within(waiting).await.unwrap().unwrap_err();
    assert!(matches!(error, EnvironmentError::Missing(_)), "{error:?}");
}

#[tokio::test]
async fn waiter_is_released_although_the_aborted_start_has_not_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    // Nothing drives that runtime: spawned tasks neither run nor end.
    let manager = EnvironmentManager::new(runtime.handle().clone());
    let (source, _) = HangingSource::new();
    manager
        .insert(id("worker"), source, StartMode::Eager)
        .unwrap();
    let worker = id("worker");
    let mut waiting = Box::pin(manager.environment(&worker));
    assert!(waiting.as_mut().now_or_never().is_none());
    manager.remove(&worker);
    let error = waiting.now_or_never().unwrap().unwrap_err();
    assert!(matches!(error, EnvironmentError::Missing(_)), "{error:?}");
    runtime.shutdown_background();
}

#[tokio::test]
async fn shut_down_releases_waiters_and_rejects_inserts() {
    let manager = manager();
    let (source, mut open) = HangingSource::new();
    manager
        .insert(id("worker"), source.clone(), StartMode::Lazy)
        .unwrap();
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.environment(&id("worker")).await }
    });
    wait_for_count(&mut open, 1).await;
    manager.shut_down();
    let error = within(waiting).await.unwrap().unwrap_err();
    assert!(matches!(error, EnvironmentError::ShutDown), "{error:?}");
    wait_for_count(&mut open, 0).await;
    assert!(manager.ids().is_empty());
    let refused = manager.insert(id("worker"), source, StartMode::Eager);
    assert_eq!(refused, Err(InsertError::ShutDown));
}

/// Calls the manager when dropped.
#[derive(Debug)]
struct QueryingSource(EnvironmentManager, mpsc::UnboundedSender<usize>);

impl EnvironmentSource for QueryingSource {
    fn open(&self) -> BoxFuture<'static, Result<Environment, EnvironmentOpenError>> {
        pending().boxed()
    }
}

impl Drop for QueryingSource {
    fn drop(&mut self) {
        self.1.send(self.0.ids().len()).unwrap();
    }
}

#[tokio::test]
async fn rejected_source_may_call_the_manager_when_dropped() {
    let manager = manager();
    manager
        .insert(id("worker"), ControlledSource::new(), StartMode::Lazy)
        .unwrap();
    let (sender, mut counts) = mpsc::unbounded_channel();
    // On separate threads, because a call under the lock would deadlock.
    let refused = |error: InsertError| {
        let (manager, source) = (
            manager.clone(),
            QueryingSource(manager.clone(), sender.clone()),
        );
        std::thread::spawn(move || {
            let refused = manager.insert(id("worker"), Arc::new(source), StartMode::Lazy);
            assert_eq!(refused, Err(error));
        })
    };
    let in_use = refused(InsertError::InUse(id("worker")));
    assert_eq!(within(counts.recv()).await, Some(1));
    in_use.join().unwrap();
    manager.shut_down();
    let shut_down = refused(InsertError::ShutDown);
    assert_eq!(within(counts.recv()).await, Some(0));
    shut_down.join().unwrap();
}

#[tokio::test]
async fn dropping_a_waiter_does_not_abort_the_start() {
    let manager = manager();
    let source = ControlledSource::new();
    manager
        .insert(id("worker"), source.clone(), StartMode::Lazy)
        .unwrap();
    assert!(manager.environment(&id("worker")).now_or_never().is_none());
    source.wait_for_calls(1).await;
    source.finish(Ok(crate::fakes::environment("a")));
    within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!(source.calls(), 1);
}

#[test]
fn shut_down_runtime_fails_starts_instead_of_hanging() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (ended, other) = (runtime(), runtime());
    let manager = EnvironmentManager::new(ended.handle().clone());
    let (source, _) = HangingSource::new();
    manager
        .insert(id("early"), source.clone(), StartMode::Eager)
        .unwrap();
    drop(ended);
    manager
        .insert(id("late"), source, StartMode::Eager)
        .unwrap();
    for name in ["early", "late"] {
        let waited = other.block_on(within(manager.environment(&id(name))));
        let Err(EnvironmentError::Failed { source, .. }) = waited else {
            panic!("{name}: {waited:?}");
        };
        assert!(
            matches!(*source, EnvironmentOpenError::Cancelled),
            "{name}: {source:?}"
        );
    }
}

/// Number of replacements.
const REPLACEMENTS: usize = 2_000;

#[tokio::test]
async fn snapshot_handle_was_ready_and_is_never_stale() {
    let manager = manager();
    let opened: Arc<Vec<AtomicBool>> =
        Arc::new((0..REPLACEMENTS).map(|_| AtomicBool::new(false)).collect());
    let replaced = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (manager, opened) = (manager.clone(), Arc::clone(&opened));
            let replaced = Arc::clone(&replaced);
            thread::spawn(move || watch_snapshots(&manager, &opened, &replaced))
        })
        .collect();
    for number in 0..REPLACEMENTS {
        let opened = Arc::clone(&opened);
        let source = ScriptedSource(move || {
            let opened = Arc::clone(&opened);
            async move {
                yield_now().await;
                opened[number].store(true, Ordering::SeqCst);
                Ok(environment(&number.to_string()))
            }
            .boxed()
        });
        manager
            .replace(id("worker"), Arc::new(source), StartMode::Eager)
            .unwrap();
        replaced.store(number, Ordering::SeqCst);
        // Every third start is superseded while it is in progress.
        if number % 3 != 0 {
            within(manager.environment(&id("worker"))).await.unwrap();
        } else {
            yield_now().await;
        }
    }
    let last = within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!(label(&last), (REPLACEMENTS - 1).to_string());
    for reader in readers {
        let seen = reader.join().unwrap();
        assert!(seen > 0, "no snapshot held a handle");
    }
}

/// Takes snapshots until the last handle is ready; returns how many held a handle.
fn watch_snapshots(
    manager: &EnvironmentManager,
    opened: &[AtomicBool],
    replaced: &AtomicUsize,
) -> usize {
    let mut seen = 0;
    loop {
        let least = replaced.load(Ordering::SeqCst);
        let snapshot = manager.snapshot();
        let Some(handle) = snapshot.ready(&id("worker")) else {
            thread::yield_now();
            continue;
        };
        seen += 1;
        let number: usize = label(handle).parse().unwrap();
        assert!(
            opened[number].load(Ordering::SeqCst),
            "{number} was not ready"
        );
        assert!(number >= least, "{number} was replaced by {least}");
        if number == REPLACEMENTS - 1 {
            return seen;
        }
    }
}
