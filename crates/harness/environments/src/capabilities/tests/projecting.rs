//! What a step sees, and that a new handle finds nothing anew.

use tokio::runtime::Handle;

use super::{fill, handle, resolved, skills, step, uri};
use crate::{
    capabilities::CapabilityCache,
    fakes::{Controlled, Shelf, environment_with, id, label, within},
    manager::{EnvironmentManager, Start},
    roots::{RootId, SelectedCapabilityRoot, SelectedRoots, StepRoots, resolve},
};

#[tokio::test]
async fn a_fresh_handle_under_the_same_id_discovers_nothing_again() {
    let manager = EnvironmentManager::new(Handle::current());
    let (first, second) = (Shelf::open(), Shelf::open());
    fill(&first, &["tidy"]);
    let source = Controlled::new();
    source.finish(Ok(environment_with("A", first.clone())));
    manager.insert(id("worker"), source, Start::Eager).unwrap();
    within(manager.environment(&id("worker"))).await.unwrap();
    let root = RootId::new("tidy").unwrap();
    let root = SelectedCapabilityRoot::new(root, id("worker"), uri("/roots/tidy"));
    let thread = SelectedRoots::new([root]).unwrap();
    let cache = CapabilityCache::default();
    let step_a = resolve(&thread, &manager.snapshot(), &manager);
    let seen = within(cache.project(&step_a)).await;
    assert_eq!(skills(&seen), ["tidy"]);
    assert_eq!(label(&seen.skills[0].root.environment), "A");

    // While the fresh handle starts, the skill is not shown, and stays known.
    let source = Controlled::new();
    manager
        .replace(id("worker"), source.clone(), Start::Eager)
        .unwrap();
    let starting = resolve(&thread, &manager.snapshot(), &manager);
    assert!(skills(&within(cache.project(&starting)).await).is_empty());
    assert_eq!(cache.size().0, 1);

    source.finish(Ok(environment_with("B", second.clone())));
    within(manager.environment(&id("worker"))).await.unwrap();
    let step_b = resolve(&thread, &manager.snapshot(), &manager);
    let seen = within(cache.project(&step_b)).await;
    assert_eq!(skills(&seen), ["tidy"]);
    assert_eq!(label(&seen.skills[0].root.environment), "B");
    assert_eq!((first.calls(), second.calls()), (1, 0));
}

#[tokio::test]
async fn only_what_the_step_has_is_shown_and_in_its_order() {
    let shelf = Shelf::open();
    fill(&shelf, &["a", "b", "c"]);
    let (near, far) = (handle("near", &shelf), handle("far", &shelf));
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
    assert_eq!(shelf.calls(), 2, "one question for each environment");
    assert_eq!(shelf.roots_asked(), 3);
    let near_only = step(&["b", "c"], "near", &near);
    assert_eq!(skills(&within(cache.project(&near_only)).await), ["b", "c"]);
    let nothing = within(cache.project(&StepRoots::default())).await;
    assert!(nothing.skills.is_empty() && nothing.failed.is_empty());
    assert_eq!(skills(&within(cache.project(&both)).await), ["c", "a", "b"]);
    assert_eq!(shelf.calls(), 2, "what came back was not discovered again");
}

#[tokio::test]
async fn environment_root_and_path_make_the_difference() {
    let shelf = Shelf::open();
    fill(&shelf, &["a", "b"]);
    let one = handle("one", &shelf);
    let cache = CapabilityCache::default();
    within(cache.project(&step(&["a"], "one", &one))).await;
    within(cache.project(&step(&["a"], "two", &one))).await;
    assert_eq!(shelf.calls(), 2, "another environment");
    let mut moved = step(&["a"], "one", &one);
    moved.resolved[0].path = uri("/roots/b");
    assert_eq!(skills(&within(cache.project(&moved)).await), ["b"]);
    assert_eq!(shelf.calls(), 3, "another path");
    let mut renamed = step(&["a"], "one", &one);
    renamed.resolved[0].id = RootId::new("a@2").unwrap();
    within(cache.project(&renamed)).await;
    assert_eq!(shelf.calls(), 4, "another root id");
    within(cache.project(&renamed)).await;
    assert_eq!(shelf.calls(), 4);
}
