//! Persisting a thread, restoring it and forking it.

use exec_wire::path_uri::PathUri;
use serde_json::{Value, json};

use super::{
    ForkHistory, InvalidLine, LineError, Rollout, RolloutError, RolloutItem, SessionMeta, ThreadId,
};
use crate::{
    fakes::id,
    roots::{RootId, SelectedCapabilityRoot, SelectedRoots},
};

fn thread_id(text: &str) -> ThreadId {
    ThreadId::new(text).unwrap()
}

fn selection() -> SelectedRoots {
    let root = |name: &str, environment: &str| {
        let path = PathUri::parse(&format!("file:///roots/{name}")).unwrap();
        SelectedCapabilityRoot::new(RootId::new(name).unwrap(), id(environment), path)
    };
    SelectedRoots::new([root("plugin@1", "worker"), root("skills", "local")]).unwrap()
}

/// Returns a thread with this number of items.
fn thread(items: usize) -> Rollout {
    let mut rollout = Rollout::new(SessionMeta::new(thread_id("t1"), selection()));
    rollout.items = (0..items)
        .map(|number| RolloutItem::parse(&format!(r#"{{"turn": {number}}}"#)).unwrap())
        .collect();
    rollout
}

fn texts(rollout: &Rollout) -> Vec<&str> {
    rollout.items.iter().map(RolloutItem::as_str).collect()
}

/// Writes and parses a thread, which must be lossless.
fn restored(rollout: &Rollout) -> Rollout {
    let read = Rollout::read(&rollout.write().unwrap()).unwrap();
    assert_eq!(read.invalid_lines, []);
    read.rollout
}

#[test]
fn selection_round_trips_with_the_thread() {
    let rollout = restored(&thread(3));
    assert_eq!(rollout.meta, SessionMeta::new(thread_id("t1"), selection()));
    assert_eq!(
        texts(&rollout),
        [r#"{"turn": 0}"#, r#"{"turn": 1}"#, r#"{"turn": 2}"#]
    );
}

#[test]
fn only_stable_data_is_persisted() {
    let text = thread(0).write().unwrap();
    let head: Value = serde_json::from_str(&text).unwrap();
    let root = |name: &str, environment: &str| {
        let path = format!("file:///roots/{name}");
        let location = json!({"type": "environment", "environmentId": environment, "path": path});
        json!({"id": name, "location": location})
    };
    let roots = json!([root("plugin@1", "worker"), root("skills", "local")]);
    let payload = json!({"id": "t1", "selected_capability_roots": roots});
    assert_eq!(head, json!({"type": "session_meta", "payload": payload}));
    assert_eq!(text.matches('\n').count(), 1);
}

#[test]
fn forks_inherit_the_selection_with_full_or_partial_history() {
    let parent = restored(&thread(5));
    for (history, turns) in [
        (ForkHistory::All, 0..5),
        (ForkHistory::Last(2), 3..5),
        (ForkHistory::Last(0), 5..5),
        (ForkHistory::Last(9), 0..5),
    ] {
        let fork = restored(&parent.fork(thread_id("t2"), history));
        assert_eq!(
            fork.meta.selected_capability_roots,
            selection(),
            "{history:?}"
        );
        assert_eq!(fork.meta.id, thread_id("t2"));
        assert_eq!(fork.meta.forked_from_id, Some(thread_id("t1")));
        let expected: Vec<_> = turns.map(|turn| format!(r#"{{"turn": {turn}}}"#)).collect();
        assert_eq!(texts(&fork), expected, "{history:?}");
    }
    let grandchild = parent
        .fork(thread_id("t2"), ForkHistory::Last(1))
        .fork(thread_id("t3"), ForkHistory::Last(1));
    assert_eq!(
        restored(&grandchild).meta.selected_capability_roots,
        selection()
    );
    assert_eq!(grandchild.meta.forked_from_id, Some(thread_id("t2")));
}

#[test]
fn metadata_without_the_field_selects_nothing() {
    for text in [
        r#"{"id":"t1"}"#,
        r#"{"id":"t1","selected_capability_roots":null}"#,
        r#"{"id":"t1","selected_capability_roots":[]}"#,
    ] {
        let meta: SessionMeta = serde_json::from_str(text).unwrap();
        assert!(meta.selected_capability_roots.is_empty());
        assert_eq!(
            meta.fork(thread_id("t2")).selected_capability_roots.len(),
            0
        );
    }
}

#[test]
fn unknown_members_round_trip() {
    let line = json!({
        "timestamp": "2026-01-01T00:00:00Z",
        "type": "session_meta",
        "payload": {"id": "t1", "cwd": "/home/dev", "git": {"branch": "main"}, "selected_capability_roots": [{
            "id": "plugin@1",
            "location": {
                "type": "environment",
                "environmentId": "worker",
                "path": "file:///roots/plugin",
                "revision": 7,
            },
            "pinned": true,
        }]},
    });
    let read = Rollout::read(&line.to_string()).unwrap().rollout;
    assert_eq!(read.meta.others["cwd"], "/home/dev");
    let written: Value = serde_json::from_str(&read.write().unwrap()).unwrap();
    assert_eq!(written, line);
    let fork = read.fork(thread_id("t2"), ForkHistory::All);
    assert_eq!(fork.meta.others["git"]["branch"], "main");
    let written: Value = serde_json::from_str(&fork.write().unwrap()).unwrap();
    let selected = "/payload/selected_capability_roots";
    assert_eq!(written.pointer(selected), line.pointer(selected));
}

#[test]
fn invalid_lines_are_skipped_and_reported_by_number() {
    let head = thread(0).write().unwrap();
    let text = format!("\n{head}{{\"turn\":0}}\nnot json\n\n[1]\n{{\"turn\":1}}\n{{\"turn\":");
    let read = Rollout::read(&text).unwrap();
    assert_eq!(texts(&read.rollout), [r#"{"turn":0}"#, r#"{"turn":1}"#]);
    let numbers: Vec<_> = read.invalid_lines.iter().map(|line| line.number).collect();
    assert_eq!(numbers, [4, 6, 8]);
    assert_eq!(
        read.invalid_lines[1].to_string(),
        "line 6: not a JSON object: expected `{`"
    );
    assert_eq!(read.rollout.meta.selected_capability_roots, selection());
}

#[test]
fn rollout_without_metadata_is_rejected() {
    assert_eq!(Rollout::read(" \n\n").unwrap_err(), RolloutError::Empty);
    let other = Rollout::read("\n{\"type\":\"turn\"}\n").unwrap_err();
    let (number, error) = (2, LineError::NotMeta);
    assert_eq!(other, RolloutError::Head(InvalidLine { number, error }));
    for (payload, named) in [
        (json!({}), "`id`"),
        (json!({"id": ""}), "`id`"),
        (
            json!({"id": "t", "selected_capability_roots": [1]}),
            "`selected_capability_roots`",
        ),
    ] {
        let line = json!({"type": "session_meta", "payload": payload}).to_string();
        let error = Rollout::read(&line).unwrap_err();
        let RolloutError::Head(InvalidLine {
            number: 1,
            error: LineError::Meta(text),
        }) = error
        else {
            panic!("{error:?}");
        };
        assert!(text.contains(named), "{text}");
    }
}

#[test]
fn rollout_item_is_a_single_line() {
    RolloutItem::parse("{\"a\":\n1}").unwrap_err();
    RolloutItem::parse("{\"a\":1} {}").unwrap_err();
    assert_eq!(
        RolloutItem::parse(" {\"a\" : 1}\r").unwrap().as_str(),
        "{\"a\" : 1}"
    );
}
