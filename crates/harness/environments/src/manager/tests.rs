//! The manager, with sources that the tests control.

mod lifetime;

use std::{error::Error, sync::Arc};

use futures_util::future::{FutureExt, join_all};
use tokio::runtime::Handle;

use super::{
    EnvironmentError, EnvironmentManager, EnvironmentOpenError, EnvironmentState, InsertError,
    MAX_ENVIRONMENTS, StartMode,
};
use crate::fakes::{ControlledSource, ScriptedSource, environment, id, label, within};

/// Returns a manager that starts on the runtime of the test.
fn manager() -> EnvironmentManager {
    EnvironmentManager::new(Handle::current())
}

#[tokio::test]
async fn empty_manager_has_no_environment() {
    let manager = manager();
    assert_eq!(manager.default(), None);
    assert!(manager.ids().is_empty());
    assert!(manager.state(&id("local")).is_none());
    let error = manager.environment(&id("local")).await.unwrap_err();
    assert_eq!(error.to_string(), "unknown environment `local`");
}

#[tokio::test]
async fn eager_environment_starts_at_once_and_lazy_one_on_request() {
    let manager = manager();
    let (eager, lazy) = (ControlledSource::new(), ControlledSource::ready("lazy"));
    manager
        .insert(id("eager"), eager.clone(), StartMode::Eager)
        .unwrap();
    manager
        .insert(id("lazy"), lazy.clone(), StartMode::Lazy)
        .unwrap();
    eager.wait_for_calls(1).await;
    assert_eq!(lazy.calls(), 0);
    let state = |name| manager.state(&id(name)).unwrap();
    assert!(matches!(state("eager"), EnvironmentState::Starting));
    assert!(matches!(state("lazy"), EnvironmentState::NotStarted));

    let ready = within(manager.environment(&id("lazy"))).await.unwrap();
    assert_eq!(label(&ready), "lazy");
    eager.finish(Ok(environment("eager")));
    let ready = within(manager.environment(&id("eager"))).await.unwrap();
    assert_eq!(label(&ready), "eager");
    assert_eq!((eager.calls(), lazy.calls()), (1, 1));
}

#[tokio::test]
async fn already_open_environment_is_ready_when_inserted() {
    let manager = manager();
    let local = Arc::new(environment("here"));
    for start in [StartMode::Eager, StartMode::Lazy] {
        manager.replace(id("local"), local.clone(), start).unwrap();
        let step = manager.snapshot();
        assert_eq!(label(step.ready(&id("local")).unwrap()), "here");
    }
    let handle = manager.environment(&id("local")).now_or_never();
    assert_eq!(label(&handle.unwrap().unwrap()), "here");
}

#[tokio::test]
async fn start_can_be_requested_without_waiting() {
    let manager = manager();
    let source = ControlledSource::new();
    manager
        .insert(id("worker"), source.clone(), StartMode::Lazy)
        .unwrap();
    manager.request_start(&id("worker")).unwrap();
    manager.request_start(&id("worker")).unwrap();
    source.wait_for_calls(1).await;
    source.finish(Ok(environment("a")));
    within(manager.environment(&id("worker"))).await.unwrap();
    manager.request_start(&id("worker")).unwrap();
    assert_eq!(source.calls(), 1);
    let error = manager.request_start(&id("other")).unwrap_err();
    assert!(matches!(error, EnvironmentError::Missing(other) if other == id("other")));
}

#[tokio::test]
async fn concurrent_requests_share_one_start() {
    let manager = manager();
    let source = ControlledSource::new();
    manager
        .insert(id("worker"), source.clone(), StartMode::Lazy)
        .unwrap();
    let waiting: Vec<_> = (0..500)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move { manager.environment(&id("worker")).await.unwrap() })
        })
        .collect();
    source.wait_for_calls(1).await;
    source.finish(Ok(environment("a")));
    let handles = within(join_all(waiting)).await;
    let first = handles[0].as_ref().unwrap();
    for handle in &handles {
        assert!(Arc::ptr_eq(handle.as_ref().unwrap(), first));
    }
    assert_eq!(source.calls(), 1);
}

