//! Applies hunks to the text of a file.
//!
//! Lines match exactly, then without trailing whitespace, then without surrounding whitespace, then
//! with ASCII quotes and dashes: models do not copy those faithfully. Kept lines keep the file's
//! spelling and line endings.

use std::borrow::Cow;

use super::{HunkLine, PatchHunk};

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Caller: the hunks do not match the file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("hunk {number} (patch line {line}): {what}")]
pub(in crate::mcp) struct PatchApplyError {
    number: usize,
    line: usize,
    what: String,
}

/// Applies all hunks, or none.
pub(in crate::mcp) fn apply(text: &str, hunks: &[PatchHunk]) -> Result<String, PatchApplyError> {
    // Models do not see a byte order mark, so it is not part of the first line.
    match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(text) => Ok(format!("{BYTE_ORDER_MARK}{}", apply_to_lines(text, hunks)?)),
        None => apply_to_lines(text, hunks),
    }
}

fn apply_to_lines(text: &str, hunks: &[PatchHunk]) -> Result<String, PatchApplyError> {
    let old: Vec<&str> = text.split_inclusive('\n').collect();
    let ending = match old.first() {
        Some(first) if first.ends_with("\r\n") => "\r\n",
        _ => "\n",
    };
    let (mut new, mut copied) = (PatchedText::new(text.len(), ending), 0);
    for (index, hunk) in hunks.iter().enumerate() {
        let fail = |what| PatchApplyError {
            number: index + 1,
            line: hunk.line,
            what,
        };
        let mut lines = &hunk.lines[..];
        let start = locate_hunk(&old, copied, hunk, lines).or_else(|missing| {
            lines = hunk.without_blank_end();
            locate_hunk(&old, copied, hunk, lines).map_err(|_| fail(missing))
        })?;
        new.keep_all(&old[copied..start]);
        let mut next = start;
        for line in lines {
            match line {
                HunkLine::Keep(_) => {
                    new.keep_all(&old[next..next + 1]);
                    next += 1;
                }
                HunkLine::Remove(_) => next += 1,
                HunkLine::Insert(line) => new.insert(line),
            }
        }
        copied = next;
    }
    new.keep_all(&old[copied..]);
    Ok(new.text)
}

/// Finds the first line of a hunk, not before `from`.
fn locate_hunk(
    old: &[&str],
    from: usize,
    hunk: &PatchHunk,
    lines: &[HunkLine],
) -> Result<usize, String> {
    let mut from = from;
    for header in &hunk.headers {
        let found = find_lines(old, from, &[header.as_str()]);
        let found = found.ok_or_else(|| missing(old, from, &[header.as_str()]))?;
        from = found + 1;
    }
    let expected: Vec<&str> = lines
        .iter()
        .filter_map(|line| match line {
            HunkLine::Keep(line) | HunkLine::Remove(line) => Some(line.as_str()),
            HunkLine::Insert(_) => None,
        })
        .collect();
    if expected.is_empty() {
        // After the header; without a header, at the end.
        let at_end = hunk.at_end || hunk.headers.is_empty();
        return Ok(if at_end { old.len() } else { from });
    }
    let last = old.len().checked_sub(expected.len());
    if let (true, Some(last)) = (hunk.at_end, last.filter(|last| *last >= from)) {
        return match find_lines(old, last, &expected) {
            Some(at) => Ok(at),
            None => Err(format!(
                "the end of the file is not\n{}",
                expected.join("\n")
            )),
        };
    }
    // The header may also be the first line of the hunk.
    let from = match (hunk.headers.last(), expected.first()) {
        (Some(header), Some(first)) if from > 0 && header.trim() == first.trim() => from - 1,
        _ => from,
    };
    find_lines(old, from, &expected).ok_or_else(|| missing(old, from, &expected))
}

fn missing(old: &[&str], from: usize, expected: &[&str]) -> String {
    let lines = expected.join("\n");
    match find_lines(old, 0, expected) {
        Some(at) if at < from => format!(
            "these lines are at line {}, before the hunk above it; hunks go from the beginning of a \
             file to its end:\n{lines}",
            at + 1
        ),
        _ => format!("these lines are not in the file:\n{lines}"),
    }
}

/// Finds consecutive lines. The strictest comparison wins.
fn find_lines(old: &[&str], from: usize, expected: &[&str]) -> Option<usize> {
    NORMALIZERS.iter().find_map(|normalize| {
        let expected: Vec<Cow<'_, str>> = expected.iter().map(|line| normalize(line)).collect();
        find_exact(
            old.get(from..)?.iter().map(|line| normalize(line)),
            &expected,
        )
        .map(|at| from + at)
    })
}

/// Finds consecutive lines in linear time (Knuth-Morris-Pratt): a file of equal lines would
/// otherwise take quadratic time.
fn find_exact<'a>(
    lines: impl Iterator<Item = Cow<'a, str>>,
    expected: &[Cow<'_, str>],
) -> Option<usize> {
    let failure_table = failure_table(expected);
    let mut matched = 0;
    for (at, line) in lines.enumerate() {
        while matched > 0 && expected[matched] != line {
            matched = failure_table[matched - 1];
        }
        if expected.get(matched)? == &line {
            matched += 1;
        }
        if matched == expected.len() {
            return Some(at + 1 - matched);
        }
    }
    None
}

/// Returns the Knuth-Morris-Pratt failure table.
fn failure_table(expected: &[Cow<'_, str>]) -> Vec<usize> {
    let mut failure_table = vec![0; expected.len()];
    let mut matched = 0;
    for at in 1..expected.len() {
        while matched > 0 && expected[matched] != expected[at] {
            matched = failure_table[matched - 1];
        }
        if expected[matched] == expected[at] {
            matched += 1;
        }
        failure_table[at] = matched;
    }
    failure_table
}

/// Normalises a line for comparison.
type LineNormalizer = for<'a> fn(&'a str) -> Cow<'a, str>;

/// Normalisers, from the strictest to the most lenient.
const NORMALIZERS: [LineNormalizer; 4] = [
    |line| Cow::Borrowed(strip_line_ending(line)),
    |line| Cow::Borrowed(line.trim_end()),
    |line| Cow::Borrowed(line.trim()),
    |line| Cow::Owned(line.trim().chars().map(ascii_equivalent).collect()),
];

fn strip_line_ending(line: &str) -> &str {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_suffix('\r').unwrap_or(line)
}

/// Returns the ASCII equivalent of a typographic character.
fn ascii_equivalent(character: char) -> char {
    match character {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}

/// The new text under construction.
struct PatchedText {
    text: String,
    ending: &'static str,
}

impl PatchedText {
    fn new(size: usize, ending: &'static str) -> Self {
        Self {
            text: String::with_capacity(size),
            ending,
        }
    }

    fn keep_all(&mut self, lines: &[&str]) {
        for line in lines {
            self.end_line();
            self.text.push_str(line);
        }
    }

    fn insert(&mut self, line: &str) {
        self.end_line();
        self.text.push_str(line);
        self.text.push_str(self.ending);
    }

    /// Terminates an unterminated last line before more lines follow.
    fn end_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push_str(self.ending);
        }
    }
}
