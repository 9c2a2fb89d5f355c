//! `fs/search`: finds matching lines.
//!
//! Several threads search files, and the results are sorted, so the answer does not depend on
//! timing. If there are too many matches, it contains the first ones.

mod file_supply;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::Path,
    thread,
};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{SearchMatch, SearchResult, SearchText},
    limits,
};
use grep_matcher::{LineTerminator, Matcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, MmapChoice, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch,
};
use rustix::{
    fs::{FileType, stat},
    io::Errno,
};

use self::file_supply::{FileBatch, FileSupply, MatchSize, SearchedFile};
use crate::{
    cancel_flag::{self, CancelFlag},
    descent::DescentRoot,
    filtered_tree::FilteredTree,
    find::{PathGlob, check_length, file_name},
    host_path::{host_error, invalid_request, native_path, uri},
    regular_file::RegularFile,
    resolve::LinkPolicy,
};

/// Finds matching lines in one file, or in the files of a tree.
///
/// Like ripgrep, it skips hidden and ignored files, follows no links, and stops reading a file at
/// its first NUL byte; UTF-16 with a byte order mark is read as text. The root itself may be
/// hidden, ignored or a link. Unlike ripgrep, it applies `.gitignore` outside a repository, too,
/// and ignores the user's git configuration. Unreadable files are skipped.
///
/// A glob is matched against the path relative to the root. A glob without a slash, or a glob for a
/// single file, is matched against the file name.
///
/// Matches are sorted by the bytes of the path, then by line. If there are more than requested, or
/// more than fit into [`limits::MAX_SEARCH_BYTES`], the answer contains the first ones. A line
/// longer than 8 MiB ends the search of its file, and the answer is marked as truncated.
///
/// # Errors
/// Rejects an invalid pattern or glob, and numbers that are out of range. Fails if the root does
/// not exist or is neither a file nor a directory, or after a cancellation.
pub fn search(search: &SearchText, stop: &CancelFlag) -> Result<SearchResult, FileError> {
    check_numbers(search)?;
    let job = SearchJob {
        matcher: compile_pattern(search)?,
        max_matches: search.max_matches,
        context: search.context_lines,
        stop,
    };
    let glob = search.glob.as_deref().map(PathGlob::new).transpose()?;
    let path = native_path(&search.path)?;
    let metadata = stat(&path).map_err(|errno| host_error("search", &path, errno))?;
    let kind = FileType::from_raw_mode(metadata.st_mode);
    let result = if kind.is_dir() {
        job.search_tree(&path, glob.as_ref())
    } else if kind.is_file() {
        job.search_file(&path, glob.as_ref())
    } else {
        let reason = "it is neither a file nor a directory";
        Err(invalid_request("search", &path, reason))
    };
    stop.check()?;
    result
}

fn check_numbers(search: &SearchText) -> Result<(), FileError> {
    if !(1..=limits::MAX_SEARCH_MATCHES).contains(&search.max_matches) {
        let most = limits::MAX_SEARCH_MATCHES;
        let text = format!("maxMatches must be between 1 and {most}");
        return Err(FileError::Refused(text));
    }
    if search.context_lines > limits::MAX_CONTEXT_LINES {
        let most = limits::MAX_CONTEXT_LINES;
        let text = format!("contextLines must be at most {most}");
        return Err(FileError::Refused(text));
    }
    Ok(())
}

/// The parameters of a search, shared by all threads.
#[derive(Debug)]
struct SearchJob<'a> {
    matcher: RegexMatcher,
    max_matches: usize,
    context: usize,
    stop: &'a CancelFlag,
}

