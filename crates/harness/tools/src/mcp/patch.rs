//! The patch format of agents: `*** Begin Patch`, files that are added, updated, moved or deleted,
//! `*** End Patch`.
//! Invariant: nothing here touches a file. Errors name the line of the patch.

mod apply;
#[cfg(test)]
mod tests;

pub(super) use self::apply::apply;

use super::tool::shorten_line;

/// Operations of a patch, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::mcp) struct Patch {
    pub(in crate::mcp) operations: Vec<PatchOperation>,
}

/// An operation on one file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::mcp) enum PatchOperation {
    /// Creates a file.
    Add {
        /// Path as written.
        path: String,
        /// Complete content.
        content: String,
    },
    /// Removes a file.
    Delete {
        /// Path as written.
        path: String,
    },
    /// Changes a file, moves it, or both.
    Update {
        /// Path as written.
        path: String,
        /// New path.
        move_to: Option<String>,
        /// Changes, in file order.
        hunks: Vec<PatchHunk>,
    },
}

/// One change in a file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(in crate::mcp) struct PatchHunk {
    /// Line of the patch where it starts, counted from 1.
    pub(in crate::mcp) line: usize,
    /// Lines of the file above it, in order, not necessarily adjacent.
    pub(in crate::mcp) headers: Vec<String>,
    /// Kept, removed and inserted lines.
    pub(in crate::mcp) lines: Vec<HunkLine>,
    /// Whether it is at the end of the file.
    pub(in crate::mcp) at_end: bool,
    /// Number of trailing empty lines without a prefix.
    pub(in crate::mcp) unmarked_end: usize,
}

/// A line of a hunk without its prefix.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::mcp) enum HunkLine {
    /// Exists and stays.
    Keep(String),
    /// Exists and is removed.
    Remove(String),
    /// Is inserted.
    Insert(String),
}

/// Caller: the text is not a valid patch.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("patch line {line}: {what}")]
pub(in crate::mcp) struct PatchParseError {
    line: usize,
    what: String,
}

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const ADD: &str = "*** Add File: ";
const DELETE: &str = "*** Delete File: ";
const UPDATE: &str = "*** Update File: ";
const MOVE: &str = "*** Move to: ";
const END_OF_FILE: &str = "*** End of File";
/// Maximum number of characters of a line in an error.
const MAX_QUOTED_CHARS: usize = 80;

impl Patch {
    /// Parses a patch. Ignores surrounding blank lines, code fences and heredocs.
    pub(in crate::mcp) fn parse(text: &str) -> Result<Self, PatchParseError> {
        let mut lines = PatchLines::new(text);
        let mut wrappers = PatchWrappers::default();
        while lines.peek().is_some_and(|line| wrappers.open(line)) {
            lines.next();
        }
        if lines.next().map(str::trim_end) != Some(BEGIN) {
            return Err(lines.error(format!("expected `{BEGIN}`")));
        }
        let mut operations = Vec::new();
        loop {
            let Some(line) = lines.next().map(str::trim_end) else {
                return Err(lines.error(format!("the patch ends without `{END}`")));
            };
            if line == END {
                break;
            }
            if line.is_empty() {
                continue;
            }
            operations.push(parse_operation(line, &mut lines)?);
        }
        while let Some(line) = lines.next() {
            if !wrappers.close(line) {
                return Err(lines.error(format!("nothing may follow `{END}`")));
            }
        }
        if operations.is_empty() {
            return Err(lines.error("the patch changes no file".to_owned()));
        }
        Ok(Self { operations })
    }
}

fn parse_operation(
    head: &str,
    lines: &mut PatchLines<'_>,
) -> Result<PatchOperation, PatchParseError> {
    if let Some(path) = head.strip_prefix(ADD) {
        let path = parse_path(path, lines)?;
        return parse_add(path, lines);
    }
    if let Some(path) = head.strip_prefix(DELETE) {
        let path = parse_path(path, lines)?;
        return Ok(PatchOperation::Delete { path });
    }
    if let Some(path) = head.strip_prefix(UPDATE) {
        let path = parse_path(path, lines)?;
        return parse_update(path, lines);
    }
    let expected = format!(
        "expected `{}`, `{}`, `{}` or `{END}`, found `{}`",
        ADD.trim_end(),
        UPDATE.trim_end(),
        DELETE.trim_end(),
        shorten_line(head, MAX_QUOTED_CHARS)
    );
    Err(lines.error(expected))
}

