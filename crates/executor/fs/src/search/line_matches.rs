//! The matching lines of one file, with those around them.

use std::{collections::VecDeque, io};

use exec_wire::limits;
use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkContext, SinkMatch};

/// A matching line of some file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct MatchedLine {
    pub(super) number: u64,
    pub(super) column: u64,
    pub(super) text: String,
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
}

impl MatchedLine {
    /// Returns how much of an answer it takes.
    pub(super) fn bytes(&self) -> usize {
        let context = self.before.iter().chain(&self.after);
        cost(&self.text) + context.map(|line| cost(line)).sum::<usize>()
    }
}

/// What a line takes in an answer: also one that is empty takes some, and a peer reads only so many
/// values ([`limits::MAX_JSON_VALUES`]).
fn cost(line: &str) -> usize {
    line.len() + LINE_BYTES
}

/// What a line takes beside its text. With that, the bound of the text holds the number of lines
/// within what a peer reads.
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

/// Gathers the matching lines of one file, up to [`limits::MAX_SEARCH_BYTES`].
#[derive(Debug)]
pub(super) struct LineCollector<'a> {
    matcher: &'a RegexMatcher,
    context: usize,
    found: Vec<MatchedLine>,
    /// The lines that were seen last, by number, as many as may stand before a match.
    recent: VecDeque<(u64, String)>,
    bytes: usize,
}

impl<'a> LineCollector<'a> {
    /// Gathers lines with so many lines around each.
    pub(super) fn new(matcher: &'a RegexMatcher, context: usize) -> Self {
        Self {
            matcher,
            context,
            found: Vec::new(),
            recent: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Returns what was gathered.
    pub(super) fn into_matches(self) -> Vec<MatchedLine> {
        self.found
    }

    /// Adds a line to what stands after the matches before it, and keeps it for those to come.
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

/// Returns what is shown of a line.
fn displayed(line: &[u8]) -> String {
    let mut most = line.len().min(limits::MAX_SEARCH_LINE_BYTES);
    // No character is cut in two, as far as there are characters.
    for _ in 0..MAX_CONTINUATION_BYTES {
        match line.get(most) {
            Some(0x80..=0xBF) => most -= 1,
            Some(_) | None => break,
        }
    }
    let mut text = String::from_utf8_lossy(line.get(..most).unwrap_or_default()).into_owned();
    // What replaces a broken byte is longer than it.
    text.truncate(text.floor_char_boundary(limits::MAX_SEARCH_LINE_BYTES));
    text
}

/// Bytes that may follow the first of a character.
const MAX_CONTINUATION_BYTES: usize = 3;
