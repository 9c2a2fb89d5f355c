//! Text from variables, made fit for a header or a log.

use crate::terminal_detection::Lookup;

/// The longest word that is kept of a variable.
const WORD: usize = 40;

/// Returns the text of a variable that is set to something.
pub(crate) fn text(lookup: Lookup<'_>, name: &str) -> Option<String> {
    let value = lookup(name)?.into_string().ok()?;
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// Makes a word of any text: letters, digits and `-_.+`, and `_` for everything else, cut where it
/// gets long. Nothing is left of text that has none of them.
pub(crate) fn word(text: &str) -> String {
    let word: String = text
        .chars()
        .take(WORD)
        .map(|c| match c {
            c if c.is_ascii_alphanumeric() => c,
            '-' | '_' | '.' | '+' => c,
            _ => '_',
        })
        .collect();
    match word.contains(|c: char| c.is_ascii_alphanumeric()) {
        true => word,
        false => String::new(),
    }
}
