//! Watching files: the answer first, then what is told from then on.

use std::sync::Arc;

use exec_env::filesystem::{Changes, MissingPaths, WatchDepth, WatchPath};
use exec_wire::{
    fs::{Changed, MissingChanged, Unwatch, Watch, WatchMissing, Watched, Watching},
    message::RequestId,
    method::notification,
    outgoing::Outgoing,
    process::Empty,
};
use futures_util::{future::FutureExt, stream::StreamExt};

use super::{Begun, Handlers, done};
use crate::{
    answer::{Answer, Reply},
    meters::Outcome,
};

impl Handlers<'_> {
    pub(super) fn watch(&self, id: RequestId, watch: Watch) -> Begun {
        let watch_id = watch.watch_id;
        let place = match self.files.admit_watch(&watch_id) {
            Ok(place) => place,
            Err(error) => return done(&id, Err::<Empty, _>(error)),
        };
        let depth = if watch.recursive {
            WatchDepth::Tree
        } else {
            WatchDepth::Entries
        };
        let watching = self.file_system().watch(WatchPath {
            path: watch.path,
            depth,
            sandbox: watch.sandbox,
        });
        let outbox = Arc::clone(self.outbox);
        let begin = async move {
            let mut watcher = match watching.await {
                Ok(watcher) => watcher,
                Err(error) => return Reply::Send(Answer::error(&id, &error.into())),
            };
            let path = watcher.path.clone();
            outbox.send(Outgoing::result(&id, &Watched { path })).await;
            let tell = async move {
                let mut ended = false;
                while !ended {
                    let changes = watcher.changes.next().await;
                    ended = changes.is_none();
                    let Changes { changes, overflow } = changes.unwrap_or_default();
                    let changed = Changed {
                        watch_id: watch_id.clone(),
                        changes,
                        overflow,
                        ended,
                    };
                    let told = Outgoing::notification(notification::FS_CHANGED, &changed);
                    outbox.send(told).await;
                }
            };
            place.finish(tokio::spawn(tell).abort_handle());
            Reply::Sent(Outcome::Ok)
        };
        Begun::Runs(begin.boxed())
    }

    pub(super) fn unwatch(&self, id: &RequestId, unwatch: &Unwatch) -> Begun {
        self.files.unwatch(&unwatch.watch_id);
        done(id, Ok(Empty {}))
    }

    pub(super) fn watch_missing(&self, id: RequestId, watch: WatchMissing) -> Begun {
        let watch_id = watch.watch_id;
        if !self.files.admit_missing(watch_id) {
            return done(&id, Ok(Watching { watching: false }));
        }
        let watching = self.file_system().watch_missing(MissingPaths {
            missing: watch.missing,
            present: watch.present,
            sandbox: watch.sandbox,
        });
        let (outbox, files) = (Arc::clone(self.outbox), Arc::clone(self.files));
        let begin = async move {
            let fired = match watching.await {
                Ok(fired) => fired,
                Err(error) => return Reply::Send(Answer::error(&id, &error.into())),
            };
            let watching = fired.is_some();
            outbox
                .send(Outgoing::result(&id, &Watching { watching }))
                .await;
            if let Some(fired) = fired {
                let tell = async move {
                    fired.await;
                    let told = MissingChanged { watch_id };
                    let told = Outgoing::notification(notification::FS_MISSING_CHANGED, &told);
                    outbox.send(told).await;
                };
                files.keep_missing(tokio::spawn(tell).abort_handle());
            }
            Reply::Sent(Outcome::Ok)
        };
        Begun::Runs(begin.boxed())
    }
}
