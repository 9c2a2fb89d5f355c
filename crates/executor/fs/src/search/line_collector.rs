//! Collects the matching lines of one file and their context.

use std::{collections::VecDeque, io};

use exec_wire::limits;
use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkContext, SinkMatch};

/// A matching line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct MatchedLine {
    pub(super) number: u64,
    pub(super) column: u64,
    pub(super) text: String,
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
}

impl MatchedLine {
    /// Returns its size in the answer.
    pub(super) fn bytes(&self) -> usize {
        let context = self.before.iter().chain(&self.after);
        cost(&self.text) + context.map(|line| cost(line)).sum::<usize>()
    }
}

/// Returns the size of a line in the answer. An empty line counts as well, because a peer reads a
/// limited number of values ([`limits::MAX_JSON_VALUES`]).
fn cost(line: &str) -> usize {
    line.len() + LINE_BYTES
}

/// Overhead of a line in addition to its text. With it, the limit of bytes also keeps the number of
/// lines within what a peer reads.
const LINE_BYTES: usize = 32;
const _: () = {
    let values_of_a_match = 8;
    let matches = values_of_a_match * limits::MAX_SEARCH_MATCHES;
    let lines = limits::MAX_SEARCH_BYTES / LINE_BYTES;
    assert!(
        matches + lines < limits::MAX_JSON_VALUES,
        "a peer reads any answer"
    );
};

/// Collects the matching lines of one file, up to [`limits::MAX_SEARCH_BYTES`].
#[derive(Debug)]
pub(super) struct LineCollector<'a> {
    matcher: &'a RegexMatcher,
    context: usize,
    found: Vec<MatchedLine>,
    /// The most recent lines with their numbers, as many as the context before a match.
    recent: VecDeque<(u64, String)>,
    bytes: usize,
}

impl<'a> LineCollector<'a> {
    /// Collects lines with `context` lines around each.
    pub(super) fn new(matcher: &'a RegexMatcher, context: usize) -> Self {
        Self {
            matcher,
            context,
            found: Vec::new(),
            recent: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Returns the collected lines.
    pub(super) fn into_matches(self) -> Vec<MatchedLine> {
        self.found
    }

    /// Adds a line to the context of earlier matches, and keeps it as context for later ones.
    fn pass(&mut self, number: u64, text: &str) {
        let reach = u64::try_from(self.context).unwrap_or(u64::MAX);
        let open = self.found.iter_mut().rev();
        for line in open.take_while(|line| number - line.number <= reach) {
            line.after.push(text.to_owned());
            self.bytes += cost(text);
        }
        if self.context > 0 {
            if self.recent.len() == self.context {
                self.recent.pop_front();
            }
            self.recent.push_back((number, text.to_owned()));
        }
    }

    fn has_room(&self) -> bool {
        self.bytes <= limits::MAX_SEARCH_BYTES
    }
}

impl Sink for LineCollector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, matched: &SinkMatch<'_>) -> Result<bool, io::Error> {
        let number = matched.line_number().unwrap_or_default();
        let bytes = without_end(matched.bytes());
        let first = self.matcher.find(bytes).map_err(io::Error::other)?;
        let column = first.map_or(0, |first| first.start());
        let text = displayed(bytes);
        let reach = u64::try_from(self.context).unwrap_or(u64::MAX);
        let near = self.recent.iter().filter(|line| number - line.0 <= reach);
        let before: Vec<String> = near.map(|line| line.1.clone()).collect();
        self.pass(number, &text);
        self.bytes += cost(&text) + before.iter().map(|line| cost(line)).sum::<usize>();
        self.found.push(MatchedLine {
            number,
            column: u64::try_from(column).unwrap_or(u64::MAX).saturating_add(1),
            text,
            before,
            after: Vec::new(),
        });
        Ok(self.has_room())
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        let number = context.line_number().unwrap_or_default();
        self.pass(number, &displayed(without_end(context.bytes())));
        Ok(self.has_room())
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns the displayed part of a line.
fn displayed(line: &[u8]) -> String {
    let mut most = line.len().min(limits::MAX_SEARCH_LINE_BYTES);
    // Does not cut a UTF-8 character in two.
    for _ in 0..MAX_CONTINUATION_BYTES {
        match line.get(most) {
            Some(0x80..=0xBF) => most -= 1,
            Some(_) | None => break,
        }
    }
    let mut text = String::from_utf8_lossy(line.get(..most).unwrap_or_default()).into_owned();
    // The replacement character is longer than the invalid byte it replaces.
    text.truncate(text.floor_char_boundary(limits::MAX_SEARCH_LINE_BYTES));
    text
}

/// Most continuation bytes of a UTF-8 character.
const MAX_CONTINUATION_BYTES: usize = 3;
