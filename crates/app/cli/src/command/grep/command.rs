//! What is looked for.

use std::{ffi::OsString, process::ExitCode};

use clap::Args;
use exec_wire::{
    fs::{Search, SearchMatch, SearchResult},
    limits,
    path_uri::PathUri,
};
use serde_json::json;

use super::lines::{Paint, lines, names, summary};
use crate::command::{
    failure::{Failure, FailureKind},
    files::{file_failure, persist, shown},
    operand::{OperandResolver, RemotePath},
    place::Where,
    stream::{complain, say, telling},
    terminal::{Standard, has_colours},
};

/// Finds lines that match.
///
/// As ripgrep does, it leaves out what dots and ignore files hide, and files that are no text. The
/// status is 0 if something is found, 1 if nothing is, 2 or more if it fails.
#[derive(Args, Clone, Debug)]
pub struct Grep {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    /// Letters match those of the other case, too.
    #[arg(short, long)]
    pub ignore_case: bool,

    /// The pattern is plain text, not a regular expression.
    #[arg(short = 'F', long)]
    pub fixed_strings: bool,

    /// Shows so many lines before and after each match.
    #[arg(
        short = 'C', long, value_name = "NUMBER", default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=limits::MAX_CONTEXT_LINES as u64)
    )]
    pub context: u64,

    /// Looks only into files that a glob matches.
    #[arg(short, long, value_name = "GLOB")]
    pub glob: Option<String>,

    /// Accepted for compatibility: directories are always searched with everything below them.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,

    /// Accepted for compatibility: matching lines always have their numbers.
    #[arg(short = 'n', long)]
    pub line_number: bool,

    /// Prints the number of matching lines of each file that has any, instead of the lines.
    #[arg(short, long, conflicts_with_all = ["json", "context"])]
    pub count: bool,

    /// Prints the names of files that have matching lines, instead of the lines.
    #[arg(short = 'l', long, conflicts_with_all = ["json", "context", "count"])]
    pub files_with_matches: bool,

    /// Most matching lines [default: 1000; most that a server returns with -c and -l].
    #[arg(
        long, value_name = "NUMBER",
        value_parser = clap::value_parser!(u64).range(1..=limits::MAX_SEARCH_MATCHES as u64)
    )]
    pub limit: Option<u64>,

    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,

    /// What to look for.
    #[arg(value_name = "PATTERN")]
    pub pattern: String,

    /// A directory, or one file.
    #[arg(default_value = ".", value_name = "PATH")]
    pub path: OsString,
}

impl Grep {
    /// Finds lines that match.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let mut operands = OperandResolver::new(&self.place);
        let operand = operands.resolve(&self.path).await?;
        let (place, path) = (&operand.place, &operand.path);
        let files = place.environment().files;
        let search = Search {
            path: path.clone(),
            pattern: self.pattern.clone(),
            regex: !self.fixed_strings,
            case_sensitive: !self.ignore_case,
            glob: self.glob.clone(),
            max_matches: number(self.limit.unwrap_or(match self.summarizes() {
                true => limits::MAX_SEARCH_MATCHES as u64,
                false => limits::DEFAULT_SEARCH_MATCHES as u64,
            })),
            context_lines: number(self.context),
            sandbox: None,
        };
        let found = persist(|| files.search(search.clone()));
        let found = telling(&place.client, found).await;
        let found = found.map_err(|error| told_from_nothing(file_failure(&error)))?;
        self.print(&operand, &found)?;
        Ok(match found.matches.is_empty() {
            true => FailureKind::Failed.into(),
            false => ExitCode::SUCCESS,
        })
    }

    /// Tells whether files are printed instead of lines.
    fn summarizes(&self) -> bool {
        self.count || self.files_with_matches
    }

    fn print(&self, operand: &RemotePath, found: &SearchResult) -> Result<ExitCode, Failure> {
        if self.json {
            let object = |found: &SearchMatch| {
                json!({
                    "path": shown(&found.path),
                    "uri": found.path,
                    "line": found.line,
                    "column": found.column,
                    "text": found.text,
                    "before": found.before,
                    "after": found.after,
                })
            };
            let matches: Vec<_> = found.matches.iter().map(object).collect();
            let text = json!({"matches": matches, "truncated": found.truncated});
            return say(&format!("{text}\n"));
        }
        let paint = match Standard::Output.is_terminal() {
            true if has_colours(Standard::Output) => Paint::Terminal,
            true => Paint::Sober,
            false => Paint::Plain,
        };
        let typed = operand.typed.to_string_lossy();
        let below = names(&typed, &operand.path);
        let names = |path: &PathUri| format!("{}{}", operand.prefix, below(path));
        let text = match self.summarizes() {
            true => summary(&found.matches, names, self.count, paint),
            false => lines(&found.matches, names, number(self.context), paint),
        };
        let said = say(&text);
        if found.truncated {
            complain("not everything was looked at; --limit, --glob or a PATH shows more");
        }
        said
    }
}

/// The status of a failure that has none of its own is the one of a wrong line: 1 is for nothing found.
fn told_from_nothing(failure: Failure) -> Failure {
    let kind = match failure.kind == FailureKind::Failed {
        true => FailureKind::Usage,
        false => failure.kind,
    };
    Failure { kind, ..failure }
}

fn number(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