#[tokio::test]
async fn failed_start_reports_its_cause_and_is_retried_on_request() {
    let manager = manager();
    let source = ControlledSource::new();
    manager
        .insert(id("worker"), source.clone(), StartMode::Eager)
        .unwrap();
    source.wait_for_calls(1).await;
    let worker = id("worker");
    let both = async { tokio::join!(manager.environment(&worker), manager.environment(&worker)) };
    source.fail("no such host");
    let (one, other) = within(both).await;
    for error in [one.unwrap_err(), other.unwrap_err()] {
        assert_eq!(error.to_string(), "environment `worker` did not start");
        assert_eq!(error.source().unwrap().to_string(), "no such host");
    }
    assert!(matches!(
        manager.state(&worker),
        Some(EnvironmentState::Failed(_))
    ));
    assert_eq!(source.calls(), 1);

    source.finish(Ok(environment("a")));
    let handle = within(manager.environment(&worker)).await.unwrap();
    assert_eq!(label(&handle), "a");
    assert_eq!(source.calls(), 2);
}

#[tokio::test]
async fn panicking_source_counts_as_failed_and_is_retried() {
    let manager = manager();
    let outcomes = Arc::new(std::sync::Mutex::new(vec![false, true]));
    let source = ScriptedSource(move || {
        let panics = outcomes.lock().unwrap().pop().unwrap();
        assert!(!panics, "scripted panic");
        async { Ok(environment("a")) }.boxed()
    });
    manager
        .insert(id("worker"), Arc::new(source), StartMode::Eager)
        .unwrap();
    let error = within(manager.environment(&id("worker")))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, EnvironmentError::Failed { source, .. } if matches!(**source, EnvironmentOpenError::Panicked)),
        "{error:?}"
    );
    within(manager.environment(&id("worker"))).await.unwrap();
}

#[tokio::test]
async fn number_of_environments_is_limited() {
    let manager = manager();
    let source = ControlledSource::new();
    for number in 0..MAX_ENVIRONMENTS {
        let id = id(&format!("e{number}"));
        manager.insert(id, source.clone(), StartMode::Lazy).unwrap();
    }
    let refused = manager.insert(id("more"), source.clone(), StartMode::Lazy);
    assert_eq!(refused, Err(InsertError::TooMany));
    let refused = manager.replace(id("more"), source.clone(), StartMode::Lazy);
    assert_eq!(refused, Err(InsertError::TooMany));
    manager
        .replace(id("e0"), source.clone(), StartMode::Lazy)
        .unwrap();
    assert!(manager.remove(&id("e0")));
    manager.insert(id("more"), source, StartMode::Lazy).unwrap();
}

#[tokio::test]
async fn id_in_use_is_rejected() {
    let manager = manager();
    let (first, second) = (
        ControlledSource::ready("first"),
        ControlledSource::ready("second"),
    );
    manager
        .insert(id("worker"), first, StartMode::Lazy)
        .unwrap();
    let refused = manager.insert(id("worker"), second.clone(), StartMode::Eager);
    assert_eq!(refused, Err(InsertError::InUse(id("worker"))));
    let handle = within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!((label(&handle).as_str(), second.calls()), ("first", 0));
}

#[tokio::test]
async fn default_must_exist() {
    let manager = manager();
    let error = manager.set_default(Some(id("local"))).unwrap_err();
    assert!(matches!(error, EnvironmentError::Missing(_)));
    manager
        .insert(id("local"), ControlledSource::new(), StartMode::Lazy)
        .unwrap();
    manager.set_default(Some(id("local"))).unwrap();
    manager
        .replace(id("local"), ControlledSource::new(), StartMode::Lazy)
        .unwrap();
    assert_eq!(manager.default(), Some(id("local")));
    manager.remove(&id("local"));
    assert_eq!(manager.default(), None);
}

