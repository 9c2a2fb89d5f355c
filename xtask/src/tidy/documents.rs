//! Documents that a reader expects to find.

use std::collections::BTreeSet;

use super::finding::Finding;

/// What must be there, each for one question.
const REQUIRED: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "PROTOCOL.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
];

/// Returns the documents that are not among `paths`.
pub(crate) fn missing(paths: &BTreeSet<String>) -> Vec<Finding> {
    let absent = REQUIRED.iter().filter(|name| !paths.contains(**name));
    absent
        .map(|name| Finding::of_file(name, "this document is required"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_named() {
        let mut paths: BTreeSet<_> = REQUIRED.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(missing(&paths), []);
        paths.remove("SECURITY.md");
        assert_eq!(
            missing(&paths),
            [Finding::of_file("SECURITY.md", "this document is required")]
        );
    }
}
