//! `exec-server grep` and `exec-server find`.

use std::{ffi::OsString, os::unix::ffi::OsStrExt, process::ExitCode};

use clap::Args;
use exec_wire::{
    fs::{self, FoundPaths, SearchMatch, SearchResult, SearchText},
    limits,
    path_uri::PathUri,
};
use serde_json::json;

use crate::command::{
    connect::EnvArgs,
    failure::{CommandFailure, FailureKind},
    files::{display_path, display_relative, relative_path_bytes, retry_disconnected},
    operand::{OperandResolver, RemotePath},
    print::printable,
    process_session::{print_notice, show_outages, write_result, write_result_bytes},
    terminal::{OutputStyle, StandardStream},
};

/// Searches files for lines that match a pattern.
///
/// Like ripgrep, skips hidden files, what ignore files exclude, and binary files. The status is 0
/// if something is found, 1 if nothing is found, and 2 or more on failure.
#[derive(Args, Clone, Debug)]
pub struct GrepCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Ignores case.
    #[arg(short, long)]
    pub ignore_case: bool,

    /// Treats the pattern as plain text, not as a regular expression.
    #[arg(short = 'F', long)]
    pub fixed_strings: bool,

    /// Shows this many lines before and after each match.
    #[arg(
        short = 'C', long, value_name = "NUMBER", default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=limits::MAX_CONTEXT_LINES as u64)
    )]
    pub context: u64,

    /// Searches only files that match a glob.
    #[arg(short, long, value_name = "GLOB")]
    pub glob: Option<String>,

    /// Accepted for compatibility: directories are always searched recursively.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,

    /// Accepted for compatibility: matching lines always have numbers.
    #[arg(short = 'n', long)]
    pub line_number: bool,

    /// Prints the number of matching lines per file instead of the lines.
    #[arg(short, long, conflicts_with_all = ["json", "context"])]
    pub count: bool,

    /// Prints the names of files with matching lines instead of the lines.
    #[arg(short = 'l', long, conflicts_with_all = ["json", "context", "count"])]
    pub files_with_matches: bool,

    /// Maximum number of matching lines [default: 1000; with -c and -l the server's maximum].
    #[arg(
        long, value_name = "NUMBER",
        value_parser = clap::value_parser!(u64).range(1..=limits::MAX_SEARCH_MATCHES as u64)
    )]
    pub limit: Option<u64>,

    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,

    /// Pattern to search for.
    #[arg(value_name = "PATTERN")]
    pub pattern: String,

    /// A directory, or one file.
    #[arg(default_value = ".", value_name = "PATH")]
    pub path: OsString,
}

impl GrepCommand {
    /// Searches and prints the matches.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = OperandResolver::new(&self.env_args);
        let operand = operands.resolve(&self.path).await?;
        let (env, path) = (&operand.env, &operand.path);
        let files = env.environment().files;
        let search = SearchText {
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
        let found = retry_disconnected(|| files.search(search.clone()));
        let found = show_outages(&env.client, found).await;
        let found = found.map_err(|error| usage_if_failed(CommandFailure::from(error)))?;
        self.print(&operand, &found)?;
        Ok(match found.matches.is_empty() {
            true => FailureKind::Failed.into(),
            false => ExitCode::SUCCESS,
        })
    }

    /// Returns whether file names are printed instead of lines.
    fn summarizes(&self) -> bool {
        self.count || self.files_with_matches
    }

