//! `exec-server ps`.

mod table;

use std::{
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::{Args, Subcommand};
use exec_wire::process::ReleaseProcess;

use super::{
    detached,
    failure::{Failure, FailureKind},
    place::{Place, Where},
    stream::{say, telling},
    terminal::{self, Standard},
};

/// Lists processes that outlive their connection.
///
/// Those that have ended are listed for a while, with their status; `ps rm` removes them before. CPU is
/// the processor time of the whole tree, MEMORY the largest resident set of one of its processes.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("env", |arg| arg.global(true)),
    mut_arg("token_file", |arg| arg.global(true))
)]
pub struct Ps {
    /// What to do instead of listing.
    #[command(subcommand)]
    pub(crate) command: Option<PsCommand>,

    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    /// Lists processes of other sessions, too, such as a `run` that lost its terminal; `attach` takes
    /// them over.
    #[arg(short, long)]
    pub all: bool,

    /// Prints one JSON array.
    #[arg(long)]
    pub json: bool,
}

/// What to do instead of listing.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PsCommand {
    /// Removes finished processes from the list, with their output.
    Rm(PsRm),
}

/// Removes finished processes from the list, with their output.
#[derive(Args, Clone, Debug)]
pub(crate) struct PsRm {
    /// Ids that `ps` lists, or beginnings of them.
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

impl PsRm {
    async fn run(self, place: &Place) -> Result<ExitCode, Failure> {
        let client = &place.client;
        telling(client, async {
            // All are checked before the first one is removed.
            let found = detached::find(client, &self.ids).await?;
            if let Some(running) = found.iter().find(|process| process.running) {
                let id = running.process_id.as_str();
                let what = format!("`{id}` is still running");
                return Err(Failure::new(FailureKind::Failed, what)
                    .next(format!("`{}` ends it", place.line("kill", &[id]))));
            }
            for process in found {
                let forgotten = client.call(ReleaseProcess {
                    process_id: process.process_id,
                    forget: true,
                });
                forgotten.await.map_err(detached::call_failed)?;
            }
            Ok(ExitCode::SUCCESS)
        })
        .await
    }
}

impl Ps {
    /// Lists processes that outlive their connection.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        if let Some(PsCommand::Rm(remove)) = self.command {
            return remove.run(&place).await;
        }
        let processes = match self.all {
            true => telling(&place.client, detached::list_all(&place.client)).await?,
            false => telling(&place.client, detached::list(&place.client)).await?,
        };
        if self.json {
            let json = serde_json::to_string_pretty(&processes)
                .map_err(|error| Failure::new(FailureKind::Failed, error))?;
            return say(&format!("{json}\n"));
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        let view = table::View {
            now,
            columns: match Standard::Output.is_terminal() {
                true => terminal::size().map(|size| usize::from(size.cols)),
                false => None,
            },
            colours: terminal::has_colours(Standard::Output),
        };
        say(&view.table(&processes))
    }
}
