//! `exec-server ps`.

mod table;

use std::{
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Args;

use super::{
    detached,
    failure::{Failure, FailureKind},
    place::{Place, Where},
    stream::{say, telling},
    terminal::{self, Standard},
};

/// Lists processes that outlive their connection.
///
/// Those that have ended are listed for a while, with their status.
#[derive(Args, Clone, Debug)]
pub struct Ps {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    /// Prints one JSON array.
    #[arg(long)]
    pub json: bool,
}

impl Ps {
    /// Lists processes that outlive their connection.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        let processes = telling(&place.client, detached::list(&place.client)).await?;
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