impl SearchJob<'_> {
    fn search_file(&self, path: &Path, glob: Option<&PathGlob>) -> Result<SearchResult, FileError> {
        let name = path.as_os_str().as_bytes();
        if glob.is_some_and(|glob| !glob.is_match(file_name(name))) {
            return Ok(SearchResult::default());
        }
        let opened = RegularFile::to_read(path, LinkPolicy::Follow)?;
        let searched = self.lines(&mut self.searcher(), &opened.file);
        let mut answer = SearchAnswer::new(self.max_matches);
        answer.add(path, searched.lines)?;
        answer.result.truncated |= searched.is_incomplete;
        Ok(answer.result)
    }

    fn search_tree(&self, path: &Path, glob: Option<&PathGlob>) -> Result<SearchResult, FileError> {
        let tree = FilteredTree::open(path, self.stop)?;
        let root = tree.root();
        let supply = FileSupply::new(tree, glob, self.max_matches);
        let run_helper = || self.search_batches(&supply, &root, supply.next_batch());
        thread::scope(|scope| {
            let first = supply.next_batch();
            if first.as_ref().is_some_and(|(_, batch)| batch.is_full()) {
                for _ in 1..cancel_flag::thread_count() {
                    // If a thread cannot be started, the others do its work.
                    drop(thread::Builder::new().spawn_scoped(scope, run_helper));
                }
            }
            self.search_batches(&supply, &root, first);
        });
        let mut answer = SearchAnswer::new(self.max_matches);
        let (files, is_incomplete) = supply.into_matches();
        for file in files {
            let path = path.join(OsStr::from_bytes(&file.below));
            answer.add(&path, file.lines)?;
        }
        answer.result.truncated |= is_incomplete;
        Ok(answer.result)
    }

    /// Searches batches, starting with this one, until none is left.
    fn search_batches(
        &self,
        supply: &FileSupply<'_>,
        root: &DescentRoot,
        mut next: Option<(usize, FileBatch)>,
    ) {
        let mut searcher = self.searcher();
        while let Some((number, batch)) = next {
            let mut finished = FileBatch::default();
            let mut size = MatchSize::default();
            for file in batch.files {
                if supply.is_enough(size) || self.stop.is_cancelled() {
                    break;
                }
                let opened = match root.file(&file.below) {
                    Ok(opened) => opened,
                    Err(error) => {
                        // The path is too long to be opened.
                        finished.is_incomplete |= error == Errno::NAMETOOLONG;
                        continue;
                    }
                };
                let searched = self.lines(&mut searcher, &opened);
                finished.is_incomplete |= searched.is_incomplete;
                if !searched.lines.is_empty() {
                    size.add(&searched.lines);
                    let lines = searched.lines;
                    finished.files.push(SearchedFile { lines, ..file });
                }
            }
            supply.submit(number, finished);
            next = supply.next_batch();
        }
    }

    fn searcher(&self) -> Searcher {
        // One more than requested, to detect truncation.
        let most = u64::try_from(self.max_matches).map_or(u64::MAX, |most| most + 1);
        SearcherBuilder::new()
            .line_terminator(LineTerminator::crlf())
            .line_number(true)
            .before_context(self.context)
            .after_context(self.context)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(MAX_LINE_BYTES))
            .max_matches(Some(most))
            // A mapped file that shrinks would raise SIGBUS.
            .memory_map(MmapChoice::never())
            .build()
    }

    fn lines(&self, searcher: &mut Searcher, file: &File) -> FileMatches {
        let mut lines = LineCollector::new(&self.matcher, self.context);
        let reader = CancellableReader {
            file,
            stop: self.stop,
        };
        let ended = searcher.search_reader(&self.matcher, reader, &mut lines);
        FileMatches {
            lines: lines.into_matches(),
            // Errors of the searcher itself have no errno. The only one possible here is a line
            // that is too long.
            is_incomplete: ended.is_err_and(|error| error.raw_os_error().is_none()),
        }
    }
}

/// The matches of one file.
struct FileMatches {
    lines: Vec<MatchedLine>,
    is_incomplete: bool,
}

/// A file that reads as ended after a cancellation.
struct CancellableReader<'a> {
    file: &'a File,
    stop: &'a CancelFlag,
}

impl Read for CancellableReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Ok(0);
        }
        self.file.read(buffer)
    }
}

/// The result, up to its size limit.
struct SearchAnswer {
    result: SearchResult,
    max_matches: usize,
    bytes: usize,
}

impl SearchAnswer {
    fn new(max_matches: usize) -> Self {
        Self {
            result: SearchResult::default(),
            max_matches,
            bytes: 0,
        }
    }

    /// Adds the lines of a file, unless the result is already truncated.
    fn add(&mut self, path: &Path, lines: Vec<MatchedLine>) -> Result<(), FileError> {
        if self.result.truncated {
            return Ok(());
        }
        let path = uri(path)?;
        for line in lines {
            self.bytes += path.as_str().len() + line.bytes();
            if self.result.matches.len() == self.max_matches
                || self.bytes > limits::MAX_SEARCH_BYTES
            {
                self.result.truncated = true;
                break;
            }
            self.result.matches.push(SearchMatch {
                path: path.clone(),
                line: line.number,
                column: line.column,
                text: line.text,
                before: line.before,
                after: line.after,
            });
        }
        Ok(())
    }
}