    fn print(
        &self,
        operand: &RemotePath,
        found: &SearchResult,
    ) -> Result<ExitCode, CommandFailure> {
        if self.json {
            let object = |found: &SearchMatch| {
                json!({
                    "path": display_path(&found.path),
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
            return write_result(&format!("{text}\n"));
        }
        let style = OutputStyle::of_stdout();
        let typed = operand.typed.to_string_lossy();
        let below = names(&typed, &operand.path);
        let names = |path: &PathUri| format!("{}{}", operand.prefix, below(path));
        let text = match self.summarizes() {
            true => summary(&found.matches, names, self.count, style),
            false => lines(&found.matches, names, number(self.context), style),
        };
        let outcome = write_result(&text);
        if found.truncated {
            print_notice("the search was incomplete; --limit, --glob or PATH shows more");
        }
        outcome
    }
}

/// Maps the generic failure status to 2: status 1 means that nothing was found.
fn usage_if_failed(failure: CommandFailure) -> CommandFailure {
    let kind = match failure.kind == FailureKind::Failed {
        true => FailureKind::Usage,
        false => failure.kind,
    };
    CommandFailure { kind, ..failure }
}

fn number(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Formats matches like `grep -n`.
fn lines(
    matches: &[SearchMatch],
    name: impl Fn(&PathUri) -> String,
    context: usize,
    style: OutputStyle,
) -> String {
    let mut text = String::new();
    let mut last: Option<(&PathUri, u64)> = None;
    for (number, found) in matches.iter().enumerate() {
        let name = name(&found.path);
        let first = found.line.saturating_sub(found.before.len() as u64);
        let shown_to = last.filter(|(path, _)| **path == found.path);
        let shown_to = shown_to.map_or(0, |(_, line)| line);
        if context > 0 && last.is_some() && (shown_to == 0 || first > shown_to + 1) {
            text.push_str("--\n");
        }
        for (line, before) in (first..).zip(&found.before) {
            if line > shown_to {
                add(&mut text, &name, line, '-', before, style);
            }
        }
        add(&mut text, &name, found.line, ':', &found.text, style);
        let next = matches
            .get(number + 1)
            .filter(|next| next.path == found.path);
        let next = next.map_or(u64::MAX, |next| next.line);
        let mut to = found.line;
        for (line, after) in (found.line + 1..).zip(&found.after) {
            if line >= next {
                break;
            }
            add(&mut text, &name, line, '-', after, style);
            to = line;
        }
        last = Some((&found.path, to));
    }
    text
}

/// Formats one line per file with matches: its name, and with `counts` the number of matching
/// lines.
fn summary(
    matches: &[SearchMatch],
    name: impl Fn(&PathUri) -> String,
    counts: bool,
    style: OutputStyle,
) -> String {
    let files = matches.chunk_by(|one, other| one.path == other.path);
    let line = |file: &[SearchMatch]| {
        let name = name(&file[0].path);
        let name = match style {
            OutputStyle::Plain => name,
            OutputStyle::Printable => printable(&name),
            OutputStyle::Colours => format!("\x1b[35m{}\x1b[0m", printable(&name)),
        };
        match counts {
            true => format!("{name}:{}\n", file.len()),
            false => format!("{name}\n"),
        }
    };
    files.map(line).collect()
}

fn add(text: &mut String, name: &str, line: u64, mark: char, content: &str, style: OutputStyle) {
    text.push_str(&match style {
        OutputStyle::Plain => format!("{name}{mark}{line}{mark}{content}\n"),
        OutputStyle::Printable => {
            let (name, content) = (printable(name), without_commands(content));
            format!("{name}{mark}{line}{mark}{content}\n")
        }
        OutputStyle::Colours => {
            let (name, content) = (printable(name), without_commands(content));
            format!("\x1b[35m{name}\x1b[0m{mark}\x1b[32m{line}\x1b[0m{mark}{content}\n")
        }
    });
}

/// Replaces control characters except tabs.
fn without_commands(text: &str) -> String {
    let visible = |c: char| if c.is_control() && c != '\t' { '?' } else { c };
    text.chars().map(visible).collect()
}

/// Returns how files of the search are displayed.
fn names<'a>(typed: &'a str, root: &'a PathUri) -> impl Fn(&PathUri) -> String + 'a {
    move |path| match path == root {
        true => typed.to_owned(),
        false => display_relative(typed, root, path),
    }
}

/// Finds files by name.
///
/// Skips hidden files and what ignore files exclude. `-name GLOB` is accepted as `--glob GLOB`,
/// like `find` of the host.
#[derive(Args, Clone, Debug)]
pub struct FindCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Matches a glob: without a slash against the name, else against the path below PATH.
    #[arg(short, long, value_name = "GLOB", conflicts_with = "name")]
    pub glob: Option<String>,

    /// Matches names that contain these letters in this order, best matches first.
    #[arg(short, long, value_name = "QUERY")]
    pub name: Option<String>,

    /// Maximum number of paths.
    #[arg(
        long, value_name = "NUMBER", default_value_t = limits::DEFAULT_FIND_RESULTS as u64,
        value_parser = clap::value_parser!(u64).range(1..=limits::MAX_FIND_RESULTS as u64)
    )]
    pub limit: u64,

    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,

    /// Directory to search.
    #[arg(default_value = ".", value_name = "PATH")]
    pub path: OsString,
}

impl FindCommand {
    /// Searches and prints the paths.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = OperandResolver::new(&self.env_args);
        let operand = operands.resolve(&self.path).await?;
        let (env, path) = (&operand.env, &operand.path);
        let files = env.environment().files;
        let find = fs::FindPaths {
            path: path.clone(),
            glob: match self.name {
                Some(_) => None,
                None => Some(self.glob.clone().unwrap_or_else(|| "*".to_owned())),
            },
            query: self.name.clone(),
            max_results: usize::try_from(self.limit).unwrap_or(usize::MAX),
            sandbox: None,
        };
        let found = retry_disconnected(|| files.find(find.clone()));
        let found = show_outages(&env.client, found).await?;
        self.print(&operand, &found)
    }

