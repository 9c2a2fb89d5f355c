//! `exec-server dist`: lists the programs that can be pushed to other machines.

use std::process::ExitCode;

use clap::Args;
use exec_settings::environments::dist_sources;
use serde::Serialize;

use crate::command::{
    failure::{CommandFailure, FailureKind},
    print::{TextTable, json, print, print_stderr},
};

/// Lists the programs that can be pushed to other machines, one for each architecture.
///
/// Searches for exec-server-VERSION-ARCHITECTURE and exec-server-ARCHITECTURE in the directory
/// EXEC_SERVER_DIST, beside this program, and in ../lib/exec-server from there, where packages
/// install a small one. Without any of these, this program is pushed to machines of the same
/// architecture. A static program runs on any Linux.
#[derive(Args, Clone, Debug)]
pub struct DistCommand {
    /// Prints a JSON array instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// A program that can be pushed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DistRow {
    architecture: &'static str,
    #[serde(rename = "static")]
    is_static: bool,
    bytes: u64,
    sha256: String,
    path: String,
}

impl DistCommand {
    /// Prints the programs.
    pub(crate) fn run(self) -> Result<ExitCode, CommandFailure> {
        let sources = dist_sources(&|name| std::env::var_os(name));
        if let Some(directory) = sources.directory().filter(|it| !it.is_dir()) {
            let what = format!(
                "EXEC_SERVER_DIST: `{}` is not a directory",
                directory.display()
            );
            return Err(CommandFailure::new(FailureKind::NotFound, what)
                .next("build programs with `cargo xtask dist`, or unset the variable"));
        }
        let programs = sources.find();
        let rows: Vec<DistRow> = programs
            .iter()
            .map(|program| DistRow {
                architecture: program.architecture.name(),
                is_static: program.loader.is_none(),
                bytes: program.bytes,
                sha256: program.digest.clone(),
                path: program.path.to_string_lossy().into_owned(),
            })
            .collect();
        if self.json {
            print(&json(&rows)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = TextTable::new(&["ARCHITECTURE", "LINKED", "BYTES", "SHA256", "PATH"]);
        for row in &rows {
            let linked = if row.is_static { "static" } else { "dynamic" };
            let digest = row.sha256.get(..12).unwrap_or_default();
            table.push([
                row.architecture.to_owned(),
                linked.to_owned(),
                row.bytes.to_string(),
                digest.to_owned(),
                row.path.clone(),
            ]);
        }
        print(&table.to_string())?;
        if rows.iter().any(|row| !row.is_static) {
            print_stderr(
                "note: a dynamic program needs the libraries of this machine; `cargo xtask dist` \
                 builds a static one",
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