#[tokio::test]
async fn captured_handle_survives_replacement_and_removal() {
    let manager = manager();
    manager
        .insert(id("worker"), ControlledSource::ready("a"), StartMode::Eager)
        .unwrap();
    let a = within(manager.environment(&id("worker"))).await.unwrap();
    let step = manager.snapshot();
    manager
        .replace(id("worker"), ControlledSource::ready("b"), StartMode::Eager)
        .unwrap();
    let b = within(manager.environment(&id("worker"))).await.unwrap();
    manager.remove(&id("worker"));
    assert_eq!((label(&a).as_str(), label(&b).as_str()), ("a", "b"));
    assert!(Arc::ptr_eq(step.ready(&id("worker")).unwrap(), &a));
    assert!(manager.state(&id("worker")).is_none());
}

#[tokio::test]
async fn waiter_of_a_replaced_start_gets_the_replacement() {
    let manager = manager();
    let (old, fresh) = (ControlledSource::new(), ControlledSource::new());
    manager
        .insert(id("worker"), old.clone(), StartMode::Eager)
        .unwrap();
    old.wait_for_calls(1).await;
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.environment(&id("worker")).await }
    });
    tokio::task::yield_now().await;
    manager
        .replace(id("worker"), fresh.clone(), StartMode::Lazy)
        .unwrap();
    fresh.wait_for_calls(1).await;
    fresh.finish(Ok(environment("fresh")));
    let handle = within(waiting).await.unwrap().unwrap();
    assert_eq!(label(&handle), "fresh");
}

#[tokio::test]
async fn success_of_a_replaced_start_is_ignored() {
    let manager = manager();
    let fresh = ControlledSource::new();
    // The replacement happens in the poll that completes the start: too late to abort it.
    let old = ScriptedSource({
        let (manager, fresh) = (manager.clone(), fresh.clone());
        move || {
            let (manager, fresh) = (manager.clone(), fresh.clone());
            async move {
                manager
                    .replace(id("worker"), fresh, StartMode::Eager)
                    .unwrap();
                Ok(environment("old"))
            }
            .boxed()
        }
    });
    manager
        .insert(id("worker"), Arc::new(old), StartMode::Eager)
        .unwrap();
    fresh.wait_for_calls(1).await;
    let state = manager.state(&id("worker")).unwrap();
    assert!(matches!(state, EnvironmentState::Starting), "{state:?}");
    assert!(manager.snapshot().is_starting(&id("worker")));
    fresh.finish(Ok(environment("fresh")));
    let handle = within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!(label(&handle), "fresh");
}

#[tokio::test]
async fn failure_of_a_replaced_start_is_ignored() {
    let manager = manager();
    let old = ScriptedSource({
        let manager = manager.clone();
        move || {
            let manager = manager.clone();
            async move {
                manager
                    .replace(
                        id("worker"),
                        ControlledSource::ready("fresh"),
                        StartMode::Lazy,
                    )
                    .unwrap();
                Err(EnvironmentOpenError::Configuration("old".to_owned()))
            }
            .boxed()
        }
    });
    manager
        .insert(id("worker"), Arc::new(old), StartMode::Lazy)
        .unwrap();
    let handle = within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!(label(&handle), "fresh");
}

#[tokio::test]
async fn snapshot_distinguishes_ready_starting_failed_and_absent() {
    let manager = manager();
    let (starting, failing) = (ControlledSource::new(), ControlledSource::new());
    failing.fail("no");
    manager
        .insert(id("ready"), ControlledSource::ready("a"), StartMode::Eager)
        .unwrap();
    manager
        .insert(id("starting"), starting, StartMode::Eager)
        .unwrap();
    manager
        .insert(id("failed"), failing.clone(), StartMode::Eager)
        .unwrap();
    manager
        .insert(id("lazy"), ControlledSource::new(), StartMode::Lazy)
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
