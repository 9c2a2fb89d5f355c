//! `process/start` requests, prepared once so that sending one costs next to nothing.

use serde_json::{Value, json};

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
