//! Discovery happens once, and each step sees its own capabilities.

mod bounds;

use std::sync::Arc;

use exec_env::{
    environment::{DisconnectReason, Environment},
    filesystem::FileError,
};
use exec_wire::{
    discovery::{CapabilityFile, DiscoveredRoot, SkillFiles},
    path_uri::PathUri,
};
use futures_util::future::{FutureExt, join_all};
use tokio::{runtime::Handle, task::yield_now};

use super::{AvailableCapabilities, CapabilityCache, DISCOVERY_TIMEOUT, DiscoverError};
use crate::{
    fakes::{ControlledSource, FakeCatalog, environment_with, id, label, within},
    manager::{EnvironmentManager, StartMode},
    roots::{ResolvedRoot, RootId, SelectedCapabilityRoot, SelectedRoots, StepRoots, resolve},
};

pub(super) fn uri(path: &str) -> PathUri {
    PathUri::parse(&format!("file://{path}")).unwrap()
}

/// Returns a root that holds one skill of the same name.
fn with_skill(name: &str) -> DiscoveredRoot {
    let instructions = CapabilityFile {
        path: uri(&format!("/roots/{name}/{name}/SKILL.md")),
        contents: format!("---\nname: {name}\ndescription: does {name}\n---\nInstructions."),
    };
    DiscoveredRoot {
        skills: vec![SkillFiles {
            instructions,
            metadata: None,
        }],
        ..empty(name)
    }
}

/// Returns a root that holds nothing.
pub(super) fn empty(name: &str) -> DiscoveredRoot {
    DiscoveredRoot {
        id: name.to_owned(),
        path: uri(&format!("/roots/{name}")),
        plugin: None,
        skills: Vec::new(),
        namespace_manifests: Vec::new(),
        warnings: Vec::new(),
        error: None,
    }
}

/// Adds roots with one skill each to a catalog.
fn fill(catalog: &FakeCatalog, names: &[&str]) {
    for name in names {
        catalog.put(uri(&format!("/roots/{name}")), Ok(with_skill(name)));
    }
}

/// Returns a handle of an environment.
fn handle(label: &str, catalog: &Arc<FakeCatalog>) -> Arc<Environment> {
    Arc::new(environment_with(label, catalog.clone()))
}

fn resolved(name: &str, environment: &str, handle: &Arc<Environment>) -> ResolvedRoot {
    ResolvedRoot {
        id: RootId::new(name).unwrap(),
        environment_id: id(environment),
        path: uri(&format!("/roots/{name}")),
        environment: Arc::clone(handle),
    }
}

/// Returns a step with these roots of one environment.
fn step(names: &[&str], environment: &str, handle: &Arc<Environment>) -> StepRoots {
    let roots = names.iter().map(|name| resolved(name, environment, handle));
    StepRoots {
        resolved: roots.collect(),
        omitted: Vec::new(),
    }
}

/// Returns the names of the skills that are available.
fn skills(available: &AvailableCapabilities) -> Vec<String> {
    let name = |skill: &super::AvailableSkill| skill.skill.qualified_name();
    available.skills.iter().map(name).collect()
}