fn parse_path(path: &str, lines: &PatchLines<'_>) -> Result<String, PatchParseError> {
    match path.trim() {
        "" => Err(lines.error("the path is missing".to_owned())),
        path => Ok(path.to_owned()),
    }
}

fn parse_add(path: String, lines: &mut PatchLines<'_>) -> Result<PatchOperation, PatchParseError> {
    let mut content = String::new();
    while let Some(line) = lines.peek() {
        if is_marker(line) {
            break;
        }
        lines.next();
        let Some(line) = line.strip_prefix('+') else {
            return Err(lines.error(format!(
                "every line of the new file `{path}` begins with `+`"
            )));
        };
        content.push_str(line);
        content.push('\n');
    }
    Ok(PatchOperation::Add { path, content })
}

fn parse_update(
    path: String,
    lines: &mut PatchLines<'_>,
) -> Result<PatchOperation, PatchParseError> {
    let mut move_to = None;
    if let Some(to) = lines.peek().and_then(|line| line.strip_prefix(MOVE)) {
        lines.next();
        move_to = Some(parse_path(to, lines)?);
    }
    let mut hunks: Vec<PatchHunk> = Vec::new();
    while let Some(line) = lines.peek() {
        let ends_file = line.trim_end() == END_OF_FILE;
        if is_marker(line) && !ends_file {
            break;
        }
        lines.next();
        if let Some(header) = hunk_header(line) {
            let continues = hunks.last().is_some_and(|hunk| hunk.lines.is_empty());
            if !continues {
                hunks.push(PatchHunk::at(lines.number));
            }
            if let (Some(hunk), false) = (hunks.last_mut(), header.is_empty()) {
                hunk.headers.push(header.to_owned());
            }
            continue;
        }
        if hunks.last().is_none_or(|hunk| hunk.at_end) {
            hunks.push(PatchHunk::at(lines.number));
        }
        let number = hunks.len();
        let Some(hunk) = hunks.last_mut() else {
            continue;
        };
        if ends_file {
            hunk.at_end = true;
            continue;
        }
        hunk.unmarked_end = match line.is_empty() {
            true => hunk.unmarked_end + 1,
            false => 0,
        };
        hunk.lines.push(match line.split_at_checked(1) {
            // Models omit the blank prefix of an empty line.
            None => HunkLine::Keep(String::new()),
            Some((" ", rest)) => HunkLine::Keep(rest.to_owned()),
            Some(("-", rest)) => HunkLine::Remove(rest.to_owned()),
            Some(("+", rest)) => HunkLine::Insert(rest.to_owned()),
            Some(_) => {
                return Err(lines.error(format!(
                    "hunk {number} of `{path}`: a line begins with ` `, `-`, `+` or `@@`, found `{}`",
                    shorten_line(line, MAX_QUOTED_CHARS)
                )));
            }
        });
    }
    hunks.iter_mut().for_each(PatchHunk::trim_unmarked_end);
    if let Some(at) = hunks.iter().position(|hunk| hunk.changes_nothing()) {
        return Err(PatchParseError {
            line: hunks[at].line,
            what: format!("hunk {} of `{path}` changes nothing", at + 1),
        });
    }
    if hunks.is_empty() && move_to.is_none() {
        return Err(lines.error(format!("the update of `{path}` has no hunk")));
    }
    Ok(PatchOperation::Update {
        path,
        move_to,
        hunks,
    })
}

impl PatchHunk {
    fn at(line: usize) -> Self {
        Self {
            line,
            ..Self::default()
        }
    }

    /// Drops trailing empty lines without a prefix: they separate the hunk from the next section.
    fn trim_unmarked_end(&mut self) {
        let unmarked = std::mem::take(&mut self.unmarked_end);
        if !self.at_end {
            self.lines.truncate(self.lines.len() - unmarked);
        }
    }

