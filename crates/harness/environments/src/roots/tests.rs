//! The selection of roots, its serialized form, and its resolution in steps.

use std::sync::Arc;

use exec_wire::path_uri::PathUri;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::{
    MAX_SELECTED_ROOTS, OmissionReason, RootId, RootLocation, SelectedCapabilityRoot,
    SelectedRoots, StepRoots, TooManyRoots, resolve,
};
use crate::{
    fakes::{ControlledSource, FakeCatalog, environment, environment_with, id, label, within},
    manager::{EnvironmentManager, EnvironmentState, RETRY_AFTER, StartMode},
};

/// Selects a root.
fn root(name: &str, environment: &str) -> SelectedCapabilityRoot {
    let path = PathUri::parse(&format!("file:///roots/{name}")).unwrap();
    SelectedCapabilityRoot::new(RootId::new(name).unwrap(), id(environment), path)
}

/// Selects roots.
fn selection(roots: &[(&str, &str)]) -> SelectedRoots {
    let roots = roots
        .iter()
        .map(|(name, environment)| root(name, environment));
    SelectedRoots::new(roots).unwrap()
}

fn plugin() -> Value {
    json!({
        "id": "plugin@1",
        "location": {"type": "environment", "environmentId": "worker", "path": "file:///roots/plugin@1"},
    })
}

#[test]
fn root_serializes_id_environment_and_path() {
    let written = serde_json::to_value(root("plugin@1", "worker")).unwrap();
    assert_eq!(written, plugin());
    let read: SelectedCapabilityRoot = serde_json::from_value(written).unwrap();
    assert_eq!(read, root("plugin@1", "worker"));
}

#[test]
fn unknown_location_round_trips_unchanged() {
    let text = json!({"id": "x", "location": {"type": "cloud", "bucket": ["a", 1]}});
    let read: SelectedCapabilityRoot = serde_json::from_value(text.clone()).unwrap();
    assert!(matches!(read.location, RootLocation::Unknown(_)));
    assert_eq!(serde_json::to_value(read).unwrap(), text);
}

#[test]
fn invalid_root_is_rejected() {
    let broken = [
        ("/id", json!("")),
        ("/id", json!("x".repeat(257))),
        ("/location/type", json!(7)),
        ("/location/environmentId", json!("none")),
        ("/location/environmentId", json!("a/b")),
        ("/location/environmentId", Value::Null),
        ("/location/path", json!("/native/path")),
        ("/location", json!("worker")),
    ];
    for (place, value) in broken {
        let mut text = plugin();
        *text.pointer_mut(place).unwrap() = value;
        serde_json::from_value::<SelectedCapabilityRoot>(text.clone())
            .expect_err(&text.to_string());
    }
}

#[test]
fn duplicate_root_is_dropped_and_order_is_kept() {
    let roots = selection(&[
        ("a", "worker"),
        ("b", "worker"),
        ("a", "worker"),
        ("a", "local"),
    ]);
    let names: Vec<_> = roots.iter().map(|root| root.id.as_str()).collect();
    assert_eq!(names, ["a", "b", "a"]);
    assert_eq!(roots.len(), 3);
}

#[test]
fn selection_size_is_limited() {
    let roots = |count| (0..count).map(|number: usize| root(&number.to_string(), "worker"));
    let selected = SelectedRoots::new(roots(MAX_SELECTED_ROOTS)).unwrap();
    assert_eq!(selected.len(), MAX_SELECTED_ROOTS);
    assert_eq!(
        SelectedRoots::new(roots(MAX_SELECTED_ROOTS + 1)),
        Err(TooManyRoots)
    );
    let text = serde_json::to_value(roots(MAX_SELECTED_ROOTS + 1).collect::<Vec<_>>()).unwrap();
    serde_json::from_value::<SelectedRoots>(text).unwrap_err();
    assert!(RootId::new("").is_err());
}

fn manager() -> EnvironmentManager {
    EnvironmentManager::new(Handle::current())
}

/// Captures all environments, as a turn does, and resolves the selection.
fn step(selection: &SelectedRoots, manager: &EnvironmentManager) -> StepRoots {
    resolve(selection, &manager.snapshot(), manager)
}

/// Returns the ids and handles of the resolved roots.
fn resolved(step: &StepRoots) -> Vec<(String, String)> {
    let pair = |root: &crate::roots::ResolvedRoot| (root.id.to_string(), label(&root.environment));
    step.resolved.iter().map(pair).collect()
}

