//! Spellings of other tools that clap cannot express: `find -name GLOB` and `kill -9 ID`.

use std::ffi::OsString;

use clap::{CommandFactory, error::ErrorKind};

use super::Cli;
use crate::command::NamedSignal;

/// Predicates of `find` that ours does not have.
const FIND_PREDICATES: [&str; 12] = [
    "-iname",
    "-path",
    "-ipath",
    "-wholename",
    "-regex",
    "-type",
    "-maxdepth",
    "-mindepth",
    "-mtime",
    "-size",
    "-exec",
    "-print",
];

/// Rewrites a line, whose first word is the name of the program, into one that clap understands.
///
/// # Errors
/// When a command is given an option of its namesake that it does not have.
pub(super) fn rewrite(mut line: Vec<OsString>) -> Result<Vec<OsString>, clap::Error> {
    let command = line
        .get(1)
        .and_then(|word| word.to_str())
        .unwrap_or_default();
    let is_find = match command {
        "find" => true,
        "kill" => false,
        _ => return Ok(line),
    };
    for word in line.iter_mut().skip(2) {
        let Some(text) = word.to_str() else { continue };
        match text {
            "--" => break,
            "-name" if is_find => *word = "--glob".into(),
            text if is_find && FIND_PREDICATES.contains(&text) => {
                let what = format!(
                    "`find` has no `{text}`: use `--glob GLOB` or `--name QUERY`, or run the \
                     host's own: exec-server run -- find …"
                );
                return Err(Cli::command().error(ErrorKind::UnknownArgument, what));
            }
            text if !is_find => {
                let signal = text.strip_prefix('-').filter(|name| !name.starts_with('-'));
                let signal = signal.filter(|name| name.parse::<NamedSignal>().is_ok());
                if let Some(signal) = signal {
                    *word = format!("--signal={signal}").into();
                }
            }
            _ => {}
        }
    }
    Ok(line)
}
