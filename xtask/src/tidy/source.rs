//! A Rust file without its comments and literals, so that rules can look for words.
//!
//! Invariant: lines keep their numbers. Not here: parsing; words and punctuation are enough.

/// One Rust file.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    /// The code: comments and the insides of literals are blank.
    pub(crate) code: String,
    /// Whether the file begins with `//!`.
    pub(crate) documented: bool,
}

impl Source {
    /// Takes a file apart.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let documented = text.trim_start().starts_with("//!");
        Self {
            path: path.to_owned(),
            code: blank(text),
            documented,
        }
    }

    /// Returns the code line by line, counted from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }
}

/// Tells whether `line` holds `word` as a whole: no letter, digit or underscore next to it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let ends_in_name = word.chars().next_back().is_some_and(is_name);
        !(before.is_some_and(is_name) || ends_in_name && after.is_some_and(is_name))
    })
}

/// Replaces comments and the insides of literals by blanks.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut after_name = false;
    while let Some(next) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else {
            // `r` or `b` at the end of a name begins no literal.
            let prefix = if after_name { 0 } else { literal_prefix(rest) };
            literal(rest, prefix)
        };
        if length == 0 {
            out.push(next);
            after_name = next.is_alphanumeric() || next == '_';
            rest = &rest[next.len_utf8()..];
        } else {
            out.extend(
                rest[..length]
                    .chars()
                    .map(|c| if c == '\n' { '\n' } else { ' ' }),
            );
            after_name = false;
            rest = &rest[length..];
        }
    }
    out
}

/// Returns the length of `b`, `c`, `r`, `br` or `cr` before a literal.
fn literal_prefix(text: &str) -> usize {
    let letters = text
        .bytes()
        .take_while(|byte| matches!(byte, b'b' | b'c' | b'r'))
        .count();
    let follows = text[letters..].starts_with(['"', '\'', '#']);
    if letters <= 2 && follows { letters } else { 0 }
}

/// Returns the length of the literal that begins here, or 0.
fn literal(text: &str, prefix: usize) -> usize {
    let body = &text[prefix..];
    let hashes = body.bytes().take_while(|byte| *byte == b'#').count();
    let raw = text[..prefix].ends_with('r');
    if raw && body[hashes..].starts_with('"') {
        let end = format!("\"{}", "#".repeat(hashes));
        let inside = &body[hashes + 1..];
        return prefix + hashes + 1 + inside.find(&end).map_or(inside.len(), |at| at + end.len());
    }
    match body.bytes().next() {
        Some(b'"') => prefix + quoted(body, '"'),
        Some(b'\'') if is_char(body) => prefix + quoted(body, '\''),
        _ => 0,
    }
}

/// Tells a character from a lifetime: one character, or an escape, and a quote behind it.
fn is_char(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    matches!(
        (chars.next(), chars.next()),
        (Some('\\'), _) | (Some(_), Some('\''))
    )
}

/// Returns the length of a quoted text, both quotes included.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a block comment; they nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            match rest.chars().next() {
                Some(c) => at += c.len_utf8(),
                None => return at,
            }
        }
        if depth == 0 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_and_lines_stay() {
        let cases = [
            ("a // todo\nb", "a        \nb"),
            ("a /* x /* y */\n */ b", "a             \n    b"),
            (r#"f("un\"safe") + 1"#, "f(          ) + 1"),
            ("r#\"a\"b\"# c", "         c"),
            ("b'x' '\\'' 'é'", "             "),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            (r#"br"\" x"#, "      x"),
            ("var\"s\"", "var   "),
        ];
        for (text, expected) in cases {
            assert_eq!(blank(text), expected, "{text:?}");
        }
    }

    #[test]
    fn an_unclosed_literal_ends_with_the_text() {
        for text in ["\"abc", "/* abc", "r#\"abc\"", "'\\"] {
            assert_eq!(blank(text).trim(), "", "{text:?}");
        }
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("x = unsafe {", "unsafe"));
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
        assert!(!has_word("is_unsafe", "unsafe"));
        assert!(has_word("dbg!(x)", "dbg!"));
        assert!(!has_word("mydbg!(x)", "dbg!"));
    }
}
