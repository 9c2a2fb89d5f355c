//! What is told from the events that came, without asking the server: one that handles a request
//! after the other would answer nothing else while it waits.

use std::time::Duration;

use exec_core::log::{OutputLog, Page};
use exec_env::process::{ProcessError, Read, Status};
use exec_wire::process::WaitUntil;
use tokio::time;

use super::retained::ProcessEvents;

impl ProcessEvents {
    /// Reads retained output, and waits for some if there is none.
    pub(crate) async fn read_here(&self, read: Read) -> Result<Page, ProcessError> {
        self.check()?;
        if !read.wait.is_zero() {
            let news = self.until(|log| log.has_news(read.after).then_some(()));
            in_time(Some(read.wait), news).await?;
        }
        Ok(self.look(|log| log.page(read.after, read.max_bytes)))
    }

    /// Waits for the exit or the close.
    pub(crate) async fn wait_here(
        &self,
        until: WaitUntil,
        limit: Option<Duration>,
    ) -> Result<Status, ProcessError> {
        in_time(limit, self.until(|log| reached(log, until))).await?;
        Ok(self.status())
    }
}

/// Tells whether the process came so far.
pub(crate) fn reached(log: &OutputLog, until: WaitUntil) -> Option<()> {
    let reached = match until {
        WaitUntil::Exited => log.exit().is_some(),
        WaitUntil::Closed => log.is_closed(),
    };
    reached.then_some(())
}

/// Waits no longer than `limit`. That the time is up is no error.
async fn in_time(
    limit: Option<Duration>,
    event: impl Future<Output = Result<(), ProcessError>>,
) -> Result<(), ProcessError> {
    match limit {
        None => event.await,
        Some(limit) => time::timeout(limit, event).await.unwrap_or(Ok(())),
    }
}