/// Longest line that is searched, and the read buffer of each thread.
const MAX_LINE_BYTES: usize = 8 << 20;

/// Compiles the pattern of a search. It matches in linear time, and never across lines.
///
/// # Errors
/// Rejects patterns that are too long, invalid or too large, and patterns that match only several
/// lines.
fn compile_pattern(search: &SearchText) -> Result<RegexMatcher, FileError> {
    check_length("pattern", &search.pattern)?;
    if search.pattern.contains(['\n', '\r']) {
        let text = "pattern contains a line break, but lines are searched one by one";
        return Err(FileError::Refused(text.to_owned()));
    }
    RegexMatcherBuilder::new()
        .case_insensitive(!search.case_sensitive)
        .fixed_strings(!search.regex)
        .multi_line(true)
        // `$` matches before either kind of line end.
        .crlf(true)
        .size_limit(MAX_PROGRAM_BYTES)
        .dfa_size_limit(MAX_CACHE_BYTES)
        .build(&search.pattern)
        .map_err(|error| FileError::Refused(format!("pattern cannot be used: {error}")))
}

/// Largest compiled pattern. `(a{1000}){1000}` is short, but its program is not.
const MAX_PROGRAM_BYTES: usize = 4 << 20;
/// Size of the state cache of a pattern in each thread.
const MAX_CACHE_BYTES: usize = 4 << 20;

/// A matching line.
#[derive(Clone, Debug, Eq, PartialEq)]
struct MatchedLine {
    number: u64,
    column: u64,
    text: String,
    before: Vec<String>,
    after: Vec<String>,
}

impl MatchedLine {
    /// Returns its size in the answer.
    fn bytes(&self) -> usize {
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
struct LineCollector<'a> {
    matcher: &'a RegexMatcher,
    context: usize,
    matches: Vec<MatchedLine>,
    /// The most recent lines with their numbers, as many as the context before a match.
    recent: VecDeque<(u64, String)>,
    bytes: usize,
}

impl<'a> LineCollector<'a> {
    /// Collects lines with `context` lines around each.
    fn new(matcher: &'a RegexMatcher, context: usize) -> Self {
        Self {
            matcher,
            context,
            matches: Vec::new(),
            recent: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Returns the collected lines.
    fn into_matches(self) -> Vec<MatchedLine> {
        self.matches
    }

    /// Adds a line to the context of earlier matches, and keeps it as context for later ones.
    fn add_context(&mut self, number: u64, text: &str) {
        let context_lines = u64::try_from(self.context).unwrap_or(u64::MAX);
        let open = self.matches.iter_mut().rev();
        for line in open.take_while(|line| number - line.number <= context_lines) {
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

    fn is_below_limit(&self) -> bool {
        self.bytes <= limits::MAX_SEARCH_BYTES
    }
}

impl Sink for LineCollector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, matched: &SinkMatch<'_>) -> Result<bool, io::Error> {
        let number = matched.line_number().unwrap_or_default();
        let bytes = trim_line_end(matched.bytes());
        let first = self.matcher.find(bytes).map_err(io::Error::other)?;
        let column = first.map_or(0, |first| first.start());
        let text = displayed_text(bytes);
        let context_lines = u64::try_from(self.context).unwrap_or(u64::MAX);
        let in_context = self
            .recent
            .iter()
            .filter(|line| number - line.0 <= context_lines);
        let before: Vec<String> = in_context.map(|line| line.1.clone()).collect();
        self.add_context(number, &text);
        self.bytes += cost(&text) + before.iter().map(|line| cost(line)).sum::<usize>();
        self.matches.push(MatchedLine {
            number,
            column: u64::try_from(column).unwrap_or(u64::MAX).saturating_add(1),
            text,
            before,
            after: Vec::new(),
        });
        Ok(self.is_below_limit())
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        let number = context.line_number().unwrap_or_default();
        self.add_context(number, &displayed_text(trim_line_end(context.bytes())));
        Ok(self.is_below_limit())
    }
}

fn trim_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns the displayed part of a line.
fn displayed_text(line: &[u8]) -> String {
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
