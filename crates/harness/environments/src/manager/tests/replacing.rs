//! A fresh handle under the same id.

use std::sync::Arc;

use futures_util::future::FutureExt;

use super::manager;
use crate::{
    fakes::{Controlled, Scripted, environment, id, label, within},
    manager::{EnvironmentState, OpenError, Start},
};

#[tokio::test]
async fn a_captured_handle_outlives_its_replacement_and_its_removal() {
    let manager = manager();
    manager
        .insert(id("worker"), Controlled::ready("a"), Start::Eager)
        .unwrap();
    let a = within(manager.environment(&id("worker"))).await.unwrap();
    let step = manager.snapshot();
    manager
        .replace(id("worker"), Controlled::ready("b"), Start::Eager)
        .unwrap();
    let b = within(manager.environment(&id("worker"))).await.unwrap();
    manager.remove(&id("worker"));
    assert_eq!((label(&a).as_str(), label(&b).as_str()), ("a", "b"));
    assert!(Arc::ptr_eq(step.ready(&id("worker")).unwrap(), &a));
    assert!(manager.state(&id("worker")).is_none());
}

#[tokio::test]
async fn who_waits_for_a_start_that_is_replaced_gets_what_replaced_it() {
    let manager = manager();
    let (old, fresh) = (Controlled::new(), Controlled::new());
    manager
        .insert(id("worker"), old.clone(), Start::Eager)
        .unwrap();
    old.called(1).await;
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.environment(&id("worker")).await }
    });
    tokio::task::yield_now().await;
    manager
        .replace(id("worker"), fresh.clone(), Start::Lazy)
        .unwrap();
    fresh.called(1).await;
    fresh.finish(Ok(environment("fresh")));
    let handle = within(waiting).await.unwrap().unwrap();
    assert_eq!(label(&handle), "fresh");
}

#[tokio::test]
async fn an_old_start_that_ends_well_after_it_was_replaced_changes_nothing() {
    let manager = manager();
    let fresh = Controlled::new();
    // It is replaced in the very poll in which it is done: too late to be aborted.
    let old = Scripted({
        let (manager, fresh) = (manager.clone(), fresh.clone());
        move || {
            let (manager, fresh) = (manager.clone(), fresh.clone());
            async move {
                manager.replace(id("worker"), fresh, Start::Eager).unwrap();
                Ok(environment("old"))
            }
            .boxed()
        }
    });
    manager
        .insert(id("worker"), Arc::new(old), Start::Eager)
        .unwrap();
    fresh.called(1).await;
    let state = manager.state(&id("worker")).unwrap();
    assert!(matches!(state, EnvironmentState::Starting), "{state:?}");
    assert!(manager.snapshot().is_starting(&id("worker")));
    fresh.finish(Ok(environment("fresh")));
    let handle = within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!(label(&handle), "fresh");
}

#[tokio::test]
async fn an_old_start_that_fails_after_it_was_replaced_does_not_fail_the_other() {
    let manager = manager();
    let old = Scripted({
        let manager = manager.clone();
        move || {
            let manager = manager.clone();
            async move {
                manager
                    .replace(id("worker"), Controlled::ready("fresh"), Start::Lazy)
                    .unwrap();
                Err(OpenError::Configuration("old".to_owned()))
            }
            .boxed()
        }
    });
    manager
        .insert(id("worker"), Arc::new(old), Start::Lazy)
        .unwrap();
    let handle = within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!(label(&handle), "fresh");
}

#[tokio::test]
async fn a_snapshot_tells_ready_starting_failed_and_absent_apart() {
    let manager = manager();
    let (starting, failing) = (Controlled::new(), Controlled::new());
    failing.fail("no");
    manager
        .insert(id("ready"), Controlled::ready("a"), Start::Eager)
        .unwrap();
    manager
        .insert(id("starting"), starting, Start::Eager)
        .unwrap();
    manager
        .insert(id("failed"), failing.clone(), Start::Eager)
        .unwrap();
    manager
        .insert(id("lazy"), Controlled::new(), Start::Lazy)
        .unwrap();
    within(manager.environment(&id("ready"))).await.unwrap();
    within(async {
        while !matches!(
            manager.state(&id("failed")),
            Some(EnvironmentState::Failed(_))
        ) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let names = ["ready", "starting", "failed", "lazy", "missing"].map(id);
    for snapshot in [manager.snapshot(), manager.snapshot_of(&names)] {
        let captured: Vec<_> = snapshot
            .environments()
            .map(|(id, handle)| (id.as_str(), handle.map(|handle| label(handle))))
            .collect();
        assert_eq!(
            captured,
            [("ready", Some("a".to_owned())), ("starting", None)]
        );
        assert_eq!(snapshot.failure(&id("failed")).unwrap().to_string(), "no");
    }
    let one = manager.snapshot_of(&[id("starting")]);
    assert_eq!(one.environments().count(), 1);
    assert_eq!(failing.calls(), 1, "a snapshot starts nothing");
}
