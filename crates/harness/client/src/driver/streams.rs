//! The file watches and streamed HTTP bodies of one connection.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use exec_env::{disconnect::Disconnect, http::HttpError};
use exec_wire::{
    fs::{Changed, MissingChanged},
    http::HttpBodyDelta,
    id::{HttpRequestId, WatchId},
};
use tokio::sync::oneshot;

use super::OpenedResource;
use crate::{
    filesystem::ChangeQueue,
    http::{BodyDelivery, BodyQueue, BodyState},
};

/// Watches whose changes are taken.
#[derive(Debug, Default)]
pub(super) struct FileWatches {
    table: BTreeMap<WatchId, Arc<ChangeQueue>>,
    /// The one watch for missing paths that the wire has. Whoever waits for it is told by its end.
    missing: Option<(u64, oneshot::Sender<()>)>,
}

impl FileWatches {
    /// Takes a watch in before it is asked for: its changes may come before the answer. A watch for
    /// missing paths ends the one before, here as on the server.
    pub(super) fn register(&mut self, resource: OpenedResource) -> OpenedResource {
        match resource {
            OpenedResource::Watch(watch) => {
                self.table.insert(watch.id().clone(), Arc::clone(&watch));
                OpenedResource::Watch(watch)
            }
            OpenedResource::MissingWatch(id, over) => {
                self.missing = Some((id, over));
                OpenedResource::None
            }
            OpenedResource::None
            | OpenedResource::UsesConnection(_)
            | OpenedResource::File(_)
            | OpenedResource::Body(_) => resource,
        }
    }

    /// The watch did not begin.
    pub(super) fn cancel(&mut self, resource: &OpenedResource) {
        if let OpenedResource::Watch(watch) = resource {
            self.remove(watch.id());
        }
    }

    /// Forgets a watch. Returns whether it was known.
    pub(super) fn remove(&mut self, id: &WatchId) -> bool {
        self.table.remove(id).is_some()
    }

    /// Hands changes to their watch. One that is over needs none.
    pub(super) fn handle_changed(&self, changed: Changed) {
        if let Some(watch) = self.table.get(&changed.watch_id) {
            watch.handle_changed(changed);
        }
    }

    pub(super) fn handle_missing_changed(&mut self, changed: MissingChanged) {
        self.missing.take_if(|(id, _)| *id == changed.watch_id);
    }

    /// Forgets a watch for missing paths that nobody waits for. Returns whether it was going on.
    pub(super) fn remove_missing(&mut self, number: u64) -> bool {
        self.missing.take_if(|(id, _)| *id == number).is_some()
    }

    /// The connection is gone.
    pub(super) fn disconnect(&mut self) {
        self.missing = None;
        for watch in std::mem::take(&mut self.table).into_values() {
            watch.end();
        }
    }
}

/// Requests that are not answered, and bodies whose parts are taken. One that is over, has failed or is not wanted any more is not here:
/// what still comes for it is ignored.
#[derive(Debug, Default)]
pub(super) struct HttpBodies {
    table: BTreeMap<HttpRequestId, Arc<BodyQueue>>,
}

impl HttpBodies {
    /// Takes a body in before it is asked for: its parts may come right behind the answer.
    pub(super) fn register(&mut self, resource: &OpenedResource) {
        if let OpenedResource::Body(body) = resource {
            self.table.insert(body.id().clone(), Arc::clone(body));
        }
    }

    /// There is an answer, or none will come: only a streamed body goes on.
    pub(super) fn handle_answer(&mut self, resource: &OpenedResource, answered: bool) {
        if let OpenedResource::Body(body) = resource
            && !(answered && body.delivery() == BodyDelivery::Streamed)
        {
            self.remove(body.id());
        }
    }

    /// Forgets a body. Returns whether it was known.
    pub(super) fn remove(&mut self, id: &HttpRequestId) -> bool {
        self.table.remove(id).is_some()
    }

    /// Hands a part to its body. Returns which body has failed by it, and is to be ended.
    pub(super) fn handle_delta(
        &mut self,
        delta: HttpBodyDelta,
        data: Bytes,
    ) -> Option<HttpRequestId> {
        let body = self.table.get(&delta.request_id)?;
        let (id, state) = (body.id().clone(), body.handle_delta(delta, data));
        if state != BodyState::Open {
            self.table.remove(&id);
        }
        (state == BodyState::Failed).then_some(id)
    }

    /// The connection is gone, and the bodies with it: they cannot be asked for from their middle.
    pub(super) fn disconnect(&mut self, gone: &Disconnect) {
        for body in std::mem::take(&mut self.table).into_values() {
            body.fail(HttpError::Disconnected(gone.clone()));
        }
    }
}
