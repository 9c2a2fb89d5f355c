//! When sources are opened, and what comes of it.

use std::{error::Error, sync::Arc};

use futures_util::future::{FutureExt, join_all};

use super::manager;
use crate::{
    fakes::{Controlled, Scripted, environment, id, label, within},
    manager::{
        EnvironmentError, EnvironmentState, InsertError, MAX_ENVIRONMENTS, OpenError, Start,
    },
};

#[tokio::test]
async fn a_manager_without_environments_has_none() {
    let manager = manager();
    assert_eq!(manager.default(), None);
    assert!(manager.ids().is_empty());
    assert!(manager.state(&id("local")).is_none());
    let error = manager.environment(&id("local")).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no environment `local`");
}

#[tokio::test]
async fn an_eager_one_begins_at_once_and_a_lazy_one_when_it_is_asked_for() {
    let manager = manager();
    let (eager, lazy) = (Controlled::new(), Controlled::ready("lazy"));
    manager
        .insert(id("eager"), eager.clone(), Start::Eager)
        .unwrap();
    manager
        .insert(id("lazy"), lazy.clone(), Start::Lazy)
        .unwrap();
    eager.called(1).await;
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
async fn an_environment_that_is_at_hand_is_ready_as_soon_as_it_is_inserted() {
    let manager = manager();
    let local = Arc::new(environment("here"));
    for start in [Start::Eager, Start::Lazy] {
        manager.replace(id("local"), local.clone(), start).unwrap();
        let step = manager.snapshot();
        assert_eq!(label(step.ready(&id("local")).unwrap()), "here");
    }
    let handle = manager.environment(&id("local")).now_or_never();
    assert_eq!(label(&handle.unwrap().unwrap()), "here");
}

#[tokio::test]
async fn a_start_can_be_requested_without_waiting_for_it() {
    let manager = manager();
    let source = Controlled::new();
    manager
        .insert(id("worker"), source.clone(), Start::Lazy)
        .unwrap();
    manager.request_start(&id("worker")).unwrap();
    manager.request_start(&id("worker")).unwrap();
    source.called(1).await;
    source.finish(Ok(environment("a")));
    within(manager.environment(&id("worker"))).await.unwrap();
    manager.request_start(&id("worker")).unwrap();
    assert_eq!(source.calls(), 1);
    let error = manager.request_start(&id("other")).unwrap_err();
    assert!(matches!(error, EnvironmentError::Missing(other) if other == id("other")));
}

#[tokio::test]
async fn hundreds_of_requests_join_one_start() {
    let manager = manager();
    let source = Controlled::new();
    manager
        .insert(id("worker"), source.clone(), Start::Lazy)
        .unwrap();
    let waiting: Vec<_> = (0..500)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move { manager.environment(&id("worker")).await.unwrap() })
        })
        .collect();
    source.called(1).await;
    source.finish(Ok(environment("a")));
    let handles = within(join_all(waiting)).await;
    let first = handles[0].as_ref().unwrap();
    for handle in &handles {
        assert!(Arc::ptr_eq(handle.as_ref().unwrap(), first));
    }
    assert_eq!(source.calls(), 1);
}

#[tokio::test]
async fn a_failure_tells_which_and_why_and_a_later_request_tries_again() {
    let manager = manager();
    let source = Controlled::new();
    manager
        .insert(id("worker"), source.clone(), Start::Eager)
        .unwrap();
    source.called(1).await;
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
async fn a_source_that_panics_has_failed_and_can_be_tried_again() {
    let manager = manager();
    let outcomes = Arc::new(std::sync::Mutex::new(vec![false, true]));
    let source = Scripted(move || {
        let panics = outcomes.lock().unwrap().pop().unwrap();
        assert!(!panics, "a source that panics");
        async { Ok(environment("a")) }.boxed()
    });
    manager
        .insert(id("worker"), Arc::new(source), Start::Eager)
        .unwrap();
    let error = within(manager.environment(&id("worker")))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, EnvironmentError::Failed { source, .. } if matches!(**source, OpenError::Panicked)),
        "{error:?}"
    );
    within(manager.environment(&id("worker"))).await.unwrap();
}

#[tokio::test]
async fn there_are_only_so_many_environments() {
    let manager = manager();
    let source = Controlled::new();
    for number in 0..MAX_ENVIRONMENTS {
        let id = id(&format!("e{number}"));
        manager.insert(id, source.clone(), Start::Lazy).unwrap();
    }
    let refused = manager.insert(id("more"), source.clone(), Start::Lazy);
    assert_eq!(refused, Err(InsertError::TooMany));
    let refused = manager.replace(id("more"), source.clone(), Start::Lazy);
    assert_eq!(refused, Err(InsertError::TooMany));
    manager
        .replace(id("e0"), source.clone(), Start::Lazy)
        .unwrap();
    assert!(manager.remove(&id("e0")));
    manager.insert(id("more"), source, Start::Lazy).unwrap();
}

#[tokio::test]
async fn an_id_in_use_is_not_inserted_again() {
    let manager = manager();
    let (first, second) = (Controlled::ready("first"), Controlled::ready("second"));
    manager.insert(id("worker"), first, Start::Lazy).unwrap();
    let refused = manager.insert(id("worker"), second.clone(), Start::Eager);
    assert_eq!(refused, Err(InsertError::InUse(id("worker"))));
    let handle = within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!((label(&handle).as_str(), second.calls()), ("first", 0));
}

#[tokio::test]
async fn the_default_is_one_that_exists() {
    let manager = manager();
    let error = manager.set_default(Some(id("local"))).unwrap_err();
    assert!(matches!(error, EnvironmentError::Missing(_)));
    manager
        .insert(id("local"), Controlled::new(), Start::Lazy)
        .unwrap();
    manager.set_default(Some(id("local"))).unwrap();
    manager
        .replace(id("local"), Controlled::new(), Start::Lazy)
        .unwrap();
    assert_eq!(manager.default(), Some(id("local")));
    manager.remove(&id("local"));
    assert_eq!(manager.default(), None);
}