    fn print(&self, operand: &RemotePath, found: &FoundPaths) -> Result<ExitCode, CommandFailure> {
        if self.json {
            let path = |path: &PathUri| json!({"path": display_path(path), "uri": path});
            let paths: Vec<_> = found.paths.iter().map(path).collect();
            let text = json!({"paths": paths, "truncated": found.truncated});
            return write_result(&format!("{text}\n"));
        }
        let (typed, prefix) = (operand.typed.as_bytes(), operand.prefix.as_bytes());
        let is_terminal = StandardStream::Output.is_terminal();
        let mut text = Vec::new();
        for path in &found.paths {
            let line = [prefix, &relative_path_bytes(typed, &operand.path, path)].concat();
            match is_terminal {
                true => text.extend(printable(&String::from_utf8_lossy(&line)).into_bytes()),
                // A consumer may open the file, so print the exact bytes.
                false => text.extend(line),
            }
            text.push(b'\n');
        }
        let outcome = write_result_bytes(&text);
        if found.truncated {
            print_notice("there are more results; raise --limit to see them");
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, line: u64, before: &[&str], after: &[&str]) -> SearchMatch {
        let owned = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect();
        SearchMatch {
            path: PathUri::parse(path).unwrap(),
            line,
            column: 1,
            text: format!("hit {line}"),
            before: owned(before),
            after: owned(after),
        }
    }

    fn name(path: &PathUri) -> String {
        path.as_str().replace("file:///", "")
    }

    #[test]
    fn overlapping_context_lines_are_printed_once() {
        let matches = [
            found("file:///a", 2, &["1"], &["3", "4"]),
            found("file:///a", 4, &["2", "3"], &["5"]),
            found("file:///a", 9, &["8"], &[]),
            found("file:///b", 1, &[], &[]),
        ];
        let text = lines(&matches, name, 2, OutputStyle::Plain);
        let expected =
            "a-1-1\na:2:hit 2\na-3-3\na:4:hit 4\na-5-5\n--\na-8-8\na:9:hit 9\n--\nb:1:hit 1\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn no_separator_without_context() {
        let matches = [
            found("file:///a", 2, &[], &[]),
            found("file:///b", 7, &[], &[]),
        ];
        let text = lines(&matches, name, 0, OutputStyle::Plain);
        assert_eq!(text, "a:2:hit 2\nb:7:hit 7\n");
    }

    #[test]
    fn control_characters_are_removed_from_lines() {
        assert_eq!(without_commands("a\tb\x1b[2J"), "a\tb?[2J");
    }
}
