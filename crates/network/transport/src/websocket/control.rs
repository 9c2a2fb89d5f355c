//! What the two halves of a websocket tell each other.

use std::{
    collections::VecDeque,
    sync::{Mutex, OnceLock, PoisonError},
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tokio::sync::OwnedSemaphorePermit;

/// Control frames that the reader owes the peer, sent by the writer, and those it has seen.
#[derive(Debug, Default)]
pub(super) struct Control {
    owed: Mutex<Owed>,
    /// Wakes the writer's upkeep.
    pub(super) waker: AtomicWaker,
    /// The connection's place among those of a listener: given back when both halves are gone.
    pub(super) slot: OnceLock<OwnedSemaphorePermit>,
}

/// Pongs whose pings came while none could be written; further pings are not answered, as the RFC
/// allows.
const MAX_PONGS: usize = 64;

/// Bounded: at most one close, and so many pongs.
#[derive(Debug, Default)]
pub(super) struct Owed {
    pub(super) pongs: VecDeque<Bytes>,
    /// Payload of the close frame, empty or with a status code.
    pub(super) close: Option<ClosePayload>,
    /// Not owed, but told in the same place: a pong has come.
    pub(super) ponged: bool,
}

/// What a close frame carries: nothing, or a status code and a reason.
pub(super) type ClosePayload = Vec<u8>;

/// What a control frame holds behind the status code (RFC 6455 section 5.5).
const MAX_REASON_BYTES: usize = 123;

/// Encodes a status code and a reason, which is cut to what a control frame holds.
pub(super) fn close_payload(code: u16, reason: &str) -> ClosePayload {
    let mut payload = code.to_be_bytes().to_vec();
    let end = reason.floor_char_boundary(MAX_REASON_BYTES);
    payload.extend_from_slice(&reason.as_bytes()[..end]);
    payload
}

/// Whether the peer takes what is sent to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PeerReads {
    Well,
    Slowly,
}

impl Control {
    pub(super) fn owe(&self, change: impl FnOnce(&mut Owed)) {
        change(&mut self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        self.waker.wake();
    }

    /// Owes the answer to a ping. Beyond the bound the oldest is dropped: the newest has to be answered.
    pub(super) fn owe_pong(&self, payload: Bytes) {
        self.owe(|owed| {
            if owed.pongs.len() == MAX_PONGS {
                owed.pongs.pop_front();
            }
            owed.pongs.push_back(payload);
        });
    }

    /// Takes what is owed. Pongs stay while the peer does not read what was sent before.
    pub(super) fn take(&self, reads: PeerReads) -> Owed {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let pongs = match reads {
            PeerReads::Slowly => std::mem::take(&mut owed.pongs),
            PeerReads::Well => VecDeque::new(),
        };
        let taken = std::mem::take(&mut *owed);
        owed.pongs = pongs;
        taken
    }
}