fn pair(root: &str, handle: &str) -> (String, String) {
    (root.to_owned(), handle.to_owned())
}

/// Returns the reason of the only omission.
fn omission(step: &StepRoots) -> &OmissionReason {
    assert!(step.resolved.is_empty(), "{step:?}");
    let [omitted] = step.omitted.as_slice() else {
        panic!("expected one omission: {step:?}");
    };
    &omitted.reason
}

#[tokio::test]
async fn selected_plugin_is_resolved_across_three_steps() {
    let manager = manager();
    let worker = ControlledSource::new();
    manager
        .insert(id("worker"), worker.clone(), StartMode::Eager)
        .unwrap();
    // thread selection: plugin@1 -> environment "worker"
    let thread = selection(&[("plugin@1", "worker")]);

    // step 1: worker is starting -> plugin@1 unavailable
    worker.wait_for_calls(1).await;
    let step_1 = step(&thread, &manager);
    assert!(matches!(omission(&step_1), OmissionReason::Starting));

    // step 2: worker is ready -> plugin@1 resolves through worker's captured handle
    worker.finish(Ok(environment("A")));
    let handle_a = within(manager.environment(&id("worker"))).await.unwrap();
    let captured_2 = manager.snapshot();
    let step_2 = resolve(&thread, &captured_2, &manager);
    assert_eq!(resolved(&step_2), [pair("plugin@1", "A")]);
    assert!(Arc::ptr_eq(&step_2.resolved[0].environment, &handle_a));
    assert_eq!(step_2.resolved[0].path.as_str(), "file:///roots/plugin@1");

    // step 3: fresh local handle -> current step remains pinned; a later step captures its own view
    let fresh = ControlledSource::new();
    manager
        .replace(id("worker"), fresh.clone(), StartMode::Eager)
        .unwrap();
    fresh.wait_for_calls(1).await;
    assert_eq!(
        resolved(&resolve(&thread, &captured_2, &manager)),
        [pair("plugin@1", "A")]
    );
    assert_eq!(resolved(&step_2), [pair("plugin@1", "A")]);
    assert!(matches!(
        omission(&step(&thread, &manager)),
        OmissionReason::Starting
    ));
    fresh.finish(Ok(environment("B")));
    within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!(resolved(&step(&thread, &manager)), [pair("plugin@1", "B")]);
    assert_eq!(
        resolved(&resolve(&thread, &captured_2, &manager)),
        [pair("plugin@1", "A")]
    );

    // Temporary unavailability has not discarded the durable selection.
    assert_eq!(thread, selection(&[("plugin@1", "worker")]));
}

#[tokio::test]
async fn readiness_of_one_handle_is_never_combined_with_another_handle() {
    let manager = manager();
    let thread = selection(&[("plugin@1", "worker")]);
    manager
        .insert(id("worker"), ControlledSource::ready("A"), StartMode::Eager)
        .unwrap();
    within(manager.environment(&id("worker"))).await.unwrap();
    let a_is_ready = manager.snapshot();
    let b = ControlledSource::new();
    manager
        .replace(id("worker"), b.clone(), StartMode::Eager)
        .unwrap();
    let b_is_starting = manager.snapshot();
    // B becomes ready between capture and resolution. Neither step may use it.
    b.finish(Ok(environment("B")));
    within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!(
        resolved(&resolve(&thread, &a_is_ready, &manager)),
        [pair("plugin@1", "A")]
    );
    let step = resolve(&thread, &b_is_starting, &manager);
    assert!(matches!(omission(&step), OmissionReason::Starting));
}

#[tokio::test]
async fn lazy_environment_outside_the_snapshot_is_started_once() {
    let manager = manager();
    let (worker, other) = (ControlledSource::new(), ControlledSource::new());
    manager
        .insert(
            id("local"),
            ControlledSource::ready("local"),
            StartMode::Eager,
        )
        .unwrap();
    manager
        .insert(id("worker"), worker.clone(), StartMode::Lazy)
        .unwrap();
    manager
        .insert(id("other"), other.clone(), StartMode::Lazy)
        .unwrap();
    within(manager.environment(&id("local"))).await.unwrap();
    let thread = selection(&[("a", "worker"), ("b", "local"), ("c", "worker")]);
    let turn = manager.snapshot_of(&[id("local")]);
    for _ in 0..10 {
        let step = resolve(&thread, &turn, &manager);
        assert_eq!(resolved(&step), [pair("b", "local")]);
        let omitted: Vec<_> = step
            .omitted
            .iter()
            .map(|omitted| omitted.root.id.as_str())
            .collect();
        assert_eq!(omitted, ["a", "c"]);
        assert!(
            step.omitted
                .iter()
                .all(|root| matches!(root.reason, OmissionReason::Starting))
        );
    }
    worker.wait_for_calls(1).await;
    worker.finish(Ok(environment("worker")));
    within(manager.environment(&id("worker"))).await.unwrap();
    // The same turn does not see it: it was not captured.
    let step = resolve(&thread, &turn, &manager);
    assert_eq!((step.resolved.len(), step.omitted.len()), (1, 2));
    assert!(
        step.omitted
            .iter()
            .all(|root| matches!(root.reason, OmissionReason::NotCaptured))
    );
    let later = [pair("a", "worker"), pair("b", "local"), pair("c", "worker")];
    assert_eq!(resolved(&self::step(&thread, &manager)), later);
    assert_eq!((worker.calls(), other.calls()), (1, 0));
}

