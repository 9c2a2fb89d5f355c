//! How modules are laid out: `foo.rs` is the map of `foo/`, is documented, and has a name that
//! says what is inside.

use std::collections::BTreeSet;

use super::{
    finding::Finding,
    source::{Source, has_word},
};

/// Names that say nothing.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "helpers"];

/// Checks every file.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let folders: BTreeSet<&str> = sources
        .iter()
        .filter_map(|source| source.path.rsplit_once('/'))
        .map(|(to, _)| to)
        .collect();
    sources
        .iter()
        .flat_map(|source| check_one(source, &folders))
        .collect()
}

fn check_one(source: &Source, folders: &BTreeSet<&str>) -> Vec<Finding> {
    let path = source.path.as_str();
    let mut findings = Vec::new();
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let own_folder = path.strip_suffix(".rs").unwrap_or(path);
    if stem == "mod" {
        let message = format!("`mod.rs` is not used: name the file `{folder}.rs`");
        findings.push(Finding::of_file(path, message));
    }
    if EMPTY_NAMES.contains(&stem) {
        let message = format!("`{stem}` says nothing: name the module by its job");
        findings.push(Finding::of_file(path, message));
    }
    let is_top_level = folder.ends_with("/src") || folder.ends_with("/src/bin");
    let is_map = folders.iter().any(|other| is_inside(other, own_folder));
    if (is_top_level || is_map) && !source.documented {
        let message = "lacks a `//!` that says what it does, its invariant and what is not here";
        findings.push(Finding::of_file(path, message));
    }
    for (number, line) in source.lines() {
        if line.contains("#[") && has_word(line, "path") && line.contains('=') {
            findings.push(Finding::at(path, number, "`#[path]` is not used"));
        }
        for name in EMPTY_NAMES {
            // Modules with a file of their own are reported above.
            if has_word(line, &format!("mod {name}")) && line.contains('{') {
                let message = format!("`{name}` says nothing: name the module by its job");
                findings.push(Finding::at(path, number, message));
            }
        }
    }
    findings
}

/// Tells whether `folder` is `parent` or below it.
fn is_inside(folder: &str, parent: &str) -> bool {
    folder
        .strip_prefix(parent)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| Source::new(path, text))
            .collect();
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn maps_and_top_level_modules_need_a_module_doc() {
        let found = faults(&[
            ("crates/a/src/lib.rs", "//! Doc.\nmod b;"),
            ("crates/a/src/b.rs", "mod c;"),
            ("crates/a/src/b/c.rs", "mod d;"),
            ("crates/a/src/b/c/d.rs", "fn f() {}"),
        ]);
        let files: Vec<_> = found
            .iter()
            .filter_map(|line| line.split(':').next())
            .collect();
        assert_eq!(files, ["crates/a/src/b.rs", "crates/a/src/b/c.rs"]);
    }

    #[test]
    fn mod_rs_and_empty_names_are_refused() {
        assert_eq!(faults(&[("crates/a/src/b/mod.rs", "")]).len(), 1);
        for name in ["utils", "common", "helpers"] {
            assert_eq!(
                faults(&[(&format!("crates/a/src/b/{name}.rs"), "")]).len(),
                1
            );
            assert_eq!(
                faults(&[("crates/a/src/b/c.rs", &format!("mod {name} {{}}"))]).len(),
                1
            );
        }
        assert!(faults(&[("crates/a/src/b/c.rs", "mod commonplace {}")]).is_empty());
    }

    #[test]
    fn path_attributes_are_refused() {
        assert_eq!(
            faults(&[("crates/a/src/b/c.rs", "#[path = \"x.rs\"]\nmod x;")]).len(),
            1
        );
        assert!(faults(&[("crates/a/src/b/c.rs", "#[expect(x)]\nlet path = 1;")]).is_empty());
    }
}
