//! Files that have grown. A remark, not a fault: length is a hint that a file has two jobs.

use super::{finding::Finding, tree::File};

/// Above this many lines a file is listed.
const MOST_LINES: usize = 500;

/// Looks at one file.
pub(crate) fn check(file: &File) -> Option<Finding> {
    let lines = file.text.lines().count();
    let message = || format!("{lines} lines: does it have two jobs?");
    (lines > MOST_LINES).then(|| Finding::of_file(&file.path, message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_files_are_listed() {
        let file = |lines| File {
            path: "a.rs".to_owned(),
            text: "x\n".repeat(lines),
        };
        assert_eq!(check(&file(500)), None);
        assert!(check(&file(501)).is_some());
    }
}
