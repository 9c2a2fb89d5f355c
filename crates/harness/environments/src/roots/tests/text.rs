//! How a selection is written and read.

use serde_json::{Value, json};

use super::{root, selection};
use crate::roots::{
    MAX_SELECTED_ROOTS, RootId, RootLocation, SelectedCapabilityRoot, SelectedRoots, TooManyRoots,
};

fn plugin() -> Value {
    json!({
        "id": "plugin@1",
        "location": {"type": "environment", "environmentId": "worker", "path": "file:///roots/plugin@1"},
    })
}

#[test]
fn a_root_is_written_with_its_id_its_environment_and_its_path() {
    let written = serde_json::to_value(root("plugin@1", "worker")).unwrap();
    assert_eq!(written, plugin());
    let read: SelectedCapabilityRoot = serde_json::from_value(written).unwrap();
    assert_eq!(read, root("plugin@1", "worker"));
}

#[test]
fn a_location_of_an_unknown_kind_is_kept_as_it_was() {
    let text = json!({"id": "x", "location": {"type": "cloud", "bucket": ["a", 1]}});
    let read: SelectedCapabilityRoot = serde_json::from_value(text.clone()).unwrap();
    assert!(matches!(read.location, RootLocation::Unknown(_)));
    assert_eq!(serde_json::to_value(read).unwrap(), text);
}

#[test]
fn a_root_that_makes_no_sense_is_refused() {
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
fn what_is_selected_twice_counts_once_and_keeps_its_place() {
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
fn a_selection_has_a_bound() {
    let many = |count| (0..count).map(|number: usize| root(&number.to_string(), "worker"));
    let most = SelectedRoots::new(many(MAX_SELECTED_ROOTS)).unwrap();
    assert_eq!(most.len(), MAX_SELECTED_ROOTS);
    assert_eq!(
        SelectedRoots::new(many(MAX_SELECTED_ROOTS + 1)),
        Err(TooManyRoots)
    );
    let text = serde_json::to_value(many(MAX_SELECTED_ROOTS + 1).collect::<Vec<_>>()).unwrap();
    serde_json::from_value::<SelectedRoots>(text).unwrap_err();
    assert!(RootId::new("").is_err());
}
