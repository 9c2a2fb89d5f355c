//! Answers that a client does not take, or that do not reach it.

use std::time::Duration;

use http::HeaderValue;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines},
    time::timeout,
};

use super::{
    door::{body, door, initialize, post, with},
    stage,
};
use crate::mcp::HttpDoor;

const SOON: Duration = Duration::from_secs(20);

/// A client at the other end of two pipes.
struct Client {
    input: DuplexStream,
    output: Lines<BufReader<DuplexStream>>,
    next: u64,
}

impl Client {
    async fn new(directory: &tempfile::TempDir) -> Self {
        let tools = stage::tools(directory.path());
        let (input, theirs) = tokio::io::duplex(1 << 16);
        let (ours, output) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move { tools.serve(theirs, ours).await });
        let mut client = Self {
            input,
            output: BufReader::new(output).lines(),
            next: 2,
        };
        client.send(&initialize()).await;
        client.answer(1).await;
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client.send(&initialized).await;
        client
    }

    async fn send(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.input.write_all(line.as_bytes()).await.unwrap();
    }

    async fn answer(&mut self, id: u64) -> Value {
        loop {
            let line = timeout(SOON, self.output.next_line()).await.unwrap();
            let line: Value = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
            if line["id"] == id {
                return line["result"]["structuredContent"].clone();
            }
        }
    }

    async fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.next += 1;
        let id = self.next;
        self.send(&call(id, name, &arguments)).await;
        self.answer(id).await
    }

    /// Wants no answer to the last call, and comes back when that is known.
    async fn cancel(&mut self) {
        let params = json!({"requestId": self.next});
        let cancelled =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        self.send(&cancelled).await;
    }
}

fn call(id: u64, name: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
        "name": name,
        "arguments": arguments,
    }})
}

#[tokio::test]
async fn a_client_that_cancels_too_late_is_shown_the_same_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut client = Client::new(&directory).await;
    let command = json!({"cmd": "echo said; sleep 600", "yield_time_ms": 250});
    let answer = client.call("exec_command", command).await;
    assert_eq!(answer["output"], "said\n");
    client.cancel().await;
    let look = json!({"session_id": answer["session_id"], "yield_time_ms": 250});
    let again = client.call("write_stdin", look.clone()).await;
    assert_eq!(again["output"], "said\n");
    let more = client.call("write_stdin", look).await;
    assert_eq!(more["output"], "");

    let command = json!({"cmd": "echo gone; exit 3"});
    let answer = client.call("exec_command", command).await;
    assert_eq!(answer["exit_code"], 3);
    client.cancel().await;
    let listed = client.call("list_processes", json!({})).await;
    let ended = listed["processes"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&ended["running"], &ended["exit_code"]),
        (&json!(false), &json!(3))
    );
    let look = json!({"session_id": ended["session_id"]});
    let again = client.call("write_stdin", look).await;
    assert_eq!(
        (&again["output"], &again["exit_code"]),
        (&json!("gone\n"), &json!(3))
    );
}

/// Sends a message in a session, and returns what is answered.
async fn send(door: &HttpDoor, session: &HeaderValue, message: &Value) -> Value {
    let request = with("mcp-session-id", session.to_str().unwrap());
    let answer = door.answer(request.body(body(message)).unwrap()).await;
    let said = answer.into_body().collect().await.unwrap().to_bytes();
    let said = String::from_utf8(said.to_vec()).unwrap();
    let data = said.lines().filter_map(|line| line.strip_prefix("data: "));
    let messages = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let answer = messages.into_iter().find(|one| one["id"] == message["id"]);
    answer.unwrap_or_default()["result"]["structuredContent"].take()
}

#[tokio::test]
async fn an_answer_whose_connection_breaks_is_given_again() {
    let directory = tempfile::tempdir().unwrap();
    let door = door(&directory);
    let begun = door.answer(post().body(body(&initialize())).unwrap()).await;
    let session = begun.headers().get("mcp-session-id").unwrap().clone();
    drop(begun.into_body().collect().await);
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    send(&door, &session, &initialized).await;

    let received = call(2, "exec_command", &json!({"cmd": "echo received"}));
    assert_eq!(
        send(&door, &session, &received).await["output"],
        "received\n"
    );

    let lost = call(3, "exec_command", &json!({"cmd": "echo lost"}));
    let request = with("mcp-session-id", session.to_str().unwrap());
    drop(door.answer(request.body(body(&lost)).unwrap()).await);
    // As long as the call is under way the command is not to be looked at.
    let again = async {
        for id in 10.. {
            let list = call(id, "list_processes", &json!({}));
            let listed = send(&door, &session, &list).await;
            if let [process] = &listed["processes"].as_array().unwrap()[..] {
                let look = json!({"session_id": process["session_id"]});
                let look = call(id + 1_000_000, "write_stdin", &look);
                let shown = send(&door, &session, &look).await;
                if !shown.is_null() {
                    return shown;
                }
            }
            tokio::task::yield_now().await;
        }
        Value::Null
    };
    let again = timeout(SOON, again).await.unwrap();
    assert_eq!(
        (&again["output"], &again["exit_code"]),
        (&json!("lost\n"), &json!(0))
    );
    let list = call(5, "list_processes", &json!({}));
    assert_eq!(
        send(&door, &session, &list).await["processes"],
        json!([]),
        "what was received is forgotten"
    );
}
