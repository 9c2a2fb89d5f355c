//! What is looked for, compiled.

use exec_env::filesystem::FileError;
use exec_wire::fs::Search;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};

use crate::glob::check_length;

/// Compiles the pattern of a search. It matches in linear time, and never more than one line.
///
/// # Errors
/// Refuses what is too long, broken or too large, and what could only match several lines.
pub(super) fn compiled(search: &Search) -> Result<RegexMatcher, FileError> {
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

/// Largest compiled pattern: `(a{1000}){1000}` is short.
const MAX_PROGRAM_BYTES: usize = 4 << 20;
/// What each thread remembers of a pattern's states.
const MAX_CACHE_BYTES: usize = 4 << 20;
