//! `exec-server find`.

use std::{ffi::OsString, os::unix::ffi::OsStrExt, process::ExitCode};

use clap::Args;
use exec_wire::{
    fs::{self, FoundPaths},
    limits,
    path_uri::PathUri,
};
use serde_json::json;

use crate::command::{
    connect::EnvArgs,
    failure::CommandFailure,
    files::{file_failure, persist, relative_bytes, shown},
    operand::{OperandResolver, RemotePath},
    print::printable,
    process_session::{complain, say, say_bytes, telling},
    terminal::StandardStream,
};

/// Finds files by their names.
///
/// Files and directories that dots or ignore files hide are not found. `-name GLOB` is accepted for
/// `--glob GLOB`, as `find` of the host spells it.
#[derive(Args, Clone, Debug)]
pub struct FindCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: EnvArgs,

    /// Finds what a glob matches: without a slash the name, else the path below PATH.
    #[arg(short, long, value_name = "GLOB", conflicts_with = "name")]
    pub glob: Option<String>,

    /// Finds what has these letters in this order, the best first.
    #[arg(short, long, value_name = "QUERY")]
    pub name: Option<String>,

    /// Most paths.
    #[arg(
        long, value_name = "NUMBER", default_value_t = limits::DEFAULT_FIND_RESULTS as u64,
        value_parser = clap::value_parser!(u64).range(1..=limits::MAX_FIND_RESULTS as u64)
    )]
    pub limit: u64,

    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,

    /// Where to look.
    #[arg(default_value = ".", value_name = "PATH")]
    pub path: OsString,
}

impl FindCommand {
    /// Finds files by their names.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = OperandResolver::new(&self.place);
        let operand = operands.resolve(&self.path).await?;
        let (place, path) = (&operand.place, &operand.path);
        let files = place.environment().files;
        let find = fs::Find {
            path: path.clone(),
            glob: match self.name {
                Some(_) => None,
                None => Some(self.glob.clone().unwrap_or_else(|| "*".to_owned())),
            },
            query: self.name.clone(),
            max_results: usize::try_from(self.limit).unwrap_or(usize::MAX),
            sandbox: None,
        };
        let found = persist(|| files.find(find.clone()));
        let found = telling(&place.client, found).await;
        let found = found.map_err(|error| file_failure(&error))?;
        self.print(&operand, &found)
    }

    fn print(&self, operand: &RemotePath, found: &FoundPaths) -> Result<ExitCode, CommandFailure> {
        if self.json {
            let path = |path: &PathUri| json!({"path": shown(path), "uri": path});
            let paths: Vec<_> = found.paths.iter().map(path).collect();
            let text = json!({"paths": paths, "truncated": found.truncated});
            return say(&format!("{text}\n"));
        }
        let (typed, prefix) = (operand.typed.as_bytes(), operand.prefix.as_bytes());
        let is_terminal = StandardStream::Output.is_terminal();
        let mut text = Vec::new();
        for path in &found.paths {
            let line = [prefix, &relative_bytes(typed, &operand.path, path)].concat();
            match is_terminal {
                true => text.extend(printable(&String::from_utf8_lossy(&line)).into_bytes()),
                // Whoever reads it may look for the file.
                false => text.extend(line),
            }
            text.push(b'\n');
        }
        let said = say_bytes(&text);
        if found.truncated {
            complain("there is more; --limit shows more of it");
        }
        said
    }
}
