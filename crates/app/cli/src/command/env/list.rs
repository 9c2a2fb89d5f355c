//! `exec-server env list`.

use std::process::ExitCode;

use clap::Args;

use super::row::rows;
use crate::{
    command::{
        failure::Failure,
        place::select,
        print::{print, say},
    },
    environments::{Facts, foreign_keys},
    settings_source::{self, Lookup},
    table::Table,
};

/// Lists the environments that --env can name.
///
/// They come from our environments.toml (~/.config/exec-server), then from that of the Codex home
/// ($CODEX_HOME, or ~/.codex), or from variables. Nothing is connected to: `exec-server env status`
/// does that.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct List {
    /// Prints a JSON array instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl List {
    /// Prints them.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let lookup = &|name: &str| std::env::var_os(name);
        let rows = rows(&select(lookup)?, lookup);
        warn_of_foreign_keys(lookup);
        if self.json {
            print(&crate::command::print::json(&rows)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(&["NAME", "KIND", "WHERE", "DEFAULT"]);
        for row in rows {
            let default = if row.default { "default" } else { "" };
            table.push([
                row.name,
                row.kind.as_str().to_owned(),
                row.place,
                default.to_owned(),
            ]);
        }
        print(&table.to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Warns about keys that keep Codex from starting, which earlier versions of `env add` wrote.
pub fn warn_of_foreign_keys(lookup: Lookup<'_>) {
    let facts = Facts {
        lookup,
        read: &settings_source::read_text,
    };
    for key in foreign_keys(facts) {
        say(&format!("warning: {key}"));
    }
}
