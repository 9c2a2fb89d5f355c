//! Names of types: nouns that say what the thing is, each used for one thing.
//!
//! The rules and the glossary are in ARCHITECTURE.md. Test code is exempt.

use std::collections::{BTreeMap, BTreeSet};

use super::{finding::Finding, source::Source};

/// How many modules may define a type of the same name.
const MAX_MODULES: usize = 2;

/// Small local types that several modules may have under the same name.
const SHARED_NAMES: &[&str] = &[
    "Args", "Builder", "Config", "Error", "Event", "Iter", "Kind", "Options", "Settings", "State",
];

/// Participles without a regular ending, adverbs and prepositions.
const IRREGULAR: &[&str] = &[
    "Again", "Ahead", "Apart", "Around", "Aside", "Begun", "Behind", "Beyond", "Far", "Found",
    "Given", "Gone", "Heard", "Held", "Here", "Inside", "Kept", "Known", "Later", "Left", "Lost",
    "Made", "Near", "Once", "Outside", "Over", "Past", "Put", "Read", "Said", "Sent", "Shown",
    "Soon", "Spent", "Taken", "There", "Told", "Towards", "Under", "What", "Where", "Who", "Whose",
];

/// Endings of participles.
const ENDINGS: &[&str] = &["ed", "en", "wn", "ught"];

/// Nouns with such an ending.
const NOUNS: &[&str] = &[
    "Children", "Feed", "Need", "Screen", "Seed", "Speed", "Thread", "Token", "Unknown",
];

/// Checks the types of all product code.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut modules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| is_product(&source.path)) {
        for (line, name) in types(source) {
            if is_participle(name) {
                let message = format!("type `{name}`: use a noun that says what it is");
                findings.push(Finding::at(&source.path, line, message));
            }
            modules.entry(name).or_default().insert(&source.path);
            places.entry(name).or_default().push((&source.path, line));
        }
    }
    for (name, found) in modules {
        if found.len() <= MAX_MODULES || SHARED_NAMES.contains(&name) {
            continue;
        }
        for (path, line) in &places[name] {
            let message = format!("type `{name}` is one of {}: say which", found.len());
            findings.push(Finding::at(path, *line, message));
        }
    }
    findings
}

/// Tells whether a file is product code rather than a test, a tool or a measurement.
pub(crate) fn is_product(path: &str) -> bool {
    path.starts_with("crates/")
        && !path.starts_with("crates/testing/")
        && !path.contains("/tests/")
        && !path.contains("/examples/")
        && !path.ends_with("/tests.rs")
}

/// Returns the types that a file defines outside of its test module.
pub(crate) fn types(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    source
        .lines()
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
        .filter_map(|(number, line)| Some((number, type_name(line)?)))
}

fn type_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().peekable();
    if words.peek()?.starts_with("pub") {
        words.next();
    }
    if !matches!(words.next()?, "struct" | "enum" | "trait" | "union") {
        return None;
    }
    let word = words.next()?;
    let end = word
        .find(|c: char| !c.is_alphanumeric())
        .unwrap_or(word.len());
    Some(&word[..end])
}

fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().filter(|c| c.is_uppercase()).count() == 1;
    let is_regular = name.len() > 4 && ENDINGS.iter().any(|ending| name.ends_with(ending));
    IRREGULAR.contains(&name) || is_one_word && is_regular && !NOUNS.contains(&name)
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
    fn participles_and_adverbs_are_found() {
        for name in ["Kept", "Behind", "Arranged", "Taken", "Judged", "Brought"] {
            let text = format!("pub(crate) struct {name}<T>(T);");
            assert_eq!(faults(&[("crates/a/b/src/c.rs", &text)]).len(), 1, "{name}");
        }
        for name in ["Token", "Session", "OutputKept", "ManagedNetwork", "Seed"] {
            let text = format!("enum {name} {{}}");
            assert!(
                faults(&[("crates/a/b/src/c.rs", &text)]).is_empty(),
                "{name}"
            );
        }
    }

    #[test]
    fn a_name_may_be_used_in_two_modules_only() {
        let file = |module: &'static str| (module, "struct Log;");
        let two = [file("crates/a/x/src/a.rs"), file("crates/a/x/src/b.rs")];
        assert!(faults(&two).is_empty());
        let three = [two[0], two[1], file("crates/a/y/src/c.rs")];
        assert_eq!(faults(&three).len(), 3);
    }

    #[test]
    fn local_names_and_tests_are_exempt() {
        let names = [
            "crates/a/x/src/a.rs",
            "crates/a/x/src/b.rs",
            "crates/a/x/src/c.rs",
        ];
        assert!(faults(&names.map(|path| (path, "enum State {}"))).is_empty());
        let tests = "struct A;\n#[cfg(test)]\nmod tests {\n    struct Held;\n}\n";
        assert!(faults(&[("crates/a/x/src/a.rs", tests)]).is_empty());
        assert!(faults(&[("crates/a/x/src/a/tests.rs", "struct Held;")]).is_empty());
        assert!(faults(&[("crates/testing/x/src/a.rs", "struct Held;")]).is_empty());
    }
}