#[tokio::test]
async fn unselected_or_starting_environments_are_not_started() {
    let manager = manager();
    let source = ControlledSource::new();
    manager
        .insert(id("worker"), source.clone(), StartMode::Eager)
        .unwrap();
    source.wait_for_calls(1).await;
    let captured = manager.snapshot();
    source.fail("no");
    within(manager.environment(&id("worker")))
        .await
        .unwrap_err();
    let step = resolve(&selection(&[("a", "worker")]), &captured, &manager);
    assert!(matches!(omission(&step), OmissionReason::Starting));
    assert!(matches!(
        manager.state(&id("worker")),
        Some(EnvironmentState::Failed(_))
    ));
    assert_eq!(source.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_environment_is_omitted_and_retried_after_a_delay() {
    let manager = manager();
    let source = ControlledSource::new();
    let thread = selection(&[("a", "worker")]);
    manager
        .insert(id("worker"), source.clone(), StartMode::Lazy)
        .unwrap();
    source.fail("down");
    within(manager.environment(&id("worker")))
        .await
        .unwrap_err();
    for _ in 0..100 {
        let step = step(&thread, &manager);
        let OmissionReason::Failed(error) = omission(&step) else {
            panic!("{step:?}");
        };
        assert_eq!(error.to_string(), "down");
    }
    assert_eq!(source.calls(), 1);

    tokio::time::advance(RETRY_AFTER).await;
    assert!(matches!(
        omission(&step(&thread, &manager)),
        OmissionReason::Failed(_)
    ));
    assert!(matches!(
        omission(&step(&thread, &manager)),
        OmissionReason::Starting
    ));
    source.wait_for_calls(2).await;
    source.fail("still down");
    within(manager.environment(&id("worker")))
        .await
        .unwrap_err();

    // An explicit request does not wait for the delay.
    source.finish(Ok(environment("worker")));
    within(manager.environment(&id("worker"))).await.unwrap();
    assert_eq!(resolved(&step(&thread, &manager)), [pair("a", "worker")]);
    assert_eq!(source.calls(), 3);
}

#[tokio::test]
async fn missing_environment_is_omitted_and_other_roots_resolve() {
    let manager = manager();
    manager
        .insert(id("worker"), ControlledSource::ready("A"), StartMode::Eager)
        .unwrap();
    within(manager.environment(&id("worker"))).await.unwrap();
    let cloud = json!({"id": "x", "location": {"type": "cloud"}});
    let mut roots = vec![serde_json::from_value(cloud).unwrap()];
    roots.extend(selection(&[("a", "gone"), ("b", "worker")]).iter().cloned());
    let thread = SelectedRoots::new(roots).unwrap();
    let step = step(&thread, &manager);
    assert_eq!(resolved(&step), [pair("b", "A")]);
    let [unknown, missing] = step.omitted.as_slice() else {
        panic!("{step:?}");
    };
    assert!(matches!(unknown.reason, OmissionReason::UnknownLocation));
    assert!(matches!(missing.reason, OmissionReason::Missing));
}

#[tokio::test]
async fn resolve_reads_no_capability_files() {
    let manager = manager();
    let (source, catalog) = (ControlledSource::new(), FakeCatalog::open());
    source.finish(Ok(environment_with("A", catalog.clone())));
    manager
        .insert(id("worker"), source, StartMode::Eager)
        .unwrap();
    within(manager.environment(&id("worker"))).await.unwrap();
    let step = step(&selection(&[("a", "worker")]), &manager);
    assert_eq!(step.resolved.len(), 1);
    assert_eq!(catalog.calls(), 0);
}
