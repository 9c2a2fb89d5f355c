//! Files that are long, short, or named unlike what they hold. Remarks, not faults: each is a hint
//! that a reader would look elsewhere.

use super::{finding::Finding, source::Source, tree::File, type_names};

/// Above this many lines a file is listed.
const MAX_LINES: usize = 600;
/// Below this many lines a file is listed.
const MIN_LINES: usize = 40;
/// Files whose name is given by their role.
const ROLE_NAMES: &[&str] = &["lib", "main", "error", "limits", "tests"];

/// Checks the length of one file.
pub(crate) fn check_length(file: &File) -> Option<Finding> {
    let lines = file.text.lines().count();
    if lines > MAX_LINES {
        let message = format!("{lines} lines: does it have two jobs?");
        return Some(Finding::of_file(&file.path, message));
    }
    let is_short = lines < MIN_LINES && type_names::is_product(&file.path);
    let message = || format!("{lines} lines: does it belong to its only user?");
    (is_short && !has_role_name(&file.path)).then(|| Finding::of_file(&file.path, message()))
}

/// Checks that a file defines a type whose name has a word of the file's name.
pub(crate) fn check_name(source: &Source) -> Option<Finding> {
    if !type_names::is_product(&source.path) || has_role_name(&source.path) {
        return None;
    }
    let stem = stem(&source.path).replace('_', "");
    let mut names = type_names::types(source).map(|(_, name)| name).peekable();
    names.peek()?;
    let is_like = |name: &str| {
        let name = name.to_lowercase();
        name.contains(stem.trim_end_matches('s')) || stem.contains(name.trim_end_matches('s'))
    };
    let message = "no type is named like the file: what is its main type?";
    (!names.any(is_like)).then(|| Finding::of_file(&source.path, message))
}

fn has_role_name(path: &str) -> bool {
    ROLE_NAMES.contains(&stem(path))
}

fn stem(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.strip_suffix(".rs").unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_short_files_are_listed() {
        let file = |path: &str, lines| File {
            path: path.to_owned(),
            text: "x\n".repeat(lines),
        };
        let path = "crates/a/b/src/c.rs";
        assert_eq!(check_length(&file(path, 600)), None);
        assert!(check_length(&file(path, 601)).is_some());
        assert!(check_length(&file(path, 39)).is_some());
        assert_eq!(check_length(&file(path, 40)), None);
        assert_eq!(check_length(&file("crates/a/b/src/lib.rs", 3)), None);
    }

    #[test]
    fn a_file_has_a_type_like_its_name() {
        let check = |path, text| check_name(&Source::new(path, text)).is_some();
        assert!(!check("crates/a/b/src/output_log.rs", "struct OutputLog;"));
        assert!(!check("crates/a/b/src/log.rs", "struct OutputLog;"));
        assert!(!check("crates/a/b/src/numbers.rs", "fn add() {}"));
        assert!(check("crates/a/b/src/door.rs", "struct WatchThread;"));
    }
}
