//! Whether the answer to a request was handed to its connection.
//!
//! A connection that breaks is found out when its answer is dropped unread. What is behind the connection,
//! in the buffers of two machines, is out of sight.

use std::{
    convert::Infallible,
    fmt, mem,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{Response, request::Parts};
use http_body_util::{BodyExt, combinators::BoxBody};
use rmcp::{RoleServer, service::RequestContext};

/// How an event begins that is the answer. Those before it are notifications, which have no id.
const ANSWER: &[u8] = br#"data: {"jsonrpc":"2.0","id":"#;

/// One request, shared by those who answer it and those who carry the answer.
#[derive(Clone, Default)]
pub(in crate::mcp) struct Delivery(Arc<Mutex<State>>);

/// What is done if an answer does not arrive.
type Undo = Box<dyn FnOnce() + Send>;

#[derive(Default)]
enum State {
    #[default]
    UnderWay,
    /// The answer was made.
    Answered(Undo),
    HandedOver,
    Failed,
}

impl Delivery {
    /// Returns the one that a request came with.
    pub(in crate::mcp) fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let parts = context.extensions.get::<Parts>()?;
        parts.extensions.get::<Self>().cloned()
    }

    /// Says what to do if the answer, which was made, is not handed over.
    pub(in crate::mcp) fn if_it_fails(&self, undo: impl FnOnce() + Send + 'static) {
        let failed = self.change(|state| match state {
            State::UnderWay | State::Answered(_) => {
                *state = State::Answered(Box::new(undo));
                None
            }
            State::Failed => Some(undo),
            State::HandedOver => None,
        });
        if let Some(undo) = failed {
            undo();
        }
    }

    /// Watches an answer on its way.
    pub(super) fn watch(
        self,
        response: Response<BoxBody<Bytes, Infallible>>,
    ) -> Response<BoxBody<Bytes, Infallible>> {
        let carried = Carried(self);
        response.map(|body| {
            let body = body.map_frame(move |frame| {
                if frame.data_ref().is_some_and(is_answer) {
                    carried.0.change(|state| *state = State::HandedOver);
                }
                frame
            });
            body.boxed()
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delivery")
    }
}

fn is_answer(frame: &Bytes) -> bool {
    let mut lines = frame.split(|byte| *byte == b'\n');
    lines.any(|line| line.starts_with(ANSWER))
}

/// An answer on its way. Dropped before it was handed over, it has failed.
struct Carried(Delivery);

impl Drop for Carried {
    fn drop(&mut self) {
        let undo = self.0.change(|state| match state {
            State::HandedOver => None,
            State::UnderWay | State::Answered(_) | State::Failed => {
                match mem::replace(state, State::Failed) {
                    State::Answered(undo) => Some(undo),
                    State::UnderWay | State::HandedOver | State::Failed => None,
                }
            }
        });
        if let Some(undo) = undo {
            undo();
        }
    }
}
