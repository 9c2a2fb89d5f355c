//! Examples in documentation: `cargo test --doc` runs them, unless the manifest says
//! `doctest = false`. A crate says so while it has none, which saves rustdoc a pass over it.

use super::{finding::Finding, tree::File};

/// Finds examples that no test runs.
pub(crate) fn check(manifests: &[File], sources: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in manifests.iter().filter(|manifest| skips_examples(manifest)) {
        let Some(directory) = manifest.path.strip_suffix("Cargo.toml") else {
            continue;
        };
        let source_directory = format!("{directory}src/");
        for source in sources {
            if source.path.starts_with(&source_directory) {
                findings.extend(example_lines(source).map(|line| {
                    let message = format!(
                        "this example is not tested: remove `doctest = false` from `{}`",
                        manifest.path
                    );
                    Finding::at(&source.path, line, message)
                }));
            }
        }
    }
    findings
}

fn skips_examples(manifest: &File) -> bool {
    let table: Option<toml::Table> = manifest.text.parse().ok();
    let doctest = table.and_then(|table| table.get("lib")?.get("doctest")?.as_bool());
    doctest == Some(false)
}

/// Returns the first line of each Rust code block in a doc comment, counted from 1.
fn example_lines(source: &File) -> impl Iterator<Item = usize> {
    let mut is_open = false;
    let lines = source.text.lines().enumerate();
    lines.filter_map(move |(index, line)| {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or(line.strip_prefix("//!"));
        let language = comment.and_then(|text| text.trim_start().strip_prefix("```"))?;
        is_open = !is_open;
        (is_open && is_rust(language)).then_some(index + 1)
    })
}

/// Returns whether rustdoc compiles a code block of this language.
fn is_rust(language: &str) -> bool {
    const OTHERS: &[&str] = &["text", "toml", "json", "sh", "console", "ignore"];
    !language
        .split([',', ' '])
        .any(|word| OTHERS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    fn found(manifest: &str, source: &str) -> Vec<String> {
        let manifests = [file("crates/x/Cargo.toml", manifest)];
        let sources = [
            file("crates/x/src/a.rs", source),
            file("crates/y/src/a.rs", source),
        ];
        let findings = check(&manifests, &sources);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn examples_that_no_test_runs_are_found() {
        let source =
            "//! ```\n//! let a = 1;\n//! ```\n\n/// ```no_run\n/// b();\n/// ```\nfn b() {}\n";
        let message =
            "this example is not tested: remove `doctest = false` from `crates/x/Cargo.toml`";
        assert_eq!(
            found("[lib]\ndoctest = false\n", source),
            [1, 5].map(|line| format!("crates/x/src/a.rs:{line}: {message}"))
        );
    }

    #[test]
    fn tested_examples_and_other_languages_are_fine() {
        let example = "/// ```\n/// b();\n/// ```\nfn b() {}\n";
        assert!(found("[lib]\n", example).is_empty());
        let text = "/// ```text\n/// GET /\n/// ```\n// ```\nfn b() {}\n";
        assert!(found("[lib]\ndoctest = false\n", text).is_empty());
    }
}
