//! One discovery for all who wait, and what failures leave behind.

use std::sync::Arc;

use exec_wire::discovery::DiscoveredRoot;
use futures_util::future::{FutureExt, join_all};
use tokio::task::yield_now;

use super::{empty, fill, handle, skills, step, uri, with_skill};
use crate::{
    capabilities::{CapabilityCache, DISCOVERY_TIMEOUT, DiscoverError},
    fakes::{Shelf, within},
};
use exec_env::{disconnect::Disconnect, filesystem::FileError};

#[tokio::test]
async fn steps_that_overlap_join_one_discovery() {
    let shelf = Shelf::closed();
    fill(&shelf, &["a", "b"]);
    let worker = handle("A", &shelf);
    let cache = CapabilityCache::default();
    let steps: Vec<_> = (0..300)
        .map(|number| {
            let (cache, worker) = (cache.clone(), Arc::clone(&worker));
            tokio::spawn(async move {
                let names: &[&str] = if number == 0 { &["a"] } else { &["a", "b"] };
                skills(&cache.project(&step(names, "worker", &worker)).await)
            })
        })
        .collect();
    shelf.called(2).await;
    yield_now().await;
    shelf.answer(2);
    let seen = within(join_all(steps)).await;
    assert_eq!(seen[0].as_ref().unwrap(), &["a"]);
    for seen in &seen[1..] {
        assert_eq!(seen.as_ref().unwrap(), &["a", "b"]);
    }
    assert_eq!((shelf.calls(), shelf.roots_asked()), (2, 2));
}

#[tokio::test]
async fn a_step_that_is_given_up_leaves_the_discovery_to_those_who_joined() {
    let shelf = Shelf::closed();
    fill(&shelf, &["a"]);
    let worker = handle("A", &shelf);
    let cache = CapabilityCache::default();
    let roots = step(&["a"], "worker", &worker);
    let mut first = Box::pin(cache.project(&roots));
    assert!(first.as_mut().now_or_never().is_none());
    let joined = tokio::spawn({
        let (cache, roots) = (cache.clone(), roots.clone());
        async move { skills(&cache.project(&roots).await) }
    });
    yield_now().await;
    drop(first);
    shelf.answer(1);
    assert_eq!(within(joined).await.unwrap(), ["a"]);
    assert_eq!(shelf.calls(), 1);
}

#[tokio::test]
async fn a_discovery_that_all_gave_up_is_begun_again() {
    let shelf = Shelf::closed();
    fill(&shelf, &["a"]);
    let worker = handle("A", &shelf);
    let cache = CapabilityCache::default();
    let roots = step(&["a"], "worker", &worker);
    assert!(cache.project(&roots).now_or_never().is_none());
    shelf.answer(1);
    assert_eq!(skills(&within(cache.project(&roots)).await), ["a"]);
    assert_eq!(shelf.calls(), 2);
}

#[tokio::test]
async fn a_failure_is_told_and_not_remembered() {
    let shelf = Shelf::open();
    let partly = DiscoveredRoot {
        warnings: vec!["too large".to_owned()],
        ..with_skill("good")
    };
    shelf.put(uri("/roots/good"), Ok(partly));
    let unreadable = DiscoveredRoot {
        error: Some("no such directory".to_owned()),
        ..empty("bad")
    };
    shelf.put(uri("/roots/bad"), Ok(unreadable));
    let worker = handle("A", &shelf);
    let cache = CapabilityCache::default();
    let roots = step(&["bad", "good"], "worker", &worker);
    let seen = within(cache.project(&roots)).await;
    assert_eq!(skills(&seen), ["good"], "one root's problem is its own");
    assert_eq!(seen.warnings[0].text, "too large");
    let [failed] = seen.failed.as_slice() else {
        panic!("{:?}", seen.failed);
    };
    assert_eq!(failed.root.id.as_str(), "bad");
    assert_eq!(
        failed.error,
        DiscoverError::Root("no such directory".to_owned())
    );

    shelf.put(uri("/roots/bad"), Ok(with_skill("bad")));
    let seen = within(cache.project(&roots)).await;
    assert_eq!(skills(&seen), ["bad", "good"]);
    assert!(seen.failed.is_empty());
    assert_eq!(
        shelf.roots_asked(),
        3,
        "only what had failed was asked for again"
    );
}

#[tokio::test]
async fn a_step_that_joined_a_discovery_through_a_dead_handle_tries_its_own() {
    let (dead, alive) = (Shelf::closed(), Shelf::open());
    let gone = || FileError::Disconnected(Disconnect::Transport("reset".to_owned()));
    dead.put(uri("/roots/a"), Err(gone()));
    fill(&alive, &["a"]);
    let cache = CapabilityCache::default();
    let through = |shelf: &Arc<Shelf>| {
        let (cache, roots) = (cache.clone(), step(&["a"], "worker", &handle("h", shelf)));
        tokio::spawn(async move { cache.project(&roots).await })
    };
    let first = through(&dead);
    dead.called(1).await;
    let second = through(&alive);
    yield_now().await;
    dead.answer(1);
    let first = within(first).await.unwrap();
    assert_eq!(first.failed[0].error, DiscoverError::Catalog(gone()));
    assert_eq!(skills(&within(second).await.unwrap()), ["a"]);
    assert_eq!((dead.calls(), alive.calls()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_environment_that_does_not_answer_holds_a_step_up_only_so_long() {
    let shelf = Shelf::closed();
    fill(&shelf, &["a"]);
    let cache = CapabilityCache::default();
    let roots = step(&["a"], "worker", &handle("A", &shelf));
    let begun = tokio::time::Instant::now();
    let seen = cache.project(&roots).await;
    assert_eq!(seen.failed[0].error, DiscoverError::TimedOut);
    assert!(begun.elapsed() < 2 * DISCOVERY_TIMEOUT);
    shelf.answer(1);
    assert_eq!(skills(&cache.project(&roots).await), ["a"]);
}