    /// Returns the lines without trailing empty context lines: models sometimes add one too many.
    pub(in crate::mcp) fn without_blank_end(&self) -> &[HunkLine] {
        let is_blank = |line: &HunkLine| *line == HunkLine::Keep(String::new());
        let end = self.lines.iter().rposition(|line| !is_blank(line));
        &self.lines[..end.map_or(0, |end| end + 1)]
    }

    fn changes_nothing(&self) -> bool {
        self.lines
            .iter()
            .all(|line| matches!(line, HunkLine::Keep(_)))
    }
}

/// Returns whether a line is a section marker.
fn is_marker(line: &str) -> bool {
    line.starts_with("*** ")
}

/// Returns the text after `@@`, if the line is a hunk header.
fn hunk_header(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("@@")?;
    let text = rest.strip_prefix(' ').unwrap_or(rest).trim_end();
    Some(if is_range(text) { "" } else { text })
}

/// Returns whether a header is a unified-diff range such as `-1,3 +1,3 @@`. Models get its numbers
/// wrong, so it is ignored.
fn is_range(text: &str) -> bool {
    let mut parts = text.split(' ');
    let numbers = |part: Option<&str>, mark| {
        let numbers = part.and_then(|part| part.strip_prefix(mark));
        numbers.is_some_and(|numbers| {
            let mut numbers = numbers.splitn(2, ',');
            numbers.all(|number| {
                !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
            })
        })
    };
    numbers(parts.next(), '-')
        && numbers(parts.next(), '+')
        && parts.next().is_none_or(|end| end == "@@")
}

/// The lines of a patch with the current position.
struct PatchLines<'a> {
    rest: std::iter::Peekable<std::str::Lines<'a>>,
    number: usize,
}

impl<'a> PatchLines<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text.lines().peekable(),
            number: 0,
        }
    }

    fn next(&mut self) -> Option<&'a str> {
        let line = self.rest.next()?;
        self.number += 1;
        Some(line)
    }

    fn peek(&mut self) -> Option<&'a str> {
        self.rest.peek().copied()
    }

    fn error(&self, what: String) -> PatchParseError {
        PatchParseError {
            line: self.number.max(1),
            what,
        }
    }
}

/// Open code fences and heredocs around a patch, innermost last.
#[derive(Debug, Default)]
pub(super) struct PatchWrappers<'a> {
    ends: Vec<&'a str>,
}

/// Maximum nesting: a fence around a heredoc.
const MAX_WRAPPERS: usize = 2;
const FENCE: &str = "```";

impl<'a> PatchWrappers<'a> {
    /// Handles a line before the patch. Returns whether it is blank or opens a wrapper.
    pub(super) fn open(&mut self, line: &'a str) -> bool {
        let line = line.trim();
        if line.is_empty() {
            return true;
        }
        let end = if line.starts_with(FENCE) {
            Some(FENCE)
        } else {
            heredoc_delimiter(line)
        };
        match end {
            Some(end) if self.ends.len() < MAX_WRAPPERS => {
                self.ends.push(end);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Handles a line after the patch. Returns whether it is blank or closes the innermost wrapper.
    pub(super) fn close(&mut self, line: &str) -> bool {
        let line = line.trim();
        if line.is_empty() {
            return true;
        }
        let closes = self.ends.last() == Some(&line);
        if closes {
            self.ends.pop();
        }
        closes
    }
}

/// Returns the delimiter of a heredoc such as `<<'EOF'`, with or without a command.
fn heredoc_delimiter(line: &str) -> Option<&str> {
    let (command, word) = line.split_once("<<")?;
    if !matches!(command.trim(), "" | "apply_patch" | "applypatch") {
        return None;
    }
    let word = word.trim_start_matches('-').trim();
    let quoted = ['\'', '"'].into_iter().find_map(|quote| {
        let inner = word.strip_prefix(quote)?;
        inner.strip_suffix(quote)
    });
    let word = quoted.unwrap_or(word);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (!word.is_empty() && word.bytes().all(is_word)).then_some(word)
}
