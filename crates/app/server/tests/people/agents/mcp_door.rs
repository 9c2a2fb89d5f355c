//! A raw JSON-RPC client of `exec-server mcp` on both doors: stdio, and HTTP.

use std::{
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout},
    time::sleep,
};

use crate::test_user::{Server, TestUser, within_timeout};

/// Revision without sessions.
pub(crate) const MODERN: &str = "2026-07-28";
/// Name of the Tasks extension.
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";
/// Prefix of the reserved metadata.
const META: &str = "io.modelcontextprotocol/";

/// `exec-server mcp`, behind one of its doors. Dropping it kills it.
pub(crate) enum McpDoor {
    Stdio(StdioDoor),
    Http(Server),
}

pub(crate) struct StdioDoor {
    server: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Which door a test uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DoorKind {
    Stdio,
    Http,
}

/// Both doors.
pub(crate) const DOORS: [DoorKind; 2] = [DoorKind::Stdio, DoorKind::Http];

/// Response to a request.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// HTTP status; 0 on stdio.
    pub(crate) status: u16,
    pub(crate) message: Value,
}

impl Reply {
    #[track_caller]
    pub(crate) fn result(&self) -> &Value {
        assert!(self.message["error"].is_null(), "{self:?}");
        &self.message["result"]
    }

    /// Returns the error code. Asserts the HTTP status, if there is one.
    #[track_caller]
    pub(crate) fn error(&self, status: u16) -> i64 {
        assert!([0, status].contains(&self.status), "{self:?}");
        self.message["error"]["code"].as_i64().unwrap()
    }
}

/// A stateless request.
#[derive(Clone, Debug)]
pub(crate) struct StatelessRequest {
    pub(crate) method: &'static str,
    pub(crate) params: Value,
    pub(crate) version: &'static str,
    pub(crate) capabilities: Value,
    /// Headers that differ from the required ones; an empty value leaves the header out.
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl StatelessRequest {
    pub(crate) fn new(method: &'static str, params: Value) -> Self {
        Self {
            method,
            params,
            version: MODERN,
            capabilities: json!({}),
            headers: Vec::new(),
        }
    }

    /// A tool call.
    pub(crate) fn tool(name: &str, arguments: Value) -> Self {
        Self::new("tools/call", json!({"name": name, "arguments": arguments}))
    }

    /// Declares support for the Tasks extension.
    pub(crate) fn with_tasks(mut self) -> Self {
        self.capabilities = json!({"extensions": {TASKS: {}}});
        self
    }

    fn message(&self) -> Value {
        static IDS: AtomicU64 = AtomicU64::new(100);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let mut params = self.params.clone();
        params["_meta"] = json!({
            format!("{META}protocolVersion"): self.version,
            format!("{META}clientInfo"): {"name": "test", "version": "1"},
            format!("{META}clientCapabilities"): self.capabilities,
        });
        json!({"jsonrpc": "2.0", "id": id, "method": self.method, "params": params})
    }

    fn header_lines(&self) -> String {
        let params = &self.params;
        let name = params["name"].as_str().or(params["taskId"].as_str());
        let mut headers = vec![
            ("MCP-Protocol-Version", self.version.to_owned()),
            ("Mcp-Method", self.method.to_owned()),
            ("Mcp-Name", name.unwrap_or_default().to_owned()),
        ];
        for (name, value) in &self.headers {
            headers.retain(|(other, _)| other != name);
            headers.push((name, value.clone()));
        }
        let lines = headers.iter().filter(|(_, value)| !value.is_empty());
        lines
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect()
    }
}

impl McpDoor {
    /// Starts the server.
    pub(crate) async fn open(user: &TestUser, kind: DoorKind, flags: &[&str]) -> Self {
        let mut command = user.command(["mcp"]);
        command.args(flags);
        match kind {
            DoorKind::Http => {
                command.args(["--http", "127.0.0.1:0"]);
                Self::Http(Server::of(&mut command).await)
            }
            DoorKind::Stdio => {
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
                let mut server = command.spawn().unwrap();
                Self::Stdio(StdioDoor {
                    stdin: server.stdin.take().unwrap(),
                    lines: BufReader::new(server.stdout.take().unwrap()).lines(),
                    server,
                })
            }
        }
    }

