//! Credentials are read through one list, by which they are kept from commands.

use super::{finding::Finding, tree::File};

/// Crates that see the environment of the server.
const READERS: &[&str] = &[
    "crates/app/cli/src/",
    "crates/app/server/src/",
    "crates/executor/local/src/",
];

/// Words that the names of credentials have.
const WORDS: &[&str] = &[
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "CREDENTIAL",
    "CREDENTIALS",
];

/// Checks one file: the name of a variable that may be a credential belongs into the list. Tests
/// may name what they like, and so may variables that hold a path.
pub(crate) fn check(file: &File) -> Vec<Finding> {
    let is_test = file.path.ends_with("tests.rs") || file.path.contains("/tests/");
    if is_test || !READERS.iter().any(|prefix| file.path.starts_with(prefix)) {
        return Vec::new();
    }
    let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(code.lines()) {
        // Every second part is inside of quotes; escaped quotes do not stand in names.
        for name in line.split('"').skip(1).step_by(2) {
            if is_credential(name) {
                let message = format!(
                    "`{name}` looks like a credential: read it as a `CredentialVariable`, whose list keeps it from commands"
                );
                findings.push(Finding::at(&file.path, number, message));
            }
        }
    }
    findings
}

fn is_credential(name: &str) -> bool {
    let is_variable = name.contains('_')
        && name.starts_with(|first: char| first.is_ascii_uppercase())
        && name
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    is_variable && !name.ends_with("_FILE") && name.split('_').any(|word| WORDS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&File {
            path: path.to_owned(),
            text: text.to_owned(),
        })
        .len()
    }

    #[test]
    fn names_of_credentials_are_found_where_the_environment_is_read() {
        let path = "crates/app/server/src/a.rs";
        assert_eq!(found(path, r#"lookup("MY_API_KEY"); x("NEW_TOKEN")"#), 2);
        assert_eq!(
            found("crates/base/env/src/a.rs", r#"lookup("MY_API_KEY")"#),
            0
        );
        assert_eq!(
            found("crates/app/server/src/a/tests.rs", r#"x("MY_API_KEY")"#),
            0
        );
        assert_eq!(found(path, "#[cfg(test)]\nmod tests { \"MY_API_KEY\" }"), 0);
    }

    #[test]
    fn other_texts_are_left_alone() {
        let text =
            r#"x("EXEC_SERVER_TOKEN_FILE", "a token in MY_TOKEN", "*TOKEN*", "MONKEY_BARS")"#;
        assert_eq!(found("crates/app/server/src/a.rs", text), 0);
    }
}
