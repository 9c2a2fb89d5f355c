//! Comments, messages and documents in plain technical English, at most 100 columns wide.
//!
//! A list of phrases cannot judge a sentence. It finds the habits that made this project hard to
//! read: *who* and *what* clauses as subjects, personified parts, and "is no X" for "not a valid
//! X".

use super::{finding::Finding, source::has_word, tree::File, type_names::is_product};

/// Phrases that a comment, a message or a document does without.
const PHRASES: &[&str] = &[
    "whoever",
    "whom",
    "somebody",
    "nobody",
    "everybody",
    "told",
    "tells",
    "is none",
    "are none",
    "what comes",
    "lets go",
    "let go",
    "of its own",
    "in its turn",
    "by heart",
];

/// Widest line of a document outside of tables and code.
const MAX_COLUMNS: usize = 100;

/// Macros and attributes whose text people read.
const MESSAGES: &[&str] = &[
    "#[error(",
    "error!(",
    "warn!(",
    "info!(",
    "debug!(",
    "trace!(",
    "bail!(",
    "anyhow!(",
    "format!(",
    "println!(",
    "eprintln!(",
    "write!(",
    "writeln!(",
];

/// Checks the comments and messages of one Rust file.
pub(crate) fn check_source(file: &File) -> Vec<Finding> {
    if !is_product(&file.path) {
        return Vec::new();
    }
    let product = file
        .text
        .lines()
        .take_while(|line| line.trim() != "#[cfg(test)]");
    (1..)
        .zip(product)
        .filter_map(|(number, line)| {
            let phrase = phrase_in(comment_or_message(line)?)?;
            let message = format!("`{phrase}`: use a concrete subject and an active verb");
            Some(Finding::at(&file.path, number, message))
        })
        .collect()
}

/// Checks the phrases and the width of one document.
pub(crate) fn check_document(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(file.text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        let columns = line.chars().count();
        if columns > MAX_COLUMNS && !line.trim_start().starts_with('|') {
            let message = format!("{columns} columns: wrap at {MAX_COLUMNS}");
            findings.push(Finding::at(&file.path, number, message));
        }
        if let Some(phrase) = phrase_in(line) {
            let message = format!("`{phrase}`: use a concrete subject and an active verb");
            findings.push(Finding::at(&file.path, number, message));
        }
    }
    findings
}

/// Returns the part of a line of code that people read.
fn comment_or_message(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with("//") {
        return Some(line);
    }
    let start = MESSAGES.iter().find_map(|name| line.find(name))?;
    let text = &line[start..];
    let open = text.find('"')?;
    let close = text.rfind('"')?;
    text.get(open + 1..close)
}

fn phrase_in(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase();
    PHRASES
        .iter()
        .copied()
        .find(|phrase| has_word(&text, phrase))
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

    #[test]
    fn phrases_in_comments_and_messages_are_found() {
        let lines = |text| check_source(&file("crates/a/b/src/c.rs", text)).len();
        assert_eq!(lines("/// Whoever asks is answered.\n"), 1);
        assert_eq!(lines("#[error(\"`{0}` is none\")]\n"), 1);
        assert_eq!(lines("warn!(path, \"nobody reads it\");\n"), 1);
        assert_eq!(lines("let nobody = what_is(told);\n"), 0);
        assert_eq!(lines("/// Returns the next event.\n"), 0);
        assert_eq!(lines("#[cfg(test)]\n// nobody\n"), 0);
    }

    #[test]
    fn documents_are_narrow_outside_of_tables_and_code() {
        let wide = "x ".repeat(60);
        let lines = |text: &str| check_document(&file("README.md", text)).len();
        assert_eq!(lines(&wide), 1);
        assert_eq!(lines(&format!("| {wide} |")), 0);
        assert_eq!(lines(&format!("```sh\n{wide}\n```")), 0);
        assert_eq!(lines("The server tells nobody.\n"), 1);
    }
}
