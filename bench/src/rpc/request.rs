//! Prepared requests, `process/start` among them, so that sending one costs next to nothing.

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

/// What a process is connected to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stdio {
    /// Output on pipes, no input.
    Pipes,
    /// Input and output on pipes.
    WritablePipes,
    /// A pseudo terminal.
    Pty,
}

/// A `process/start` request that lacks only its ids.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// The members of `params` after `processId`, with the closing brace.
    members: String,
}

impl Start {
    /// Prepares a request that runs `argv`.
    pub(crate) fn new(argv: &[&str], stdio: Stdio) -> Self {
        let members = json!({
            "argv": argv,
            "cwd": "file:///",
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
            "tty": stdio == Stdio::Pty,
            "pipeStdin": stdio == Stdio::WritablePipes,
        });
        Self {
            members: members.to_string().split_off(1),
        }
    }

    /// Adds a member.
    pub(crate) fn with(mut self, name: &str, value: &Value) -> Self {
        self.members.insert_str(0, &format!(r#""{name}":{value},"#));
        self
    }

    /// Writes the request with its id; the process is named after it.
    pub(super) fn request(&self, id: u64) -> String {
        let members = &self.members;
        format!(
            r#"{{"id":{id},"method":"process/start","params":{{"processId":"b{id}",{members}}}"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_request_is_json_with_its_ids() {
        let start = Start::new(&["cat", "a\"b"], Stdio::WritablePipes);
        let start = start.with("sandbox", &json!({"x": [1]}));
        let value: serde_json::Value = serde_json::from_str(&start.request(7)).unwrap();
        assert_eq!(value["id"], 7);
        assert_eq!(value["params"]["processId"], "b7");
        assert_eq!(value["params"]["argv"][1], "a\"b");
        assert_eq!(value["params"]["pipeStdin"], true);
        assert_eq!(value["params"]["tty"], false);
        assert_eq!(value["params"]["sandbox"]["x"][0], 1);
    }
}
