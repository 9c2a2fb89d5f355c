//! Rewrites command lines that clap cannot express.

use std::ffi::{OsStr, OsString};

use clap::{Arg, CommandFactory, error::ErrorKind};

use crate::{cli::Cli, command::NamedSignal};

/// Predicates of `find` that ours lacks.
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

/// Rewrites a command line, which starts with the program name, for clap: it cannot express `find
/// -name GLOB` and `kill -9 ID` of other tools, and `--network` with and without a value.
///
/// # Errors
/// When a command receives an unsupported option of the tool of the same name.
pub(super) fn rewrite_argv(mut line: Vec<OsString>) -> Result<Vec<OsString>, clap::Error> {
    let command = line
        .get(1)
        .and_then(|word| word.to_str())
        .unwrap_or_default();
    let is_find = match command {
        "find" => true,
        "kill" => false,
        "run" | "shell" | "watch" | "mcp" => return Ok(join_network_value(line)),
        _ => return Ok(line),
    };
    for word in line.iter_mut().skip(2) {
        let Some(text) = word.to_str() else { continue };
        match text {
            "--" => break,
            "-name" if is_find => *word = "--glob".into(),
            text if is_find && FIND_PREDICATES.contains(&text) => {
                let what = format!(
                    "`find` does not support `{text}`: use `--glob GLOB` or `--name QUERY`, or \
                     run the host's own: exec-server run -- find …"
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

/// Joins `--network` with the next word if that is one of its values. Otherwise clap would take any
/// word, even the command in `run --sandbox read-only --network make`.
fn join_network_value(line: Vec<OsString>) -> Vec<OsString> {
    if !line.iter().any(|word| word == "--network") {
        return line;
    }
    let mut cli = Cli::command();
    cli.build();
    let name = line.get(1).cloned().unwrap_or_default();
    let Some(command) = cli.find_subcommand(name) else {
        return line;
    };
    let mut words = line.into_iter().peekable();
    let mut joined: Vec<OsString> = words.by_ref().take(2).collect();
    while let Some(mut word) = words.next() {
        let Some(follows) = option_value(command, &word) else {
            // The rest is the command to run.
            joined.push(word);
            break;
        };
        if word == "--network"
            && let Some(value) = words.next_if(|word| word == "full" || word == "loopback")
        {
            word.push("=");
            word.push(value);
        }
        joined.push(word);
        if follows == OptionValue::NextWord {
            joined.extend(words.next());
        }
    }
    joined.extend(words);
    joined
}

/// Where the value of an option is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum OptionValue {
    /// In the next word.
    NextWord,
    /// In the same word, or absent.
    SameWord,
}

/// Returns where the value of an option is; `None` if the word is not an option.
fn option_value(command: &clap::Command, word: &OsStr) -> Option<OptionValue> {
    let text = word
        .to_str()?
        .strip_prefix('-')
        .filter(|text| !text.is_empty())?;
    let found = |is_it: &dyn Fn(&&Arg) -> bool| {
        let argument = command.get_arguments().find(is_it);
        argument.is_some_and(|argument| {
            let values = argument
                .get_num_args()
                .map_or(0, |values| values.min_values());
            values > 0 && !argument.is_require_equals_set()
        })
    };
    if let Some(long) = text.strip_prefix('-') {
        if long.is_empty() {
            return None;
        }
        return Some(match found(&|argument| argument.get_long() == Some(long)) {
            true => OptionValue::NextWord,
            false => OptionValue::SameWord,
        });
    }
    // The first letter with a value takes the rest of the word, if any.
    let mut letters = text.char_indices();
    let with_value =
        letters.find(|(_, letter)| found(&|argument| argument.get_short() == Some(*letter)));
    Some(match with_value {
        Some((at, letter)) if at + letter.len_utf8() == text.len() => OptionValue::NextWord,
        Some(_) | None => OptionValue::SameWord,
    })
}
