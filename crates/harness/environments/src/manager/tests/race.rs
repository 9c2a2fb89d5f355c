//! Snapshots from other threads while handles are being replaced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use futures_util::future::FutureExt;
use tokio::task::yield_now;

use super::manager;
use crate::{
    fakes::{Scripted, environment, id, label, within},
    manager::{EnvironmentManager, Start},
};

/// How often the handle is replaced.
const REPLACEMENTS: usize = 2_000;

#[tokio::test]
async fn a_handle_in_a_snapshot_was_ready_and_never_comes_back_once_replaced() {
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
        let source = Scripted(move || {
            let opened = Arc::clone(&opened);
            async move {
                yield_now().await;
                opened[number].store(true, Ordering::SeqCst);
                Ok(environment(&number.to_string()))
            }
            .boxed()
        });
        manager
            .replace(id("worker"), Arc::new(source), Start::Eager)
            .unwrap();
        replaced.store(number, Ordering::SeqCst);
        // Every third one is overtaken while it starts.
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