#[tokio::test]
async fn replaced_handle_reuses_cached_capabilities() {
    let manager = EnvironmentManager::new(Handle::current());
    let (first, second) = (FakeCatalog::open(), FakeCatalog::open());
    fill(&first, &["tidy"]);
    let source = ControlledSource::new();
    source.finish(Ok(environment_with("A", first.clone())));
    manager
        .insert(id("worker"), source, StartMode::Eager)
        .unwrap();
    within(manager.environment(&id("worker"))).await.unwrap();
    let root = RootId::new("tidy").unwrap();
    let root = SelectedCapabilityRoot::new(root, id("worker"), uri("/roots/tidy"));
    let thread = SelectedRoots::new([root]).unwrap();
    let cache = CapabilityCache::default();
    let step_a = resolve(&thread, &manager.snapshot(), &manager);
    let available = within(cache.project(&step_a)).await;
    assert_eq!(skills(&available), ["tidy"]);
    assert_eq!(label(&available.skills[0].root.environment), "A");

    // While the new handle starts, the skill is unavailable but stays cached.
    let source = ControlledSource::new();
    manager
        .replace(id("worker"), source.clone(), StartMode::Eager)
        .unwrap();
    let starting = resolve(&thread, &manager.snapshot(), &manager);
    assert!(skills(&within(cache.project(&starting)).await).is_empty());
    assert_eq!(cache.size().0, 1);

    source.finish(Ok(environment_with("B", second.clone())));
    within(manager.environment(&id("worker"))).await.unwrap();
    let step_b = resolve(&thread, &manager.snapshot(), &manager);
    let available = within(cache.project(&step_b)).await;
    assert_eq!(skills(&available), ["tidy"]);
    assert_eq!(label(&available.skills[0].root.environment), "B");
    assert_eq!((first.calls(), second.calls()), (1, 0));
}

#[tokio::test]
async fn step_sees_only_its_own_roots_in_order() {
    let catalog = FakeCatalog::open();
    fill(&catalog, &["a", "b", "c"]);
    let (near, far) = (handle("near", &catalog), handle("far", &catalog));
    let both = StepRoots {
        resolved: vec![
            resolved("c", "near", &near),
            resolved("a", "far", &far),
            resolved("b", "near", &near),
        ],
        omitted: Vec::new(),
    };
    let cache = CapabilityCache::default();
    assert_eq!(skills(&within(cache.project(&both)).await), ["c", "a", "b"]);
    assert_eq!(catalog.calls(), 2, "one request per environment");
    assert_eq!(catalog.requested_roots(), 3);
    let near_only = step(&["b", "c"], "near", &near);
    assert_eq!(skills(&within(cache.project(&near_only)).await), ["b", "c"]);
    let empty = within(cache.project(&StepRoots::default())).await;
    assert!(empty.skills.is_empty() && empty.failed.is_empty());
    assert_eq!(skills(&within(cache.project(&both)).await), ["c", "a", "b"]);
    assert_eq!(
        catalog.calls(),
        2,
        "what came back was not discovered again"
    );
}

#[tokio::test]
async fn cache_key_is_environment_root_and_path() {
    let catalog = FakeCatalog::open();
    fill(&catalog, &["a", "b"]);
    let one = handle("one", &catalog);
    let cache = CapabilityCache::default();
    within(cache.project(&step(&["a"], "one", &one))).await;
    within(cache.project(&step(&["a"], "two", &one))).await;
    assert_eq!(catalog.calls(), 2, "another environment");
    let mut moved = step(&["a"], "one", &one);
    moved.resolved[0].path = uri("/roots/b");
    assert_eq!(skills(&within(cache.project(&moved)).await), ["b"]);
    assert_eq!(catalog.calls(), 3, "another path");
    let mut renamed = step(&["a"], "one", &one);
    renamed.resolved[0].id = RootId::new("a@2").unwrap();
    within(cache.project(&renamed)).await;
    assert_eq!(catalog.calls(), 4, "another root id");
    within(cache.project(&renamed)).await;
    assert_eq!(catalog.calls(), 4);
}

#[tokio::test]
async fn concurrent_steps_share_one_discovery() {
    let catalog = FakeCatalog::closed();
    fill(&catalog, &["a", "b"]);
    let worker = handle("A", &catalog);
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
    catalog.wait_for_calls(2).await;
    yield_now().await;
    catalog.allow_responses(2);
    let available = within(join_all(steps)).await;
    assert_eq!(available[0].as_ref().unwrap(), &["a"]);
    for skills in &available[1..] {
        assert_eq!(skills.as_ref().unwrap(), &["a", "b"]);
    }
    assert_eq!((catalog.calls(), catalog.requested_roots()), (2, 2));
}

