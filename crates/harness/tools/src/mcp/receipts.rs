//! Which requests a client may say that it wants no answer to, after it was made.
//!
//! A client that cancels a request takes no answer to it, also if the answer was on its way already. What
//! the answer showed of a command must not be lost with it.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rmcp::model::RequestId;

use super::session::MAX_CALLS;
use crate::unified::CallId;

/// Requests that are remembered: those that are under way, and as many that were answered.
const REMEMBERED: usize = 2 * MAX_CALLS;

/// The calls that requests have become, the last one behind the others.
#[derive(Debug, Default)]
pub(super) struct Receipts(Mutex<VecDeque<(RequestId, CallId)>>);

impl Receipts {
    /// Remembers a request.
    pub(super) fn add(&self, request: RequestId, call: CallId) {
        let mut known = self.lock();
        if known.len() >= REMEMBERED {
            known.pop_front();
        }
        known.push_back((request, call));
    }

    /// Returns the call that a request has become. A client may use an id again: the last one is meant.
    pub(super) fn call(&self, request: &RequestId) -> Option<CallId> {
        let known = self.lock();
        let found = known.iter().rev().find(|(id, _)| id == request);
        found.map(|(_, call)| call.clone())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(RequestId, CallId)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
