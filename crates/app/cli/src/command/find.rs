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
    files::{display_path, file_failure, relative_path_bytes, retry_disconnected},
    operand::{OperandResolver, RemotePath},
    print::printable,
    process_session::{print_notice, show_outages, write_result, write_result_bytes},
    terminal::StandardStream,
};

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
        let found = show_outages(&env.client, found).await;
        let found = found.map_err(|error| file_failure(&error))?;
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
        let said = write_result_bytes(&text);
        if found.truncated {
            print_notice("there are more results; raise --limit to see them");
        }
        said
    }
}
