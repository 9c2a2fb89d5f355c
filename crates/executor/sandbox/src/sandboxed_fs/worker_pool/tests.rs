use std::{fs, path::PathBuf};

use futures_util::future::FutureExt;

use super::*;
use crate::{
    plan::{FileView, ForbiddenName, NetworkScope, PathAccess, PathKind, ViewLayer},
    plan_cache::coarse_now,
};

/// A worker with an identity.
#[derive(Debug, Eq, PartialEq)]
struct FakeWorker(u32);

fn limits() -> WorkerLimits {
    WorkerLimits {
        per_plan: 2,
        total: 3,
        max_waiting: 2,
        max_watches: 1,
        idle_timeout: Duration::from_secs(60),
        max_age: Duration::from_secs(60),
    }
}

/// Returns distinct keys.
fn key(number: usize) -> Arc<WorkerKey> {
    let network = if number == 0 {
        NetworkScope::Host
    } else {
        NetworkScope::None
    };
    let files = if number == 2 {
        FileAccess::View(FileView {
            base: PathAccess::Read,
            layers: Vec::new(),
            forbidden: Vec::new(),
            links: Vec::new(),
        })
    } else {
        FileAccess::All
    };
    Arc::new(WorkerKey::capture(&Arc::new(SandboxPlan {
        files,
        network,
    })))
}

async fn started(
    pool: &Arc<WorkerPool<FakeWorker>>,
    number: usize,
    worker: u32,
) -> WorkerLease<FakeWorker> {
    let mut lease = pool.acquire(&key(number)).await.unwrap();
    assert_eq!(lease.worker(), None);
    lease.set_worker(FakeWorker(worker));
    lease
}

#[tokio::test]
async fn worker_serves_equal_plans_only() {
    let pool = WorkerPool::new(limits());
    started(&pool, 0, 1).await.return_to_pool();
    let mut other = pool.acquire(&key(1)).await.unwrap();
    assert_eq!(other.worker(), None);
    let mut same = pool.acquire(&key(0)).await.unwrap();
    assert_eq!(same.worker(), Some(&mut FakeWorker(1)));
    let mut second = pool.acquire(&key(0)).await.unwrap();
    assert_eq!(second.worker(), None);
    assert_eq!(pool.count(), 3);
}

#[tokio::test]
async fn waiter_gets_the_first_returned_worker() {
    let pool = WorkerPool::new(limits());
    let [one, two] = [started(&pool, 0, 1).await, started(&pool, 0, 2).await];
    let key = key(0);
    let mut first = Box::pin(pool.acquire(&key));
    let mut second = Box::pin(pool.acquire(&key));
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());
    two.return_to_pool();
    assert_eq!(first.await.unwrap().worker(), Some(&mut FakeWorker(2)));
    // The first lease was dropped with its worker, so its slot is free.
    assert_eq!(second.await.unwrap().worker(), None);
    drop(one);
    assert_eq!(pool.count(), 0);
}

#[tokio::test]
async fn slot_of_a_lost_worker_goes_to_a_waiter() {
    let pool = WorkerPool::new(limits());
    let state = [
        started(&pool, 0, 1).await,
        started(&pool, 0, 2).await,
        started(&pool, 1, 3).await,
    ];
    let (same, other) = (key(0), key(2));
    let mut same = Box::pin(pool.acquire(&same));
    let mut other = Box::pin(pool.acquire(&other));
    assert!((&mut same).now_or_never().is_none());
    assert!((&mut other).now_or_never().is_none());
    let [one, two, three] = state;
    // The first waiter is not eligible: its plan already has two workers.
    drop(three);
    let mut lease = other.now_or_never().unwrap().unwrap();
    assert_eq!(lease.worker(), None);
    drop(one);
    assert_eq!(same.now_or_never().unwrap().unwrap().worker(), None);
    drop((two, lease));
}

#[tokio::test]
async fn returned_worker_of_another_plan_is_stopped_for_a_waiter() {
    let pool = WorkerPool::new(limits());
    let one = started(&pool, 0, 1).await;
    let _others = [started(&pool, 0, 2).await, started(&pool, 1, 3).await];
    let key = key(2);
    let mut waiting = Box::pin(pool.acquire(&key));
    assert!((&mut waiting).now_or_never().is_none());
    one.return_to_pool();
    assert_eq!(waiting.now_or_never().unwrap().unwrap().worker(), None);
    assert_eq!(pool.count(), 2);
}

#[tokio::test]
async fn longest_idle_worker_is_evicted() {
    let pool = WorkerPool::new(limits());
    let [one, two, three] = [
        started(&pool, 0, 1).await,
        started(&pool, 0, 2).await,
        started(&pool, 1, 3).await,
    ];
    for lease in [two, three, one] {
        lease.return_to_pool();
    }
    let _new = started(&pool, 2, 4).await;
    assert_eq!(pool.count(), 3);
    let mut groups = pool.acquire(&key(0)).await.unwrap();
    assert_eq!(groups.worker(), Some(&mut FakeWorker(1)));
    let mut groups = pool.acquire(&key(1)).await.unwrap();
    assert_eq!(groups.worker(), Some(&mut FakeWorker(3)));
}

