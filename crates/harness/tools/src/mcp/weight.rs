//! What an answer weighs on its way, and how it is made to fit.
//!
//! Clients bound a message; the official one for Python takes no event of more than 1 MiB over HTTP. What
//! counts is the length in JSON, where a control character takes six bytes.

use std::borrow::Cow;

/// What an answer may weigh, all in all. The rest of a message is its envelope.
pub(super) const MAX_ANSWER_BYTES: usize = 960 << 10;

/// Most that the line weighs that stands for what was left out.
const MARKER_BYTES: usize = 128;

/// Returns text that weighs no more than this: its beginning and its end, if need be.
pub(super) fn fitting(text: &str, most: usize) -> Cow<'_, str> {
    let total: usize = text.chars().map(weight).sum();
    if total <= most {
        return Cow::Borrowed(text);
    }
    let side = most.saturating_sub(MARKER_BYTES) / 2;
    let head = prefix(text.chars(), side);
    let tail = prefix(text.chars().rev(), side);
    let (first, last) = (&text[..head], &text[text.len() - tail..]);
    let omitted = text.len() - head - tail;
    let gap = if first.is_empty() || first.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let marker = format!("[... {omitted} bytes left out: the answer would be too large ...]\n");
    Cow::Owned([first, gap, &marker, last].concat())
}

/// Returns how many bytes the first characters have that weigh no more than this.
fn prefix(characters: impl Iterator<Item = char>, most: usize) -> usize {
    let mut weighs = 0;
    let fits = characters.take_while(|character| {
        weighs += weight(*character);
        weighs <= most
    });
    fits.map(char::len_utf8).sum()
}

/// What a character takes in a JSON string.
fn weight(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => character.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn weighed(text: &str) -> usize {
        serde_json::to_string(text).unwrap().len() - 2
    }

    #[test]
    fn both_ends_stay_and_what_is_missing_is_counted() {
        let text = format!("first\n{}last", "\u{1}".repeat(10_000));
        let cut = fitting(&text, 1000);
        assert!(
            cut.starts_with("first\n\u{1}") && cut.ends_with("\u{1}last"),
            "{cut}"
        );
        assert!(cut.contains(" bytes left out"), "{cut}");
        assert!(weighed(&cut) <= 1000);
    }

    proptest! {
        #[test]
        fn every_text_is_weighed_as_it_is_written(text: String, most in 200..2000_usize) {
            let total: usize = text.chars().map(weight).sum();
            prop_assert_eq!(total, weighed(&text));
            let text = text.repeat(100);
            let cut = fitting(&text, most);
            prop_assert!(weighed(&cut) <= most);
        }
    }
}