#[tokio::test]
async fn dropped_step_leaves_a_shared_discovery_running() {
    let catalog = FakeCatalog::closed();
    fill(&catalog, &["a"]);
    let worker = handle("A", &catalog);
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
    catalog.allow_responses(1);
    assert_eq!(within(joined).await.unwrap(), ["a"]);
    assert_eq!(catalog.calls(), 1);
}

#[tokio::test]
async fn abandoned_discovery_is_started_again() {
    let catalog = FakeCatalog::closed();
    fill(&catalog, &["a"]);
    let worker = handle("A", &catalog);
    let cache = CapabilityCache::default();
    let roots = step(&["a"], "worker", &worker);
    assert!(cache.project(&roots).now_or_never().is_none());
    catalog.allow_responses(1);
    assert_eq!(skills(&within(cache.project(&roots)).await), ["a"]);
    assert_eq!(catalog.calls(), 2);
}

#[tokio::test]
async fn discovery_failure_is_reported_and_not_cached() {
    let catalog = FakeCatalog::open();
    let partly = DiscoveredRoot {
        warnings: vec!["too large".to_owned()],
        ..with_skill("good")
    };
    catalog.put(uri("/roots/good"), Ok(partly));
    let unreadable = DiscoveredRoot {
        error: Some("no such directory".to_owned()),
        ..empty("bad")
    };
    catalog.put(uri("/roots/bad"), Ok(unreadable));
    let worker = handle("A", &catalog);
    let cache = CapabilityCache::default();
    let roots = step(&["bad", "good"], "worker", &worker);
    let available = within(cache.project(&roots)).await;
    assert_eq!(skills(&available), ["good"], "other roots are not affected");
    assert_eq!(available.warnings[0].text, "too large");
    let [failed] = available.failed.as_slice() else {
        panic!("{:?}", available.failed);
    };
    assert_eq!(failed.root.id.as_str(), "bad");
    assert_eq!(
        failed.error,
        DiscoverError::Root("no such directory".to_owned())
    );

    catalog.put(uri("/roots/bad"), Ok(with_skill("bad")));
    let available = within(cache.project(&roots)).await;
    assert_eq!(skills(&available), ["bad", "good"]);
    assert!(available.failed.is_empty());
    assert_eq!(
        catalog.requested_roots(),
        3,
        "only what had failed was asked for again"
    );
}

#[tokio::test]
async fn step_retries_through_its_own_handle_when_a_joined_discovery_fails() {
    let (dead, alive) = (FakeCatalog::closed(), FakeCatalog::open());
    let disconnected = || FileError::Disconnected(DisconnectReason::Transport("reset".to_owned()));
    dead.put(uri("/roots/a"), Err(disconnected()));
    fill(&alive, &["a"]);
    let cache = CapabilityCache::default();
    let project = |catalog: &Arc<FakeCatalog>| {
        let (cache, roots) = (cache.clone(), step(&["a"], "worker", &handle("h", catalog)));
        tokio::spawn(async move { cache.project(&roots).await })
    };
    let first = project(&dead);
    dead.wait_for_calls(1).await;
    let second = project(&alive);
    yield_now().await;
    dead.allow_responses(1);
    let first = within(first).await.unwrap();
    assert_eq!(
        first.failed[0].error,
        DiscoverError::Catalog(disconnected())
    );
    assert_eq!(skills(&within(second).await.unwrap()), ["a"]);
    assert_eq!((dead.calls(), alive.calls()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn unresponsive_environment_times_out() {
    let catalog = FakeCatalog::closed();
    fill(&catalog, &["a"]);
    let cache = CapabilityCache::default();
    let roots = step(&["a"], "worker", &handle("A", &catalog));
    let started_at = tokio::time::Instant::now();
    let available = cache.project(&roots).await;
    assert_eq!(available.failed[0].error, DiscoverError::TimedOut);
    assert!(started_at.elapsed() < 2 * DISCOVERY_TIMEOUT);
    catalog.allow_responses(1);
    assert_eq!(skills(&cache.project(&roots).await), ["a"]);
}
