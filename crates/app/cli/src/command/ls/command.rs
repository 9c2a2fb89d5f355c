//! What is listed.

use std::{ffi::OsString, process::ExitCode};

use clap::Args;
use exec_env::filesystem::ExecutorFileSystem;
use exec_wire::path_uri::PathUri;
use futures_util::{StreamExt, stream};

use super::row::{Paint, Row};
use crate::command::{
    failure::{Failure, FailureKind},
    files::{entries, file_failure, leads_nowhere, look, shown},
    operand::{OperandResolver, RemotePath},
    place::Where,
    stream::{complain, say, say_bytes, telling},
    terminal::{Standard, has_colours},
};

/// Entries that are looked at together.
const LOOKS: usize = 32;

/// Lists a directory.
#[derive(Args, Clone, Debug)]
pub struct Ls {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    /// Shows mode, size and time (UTC) as well.
    #[arg(short, long)]
    pub long: bool,

    /// Shows names that begin with a dot, too.
    #[arg(short, long)]
    pub all: bool,

    /// Prints one JSON array.
    #[arg(long)]
    pub json: bool,

    /// A directory, or a file.
    #[arg(default_value = ".", value_name = "PATH")]
    pub path: OsString,
}

impl Ls {
    /// Lists a directory.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let mut operands = OperandResolver::new(&self.place);
        let RemotePath { place, path, .. } = operands.resolve(&self.path).await?;
        let files = place.environment().files;
        let rows = telling(&place.client, self.rows(&*files, &path)).await?;
        if self.json {
            let text = serde_json::to_string_pretty(&rows);
            let text = text.map_err(|error| Failure::new(FailureKind::Failed, error))?;
            return say(&(text + "\n"));
        }
        let paint = match (
            Standard::Output.is_terminal(),
            has_colours(Standard::Output),
        ) {
            (true, true) => Paint::Colours,
            (true, false) => Paint::Harmless,
            (false, _) => Paint::Plain,
        };
        let mut text = Vec::new();
        for row in &rows {
            text.extend(match self.long {
                true => row.long(paint),
                false => row.short(paint),
            });
            text.push(b'\n');
        }
        say_bytes(&text)
    }

    async fn rows(
        &self,
        files: &dyn ExecutorFileSystem,
        path: &PathUri,
    ) -> Result<Vec<Row>, Failure> {
        let failed = |error| file_failure(&error);
        let found = look(files, path).await.map_err(failed)?;
        let name = path.file_name().unwrap_or_default();
        let Some(found) = found else {
            if leads_nowhere(files, path).await.map_err(failed)? {
                return Ok(vec![Row::nowhere(&name, path.clone())]);
            }
            let what = format!("cannot list `{}`: nothing is there", shown(path));
            return Err(Failure::new(FailureKind::NotFound, what)
                .next("`exec-server ls` of the directory above shows what is"));
        };
        if !found.is_directory {
            return Ok(vec![Row::new(&name, path.clone(), found)]);
        }
        let listed = entries(files, path).await.map_err(failed)?;
        if let Some(error) = listed.errors.first().filter(|_| listed.entries.is_empty()) {
            return Err(Failure::new(FailureKind::Failed, &error.message));
        }
        if listed.truncated {
            complain("there is more than can be listed; `exec-server find --glob` looks for names");
        }
        let visible = |name: &[u8]| self.all || !name.starts_with(b".");
        let shown = listed
            .entries
            .into_iter()
            .filter(|entry| visible(&entry.name));
        let mut looked = stream::iter(shown)
            .map(|entry| async {
                let found = look(files, &entry.path).await;
                (entry, found)
            })
            .buffered(LOOKS);
        let mut rows = Vec::new();
        while let Some((entry, found)) = looked.next().await {
            // One that is gone meanwhile is not listed.
            if let Some(found) = found.map_err(failed)? {
                rows.push(Row::new(&entry.name, entry.path, found));
            }
        }
        Ok(rows)
    }
}
