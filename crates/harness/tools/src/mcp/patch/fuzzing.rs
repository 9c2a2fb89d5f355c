//! Entry point of the fuzz target `apply_patch`: the text of a file, a NUL, and any text as a patch.
//!
//! Invariant checked: a refusal names a line of the patch; a patch that fits changes the number of
//! lines by what it inserts and removes. Not here: the target itself and its corpus (`fuzz/`).

use super::{
    Operation, Patch, apply,
    parse::{Hunk, HunkLine},
};

/// Parses a patch and applies every update of it to the file.
///
/// # Panics
/// When an invariant does not hold.
pub fn apply_patch(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else {
        return;
    };
    let (file, patch) = input.split_once('\0').unwrap_or(("", input));
    let operations = match Patch::parse(patch) {
        Ok(patch) => patch.operations,
        Err(error) => {
            let text = error.to_string();
            let line = text
                .strip_prefix("patch line ")
                .and_then(|rest| rest.split(':').next()?.parse().ok());
            let lines = 1..=patch.lines().count().max(1);
            return assert!(line.is_some_and(|line| lines.contains(&line)), "{text}");
        }
    };
    assert!(!operations.is_empty(), "a patch changes something");
    for operation in &operations {
        match operation {
            Operation::Add { path, content } => {
                assert!(!path.trim().is_empty(), "a path is named");
                assert!(content.is_empty() || content.ends_with('\n'));
            }
            Operation::Delete { path } => assert!(!path.trim().is_empty(), "a path is named"),
            Operation::Update { path, hunks, .. } => {
                assert!(!path.trim().is_empty(), "a path is named");
                check_update(file, hunks);
            }
        }
    }
    assert_eq!(apply(file, &[]).as_deref(), Ok(file));
}

fn check_update(file: &str, hunks: &[Hunk]) {
    let changed = match apply(file, hunks) {
        Ok(changed) => changed,
        Err(error) => return assert!(error.to_string().starts_with("hunk "), "{error}"),
    };
    let lines = || hunks.iter().flat_map(|hunk| &hunk.lines);
    let inserted = lines().filter(|line| matches!(line, HunkLine::Insert(_)));
    let removed = lines().filter(|line| matches!(line, HunkLine::Remove(_)));
    let expected = line_count(file) + inserted.count() - removed.count();
    assert_eq!(line_count(&changed), expected, "{changed:?}");
}

/// Counts lines; a byte order mark is not part of one.
fn line_count(text: &str) -> usize {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.split_inclusive('\n').count()
}
