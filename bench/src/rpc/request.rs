//! Requests of any method, prepared once so that sending one costs next to nothing.

use serde_json::{Value, json};

use crate::ws::WebSocket;

/// A request that lacks only its id.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The message after its id, with the closing brace.
    rest: String,
    /// The data member, for a message that travels in binary.
    raw: Option<Vec<u8>>,
}

impl Request {
    /// Prepares a request.
    pub(crate) fn new(method: &str, params: &Value) -> Self {
        let message = json!({"method": method, "params": params});
        Self {
            rest: message.to_string().split_off(1),
            raw: None,
        }
    }

    /// Prepares a request whose data member travels as it is; `params` go without it.
    pub(crate) fn binary(method: &str, params: &Value, data: Vec<u8>) -> Self {
        Self {
            raw: Some(data),
            ..Self::new(method, params)
        }
    }

    /// Queues it with its id.
    pub(super) fn queue(&self, id: u64, socket: &mut WebSocket) {
        let head = format!("{{\"id\":{id},");
        let parts = [head.as_bytes(), self.rest.as_bytes()];
        match &self.raw {
            None => socket.queue_text(&parts),
            Some(raw) => {
                let len = (head.len() + self.rest.len()) as u64;
                let [_, _, _, _, _, a, b, c] = len.to_be_bytes();
                socket.queue_binary(&[&[1, a, b, c], parts[0], parts[1], raw]);
            }
        }
    }

    /// Returns about how many bytes it takes on the wire.
    pub(crate) fn size(&self) -> usize {
        const ENVELOPE: usize = r#"{"id":1000,"#.len() + 8;
        ENVELOPE + self.rest.len() + self.raw.as_ref().map_or(0, Vec::len)
    }
}