#[tokio::test]
async fn full_wait_queue_refuses_until_a_waiter_gives_up() {
    let pool = WorkerPool::new(limits());
    let _held = [started(&pool, 0, 1).await, started(&pool, 0, 2).await];
    let key = key(0);
    let mut waiters: Vec<_> = (0..2).map(|_| Box::pin(pool.acquire(&key))).collect();
    for waiting in &mut waiters {
        assert!(waiting.now_or_never().is_none());
    }
    let refused = pool.acquire(&key).await.unwrap_err();
    assert!(matches!(refused, FileError::Host(text) if text.contains("too many")));
    waiters.pop();
    assert!(pool.acquire(&key).now_or_never().is_none());
}

#[tokio::test]
async fn cancelled_waiter_is_skipped() {
    let pool = WorkerPool::new(limits());
    let one = started(&pool, 0, 1).await;
    let _two = started(&pool, 0, 2).await;
    let key = key(0);
    let mut cancelled = Box::pin(pool.acquire(&key));
    let mut waiting = Box::pin(pool.acquire(&key));
    assert!((&mut cancelled).now_or_never().is_none());
    assert!((&mut waiting).now_or_never().is_none());
    drop(cancelled);
    one.return_to_pool();
    let mut lease = waiting.now_or_never().unwrap().unwrap();
    assert_eq!(lease.worker(), Some(&mut FakeWorker(1)));
}

#[tokio::test]
async fn worker_for_a_cancelled_waiter_stays_counted() {
    let pool = WorkerPool::new(limits());
    let [one, two] = [started(&pool, 0, 1).await, started(&pool, 0, 2).await];
    let key = key(0);
    let mut cancelled = Box::pin(pool.acquire(&key));
    assert!((&mut cancelled).now_or_never().is_none());
    one.return_to_pool();
    drop(cancelled);
    drop(two);
    assert_eq!(pool.count(), 0);
}

#[tokio::test]
async fn idle_workers_expire_after_the_timeout() {
    let pool = WorkerPool::new(limits());
    let before = Instant::now();
    let busy = started(&pool, 0, 1).await;
    for (number, worker) in [(0, 2), (1, 3)] {
        started(&pool, number, worker).await.return_to_pool();
    }
    let after = Instant::now();
    let next = pool.retire_expired(before).unwrap();
    assert!((before + limits().idle_timeout..=after + limits().idle_timeout).contains(&next));
    assert_eq!(pool.count(), 3);
    assert_eq!(pool.retire_expired(after + limits().idle_timeout), None);
    assert_eq!(pool.count(), 1);
    drop(busy);
}

#[tokio::test]
async fn sweeper_retires_idle_workers_unprompted() {
    let idle_timeout = Duration::from_millis(1);
    let pool = WorkerPool::new(WorkerLimits {
        idle_timeout,
        ..limits()
    });
    // Twice, because the sweeper ends when no worker is idle.
    for _ in 0..2 {
        let dropped = oneshot::channel();
        let mut lease = pool.acquire(&key(0)).await.unwrap();
        lease.set_worker(NotifyOnDrop(Some(dropped.0)));
        lease.return_to_pool();
        dropped.1.await.unwrap();
        while pool.count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// A worker that signals its end.
struct NotifyOnDrop(Option<oneshot::Sender<()>>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        if let Some(dropped) = self.0.take() {
            dropped.send(()).unwrap();
        }
    }
}

fn plan(layer: PathBuf, guarded: PathBuf) -> Arc<SandboxPlan> {
    Arc::new(SandboxPlan {
        files: FileAccess::View(FileView {
            base: PathAccess::Read,
            layers: vec![ViewLayer {
                path: layer,
                kind: PathKind::Directory,
                access: PathAccess::Write,
            }],
            forbidden: vec![ForbiddenName {
                directory: guarded,
                name: ".git".into(),
            }],
            links: Vec::new(),
        }),
        network: NetworkScope::None,
    })
}

#[test]
fn key_changes_when_a_path_names_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let [layer, guarded] = ["layer", "guarded"].map(|name| dir.path().join(name));
    for directory in [&layer, &guarded] {
        fs::create_dir(directory).unwrap();
    }
    let plan = plan(layer.clone(), guarded.clone());
    let mut last = WorkerKey::capture(&plan);
    // A change inside the directory does not change its identity.
    fs::write(layer.join("file"), "").unwrap();
    fs::remove_file(layer.join("file")).unwrap();
    assert_eq!(WorkerKey::capture(&plan), last);
    for directory in [&layer, &guarded] {
        // Birth times within one clock tick are equal.
        let created_at = coarse_now();
        while coarse_now() == created_at {
            std::thread::yield_now();
        }
        fs::remove_dir(directory).unwrap();
        fs::create_dir(directory).unwrap();
        let key = WorkerKey::capture(&plan);
        assert_ne!(key, last);
        last = key;
    }
}
