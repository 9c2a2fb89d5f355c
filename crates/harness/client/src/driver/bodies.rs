//! The HTTP requests of one connection, and their streamed bodies.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use exec_env::{disconnect::Disconnect, http::HttpError};
use exec_wire::{http::HttpBodyDelta, id::HttpRequestId};

use super::Opens;
use crate::http::{Delivery, Flow, QueuedBody};

/// Requests that are not answered, and bodies whose parts are taken. One that is over, has failed or is not wanted any more is not here:
/// what still comes for it is ignored.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    table: BTreeMap<HttpRequestId, Arc<QueuedBody>>,
}

impl Bodies {
    /// Takes a body in before it is asked for: its parts may come right behind the answer.
    pub(super) fn register(&mut self, opens: &Opens) {
        if let Opens::Body(body) = opens {
            self.table.insert(body.id().clone(), Arc::clone(body));
        }
    }

    /// There is an answer, or none will come: only a streamed body goes on.
    pub(super) fn handle_answer(&mut self, opens: &Opens, answered: bool) {
        if let Opens::Body(body) = opens
            && !(answered && body.delivery() == Delivery::Streamed)
        {
            self.remove(body.id());
        }
    }

    /// Forgets a body. Tells whether it was known.
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
        let (id, flow) = (body.id().clone(), body.handle_delta(delta, data));
        if flow != Flow::Open {
            self.table.remove(&id);
        }
        (flow == Flow::Failed).then_some(id)
    }

    /// The connection is gone, and the bodies with it: they cannot be asked for from their middle.
    pub(super) fn disconnect(&mut self, gone: &Disconnect) {
        for body in std::mem::take(&mut self.table).into_values() {
            body.fail(HttpError::Disconnected(gone.clone()));
        }
    }
}