    /// Kills the server.
    pub(crate) async fn kill(self) {
        let mut child = match self {
            Self::Stdio(door) => door.server,
            Self::Http(server) => server.child,
        };
        within_timeout(child.kill()).await.unwrap();
    }

    /// Ends the server as a client does that leaves.
    pub(crate) async fn leave(self) {
        match self {
            Self::Stdio(StdioDoor {
                mut server, stdin, ..
            }) => {
                drop(stdin);
                assert!(within_timeout(server.wait()).await.unwrap().success());
            }
            Self::Http(mut server) => server.kill().await,
        }
    }

    /// Sends a stateless request.
    pub(crate) async fn ask(&mut self, request: StatelessRequest) -> Reply {
        let headers = request.header_lines();
        self.exchange(&request.message(), &headers).await.0
    }

    /// Sends a message and waits for its response. Returns the response's head as well.
    pub(crate) async fn exchange(&mut self, message: &Value, headers: &str) -> (Reply, String) {
        match self {
            Self::Stdio(door) => (door.exchange(message).await, String::new()),
            Self::Http(server) => post(&server.url, message, headers).await,
        }
    }

    /// Calls a tool of a client without tasks, and returns its structured output.
    pub(crate) async fn call(&mut self, name: &str, arguments: Value) -> Value {
        let reply = self.ask(StatelessRequest::tool(name, arguments)).await;
        let result = reply.result();
        assert_eq!(result["isError"], json!(false), "{result}");
        result["structuredContent"].clone()
    }

    /// Starts a command as a task, and returns the task.
    pub(crate) async fn start_task(&mut self, arguments: Value) -> Value {
        let request = StatelessRequest::tool("exec_command", arguments).with_tasks();
        let task = self.ask(request).await.result().clone();
        assert_eq!(task["resultType"], "task", "{task}");
        task
    }

    /// Sends a request about a task.
    pub(crate) async fn task(&mut self, method: &'static str, id: &Value) -> Reply {
        let mut params = json!({"taskId": id});
        if method == "tasks/update" {
            params["inputResponses"] = json!({});
        }
        self.ask(StatelessRequest::new(method, params).with_tasks())
            .await
    }

    /// Polls a task until it is not working, and returns it.
    pub(crate) async fn ended_task(&mut self, id: &Value) -> Value {
        let poll = async {
            loop {
                let task = self.task("tasks/get", id).await.result().clone();
                assert_eq!(task["resultType"], "complete", "{task}");
                assert_eq!(task["taskId"], *id, "{task}");
                if task["status"] != "working" {
                    return task;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        within_timeout(poll).await
    }
}

impl StdioDoor {
    async fn exchange(&mut self, message: &Value) -> Reply {
        let line = format!("{message}\n");
        within_timeout(self.stdin.write_all(line.as_bytes()))
            .await
            .unwrap();
        loop {
            let line = within_timeout(self.lines.next_line()).await.unwrap();
            let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if answer["id"] == message["id"] {
                return Reply {
                    status: 0,
                    message: answer,
                };
            }
        }
    }
}

/// Posts a message on a connection of its own, and returns the last message of the response.
async fn post(url: &str, message: &Value, headers: &str) -> (Reply, String) {
    let authority = url.strip_prefix("http://").unwrap();
    let authority = authority.strip_suffix("/mcp").unwrap();
    let body = message.to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\
         Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(authority).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    within_timeout(stream.read_to_string(&mut text))
        .await
        .unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    // A body is one JSON object, or a stream of events, in chunks.
    let lines = body.lines();
    let json = lines.map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let messages = json.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut messages = messages.rev();
    let message = messages.find(Value::is_object);
    let reply = Reply {
        status,
        message: message.unwrap_or(Value::Null),
    };
    (reply, head.to_ascii_lowercase())
}
