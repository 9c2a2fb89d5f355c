//! What must not stand in code: leftovers, sleeping tests, and `unsafe` in the wrong place.

use super::{
    finding::Finding,
    source::{Source, has_word},
};

/// Where `unsafe` may be: the crate that clones, execs and talks to the kernel directly, the file
/// that hands descriptors to tokio, the sandbox, and the program that tries what a sandbox must
/// refuse.
const UNSAFE_IN: &[&str] = &[
    "crates/executor/spawn/",
    "crates/executor/process/src/stdio.rs",
    "crates/executor/sandbox/",
    "crates/testing/hostile/",
];

/// Macros that say the work is not done.
const LEFTOVERS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Checks one file.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let may_be_unsafe = UNSAFE_IN
        .iter()
        .any(|prefix| source.path.starts_with(prefix));
    let mut findings = Vec::new();
    for (number, line) in source.lines() {
        let mut fault = |message: String| findings.push(Finding::at(&source.path, number, message));
        for leftover in LEFTOVERS {
            if has_word(line, leftover) {
                fault(format!("`{leftover}` is left over"));
            }
        }
        if is_ignored(line) {
            fault("an ignored test proves nothing: mend it or remove it".to_owned());
        }
        if !may_be_unsafe && has_word(line, "unsafe") {
            fault(format!("`unsafe` belongs into {}", UNSAFE_IN.join(" or ")));
        }
    }
    findings
}

fn is_ignored(line: &str) -> bool {
    line.contains("#[") && has_word(line, "ignore") && !line.contains("rustfmt")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn leftovers_are_found_in_code_only() {
        let text = "// todo!()\nlet a = \"dbg!\";\ntodo!();\nunimplemented!(\"x\");\ndbg!(a);\n";
        let found = lines("crates/x/src/a.rs", text);
        assert_eq!(
            found,
            [3, 4, 5].map(|line| {
                let name = ["todo!", "unimplemented!", "dbg!"][line - 3];
                format!("crates/x/src/a.rs:{line}: `{name}` is left over")
            })
        );
    }

    #[test]
    fn ignored_tests_are_found() {
        for text in [
            "#[ignore]",
            "#[ignore = \"slow\"]",
            "#[cfg_attr(x, ignore)]",
        ] {
            assert_eq!(lines("a.rs", text).len(), 1, "{text}");
        }
        assert!(lines("a.rs", "fn ignore() {}").is_empty());
    }

    #[test]
    fn unsafe_stays_in_its_crate() {
        assert!(lines("crates/executor/spawn/src/a.rs", "unsafe { x() }").is_empty());
        assert_eq!(
            lines("crates/base/core/src/a.rs", "unsafe { x() }").len(),
            1
        );
        assert!(lines("crates/base/core/src/a.rs", "#![deny(unsafe_code)]").is_empty());
    }
}
