//! The life of a direct socket after its upgrade.

use std::{future::poll_fn, task::Poll};

use exec_transport::link::Link;
use tokio::sync::oneshot;

use super::{
    Direct, DirectUpgrade,
    pipe::{self, close},
    table::SeatId,
    upgrade::Side,
};
use crate::store::EnvironmentId;

impl Direct {
    /// Serves a socket until it ends. Dropping the future cuts it, and whoever it is joined with.
    pub async fn serve(&self, upgrade: DirectUpgrade, mut link: Link) {
        match upgrade.0 {
            Side::Harness(handover) => {
                // The executor's task joins the two. When it has gone meanwhile, so does this.
                if let Err(mut link) = handover.send(link) {
                    close(&mut *link.writer).await;
                }
            }
            Side::Executor {
                environment,
                registration,
            } => {
                let sat = self.table().sit(&environment, &registration);
                if let Some((id, stop)) = sat {
                    let seat = Seat {
                        direct: self,
                        environment,
                        id,
                    };
                    tokio::select! {
                        () = seat.serve(&mut link) => {}
                        () = stop.notified() => {}
                    }
                }
                close(&mut *link.writer).await;
            }
        }
    }
}

/// A place in the table, given back at the end.
struct Seat<'a> {
    direct: &'a Direct,
    environment: EnvironmentId,
    id: SeatId,
}

impl Seat<'_> {
    /// Waits for a harness and is joined with it, once.
    async fn serve(&self, link: &mut Link) {
        loop {
            let (handover, mut harness) = oneshot::channel();
            if !self
                .direct
                .table()
                .wait(&self.environment, self.id, handover)
            {
                return;
            }
            self.direct.announce();
            tokio::select! {
                arrived = &mut harness => if let Ok(mut harness) = arrived {
                    self.direct.table().join(&self.environment, self.id);
                    self.direct.announce();
                    pipe::join(link, &mut harness).await;
                    return close(&mut *harness.writer).await;
                },
                () = idle(link) => return,
            }
            // A harness was promised and did not come: its socket broke before it was one.
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.direct.table().leave(&self.environment, self.id);
    }
}

/// Keeps a socket alive until it ends. An executor speaks when it is spoken to; one that does not
/// wait for that is no executor.
async fn idle(link: &mut Link) {
    loop {
        let wants_flush = poll_fn(|cx| {
            if link.reader.poll_message(cx).is_ready() {
                return Poll::Ready(false);
            }
            link.writer.poll_upkeep(cx).map(|()| true)
        });
        if !wants_flush.await || pipe::flush(&mut *link.writer).await.is_err() {
            return;
        }
    }
}
