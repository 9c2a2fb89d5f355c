//! The file watches and streamed HTTP bodies of one connection.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use exec_env::{environment::DisconnectReason, http::HttpError};
use exec_wire::{
    fs::{MissingPathNotification, WatchNotification},
    http::HttpBodyDelta,
    id::{HttpRequestId, WatchId},
};
use tokio::sync::oneshot;

use super::OpenedResource;
use crate::{
    filesystem::ChangeQueue,
    http::{BodyDelivery, BodyQueue, BodyState},
};

/// Open file watches.
#[derive(Debug, Default)]
pub(super) struct FileWatches {
    table: BTreeMap<WatchId, Arc<ChangeQueue>>,
    /// The missing-path watch, of which the wire allows only one. Dropping the sender signals its
    /// end.
    missing: Option<(u64, oneshot::Sender<()>)>,
}

impl FileWatches {
    /// Registers a watch before it is requested, because changes may arrive before the response. A
    /// new missing-path watch ends the previous one, as on the server.
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

    /// Removes a watch that could not be opened.
    pub(super) fn cancel(&mut self, resource: &OpenedResource) {
        if let OpenedResource::Watch(watch) = resource {
            self.remove(watch.id());
        }
    }

    /// Removes a watch. Returns whether it existed.
    pub(super) fn remove(&mut self, id: &WatchId) -> bool {
        self.table.remove(id).is_some()
    }

    /// Passes changes to their watch. Ignores changes of ended watches.
    pub(super) fn handle_changed(&self, changed: WatchNotification) {
        if let Some(watch) = self.table.get(&changed.watch_id) {
            watch.handle_changed(changed);
        }
    }

    pub(super) fn handle_missing_changed(&mut self, changed: MissingPathNotification) {
        self.missing.take_if(|(id, _)| *id == changed.watch_id);
    }

    /// Removes a missing-path watch. Returns whether it was active.
    pub(super) fn remove_missing(&mut self, number: u64) -> bool {
        self.missing.take_if(|(id, _)| *id == number).is_some()
    }

    /// Ends all watches with the connection.
    pub(super) fn disconnect(&mut self) {
        self.missing = None;
        for watch in std::mem::take(&mut self.table).into_values() {
            watch.end();
        }
    }
}

/// Unanswered HTTP requests and open body streams. Data for any other request is ignored.
#[derive(Debug, Default)]
pub(super) struct HttpBodies {
    table: BTreeMap<HttpRequestId, Arc<BodyQueue>>,
}

impl HttpBodies {
    /// Registers a body before it is requested, because chunks may follow the response immediately.
    pub(super) fn register(&mut self, resource: &OpenedResource) {
        if let OpenedResource::Body(body) = resource {
            self.table.insert(body.id().clone(), Arc::clone(body));
        }
    }

    /// Removes an answered or failed request, unless its body is streamed.
    pub(super) fn handle_response(&mut self, resource: &OpenedResource, answered: bool) {
        if let OpenedResource::Body(body) = resource
            && !(answered && body.delivery() == BodyDelivery::Streamed)
        {
            self.remove(body.id());
        }
    }

    /// Removes a body. Returns whether it existed.
    pub(super) fn remove(&mut self, id: &HttpRequestId) -> bool {
        self.table.remove(id).is_some()
    }

    /// Passes a chunk to its body. Returns the id of a body that failed and must be cancelled.
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

    /// Fails all bodies with the connection, because they cannot be resumed.
    pub(super) fn disconnect(&mut self, reason: &DisconnectReason) {
        for body in std::mem::take(&mut self.table).into_values() {
            body.fail(HttpError::Disconnected(reason.clone()));
        }
    }
}
