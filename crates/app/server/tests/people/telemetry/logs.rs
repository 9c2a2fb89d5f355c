//! Tests of the server's logs.

use std::process::Stdio;

use exec_server::protocol;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
};

use crate::test_user::{TestUser, within_timeout};

/// A server on stdio, or without a listener, whose logs are read.
pub(super) struct StdioServer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl StdioServer {
    pub(super) fn start(command: &mut Command) -> Self {
        let mut child = command
            .env_remove("EXEC_SERVER_IDLE_EXIT")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()).lines(),
            stderr: BufReader::new(child.stderr.take().unwrap()).lines(),
            child,
        }
    }

    /// Waits for the log line with the metrics address.
    pub(super) async fn metrics_address(&mut self) -> String {
        loop {
            let line = within_timeout(self.stderr.next_line())
                .await
                .unwrap()
                .unwrap();
            if let Some((_, address)) = line.split_once("serving metrics address=") {
                return address.trim().to_owned();
            }
        }
    }

    /// Sends a message.
    pub(super) async fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        let line = format!("{line}\n");
        within_timeout(stdin.write_all(line.as_bytes()))
            .await
            .unwrap();
    }

    /// Reads messages until one contains `what`.
    pub(super) async fn hear(&mut self, what: &str) -> String {
        loop {
            let line = within_timeout(self.stdout.next_line()).await.unwrap();
            let line = line.unwrap_or_else(|| panic!("ended before {what}"));
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Stops the server, waits for it, and returns the rest of its logs.
    pub(super) async fn stop(self) -> Vec<String> {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
        self.end().await
    }

    /// Closes stdin, waits for the server, and returns the rest of its logs.
    pub(super) async fn end(mut self) -> Vec<String> {
        drop(self.stdin.take());
        let mut lines = Vec::new();
        while let Some(line) = within_timeout(self.stderr.next_line()).await.unwrap() {
            lines.push(line);
        }
        assert!(within_timeout(self.child.wait()).await.unwrap().success());
        lines
    }
}

/// Opens a session, runs a command that receives a secret, and waits for its exit. Returns the
/// session id, which is also a secret.
pub(super) async fn converse(server: &mut StdioServer, trace: &str) -> String {
    server
        .say(r#"{"id":1,"method":"initialize","params":{"clientName":"log \"reader\""}}"#)
        .await;
    let answer: Value = serde_json::from_str(&server.hear(r#""id":1"#).await).unwrap();
    let session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
    server.say(r#"{"method":"initialized"}"#).await;
    let start = r#""params":{"processId":"p-1","argv":["sh","-c","exit 3","s3cret-word"],"cwd":"file:///","env":{"PATH":"/usr/bin:/bin","TOKEN":"s3cret-value"},"tty":false}"#;
    server
        .say(&format!(
            r#"{{"id":2,"method":"process/start",{trace}{start}}}"#
        ))
        .await;
    server
        .hear(protocol::method::notification::PROCESS_CLOSED)
        .await;
    server
        .say(r#"{"id":3,"method":"process/resize","params":{"processId":"p-1","rows":0,"cols":0}}"#)
        .await;
    server.hear(r#""id":3"#).await;
    session
}

#[tokio::test]
async fn json_log_lines_describe_their_subject() {
    let user = TestUser::new();
    let flags = [
        "--listen",
        "stdio",
        "--log-format",
        "json",
        "--log-level",
        "info",
    ];
    let mut server = StdioServer::start(&mut user.command(flags));
    let secret = converse(&mut server, "").await;
    let lines = server.end().await;
    let events: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect();
    let event = |message: &str| {
        let found = events
            .iter()
            .find(|event| event["fields"]["message"] == message);
        found.unwrap_or_else(|| panic!("no {message:?} in {events:#?}"))
    };
    let opened = event("connection opened");
    assert_eq!(opened["level"], "INFO");
    assert_eq!(opened["target"], "exec_service::connection");
    assert_eq!(opened["span"]["peer"], "exec-server stdio");
    assert!(opened["timestamp"].as_str().unwrap().contains('T'));
    let session_start = event("session begun");
    assert_eq!(session_start["fields"]["client"], r#"log "reader""#);
    let session = session_start["fields"]["session"].as_str().unwrap();
    assert_eq!(session.len(), 8, "a whole one entitles to resume it");
    let started = event("process started");
    assert_eq!(started["span"]["process_id"], "p-1");
    assert_eq!(started["span"]["session"], session);
    assert_eq!(started["fields"]["process.executable.name"], "sh");
    let around = started["spans"].as_array().unwrap();
    let methods: Vec<_> = around
        .iter()
        .filter_map(|span| span["rpc.method"].as_str())
        .collect();
    assert_eq!(methods, ["process/start"]);
    assert!(around.iter().any(|span| span["name"] == "connection"));
    let ended = event("process ended");
    assert_eq!(ended["fields"]["exit_code"], 3);
    assert_eq!(ended["span"]["cause"], "exit");
    event("connection closed");
    assert!(!lines.concat().contains("s3cret"), "{lines:#?}");
    assert!(!lines.concat().contains(&secret), "{lines:#?}");
}

#[tokio::test]
async fn only_errors_are_logged_by_default() {
    let user = TestUser::new();
    let mut server = StdioServer::start(&mut user.command(["--listen", "stdio"]));
    converse(&mut server, "").await;
    assert_eq!(server.end().await, [""; 0]);
}

#[tokio::test]
async fn log_level_comes_from_variables_and_a_flag_wins() {
    let user = TestUser::new().with("RUST_LOG", "info");
    let mut server = StdioServer::start(&mut user.command(["--listen", "stdio"]));
    converse(&mut server, "").await;
    let lines = server.end().await.concat();
    assert!(lines.contains("process started"), "{lines}");

    let flags = ["--listen", "stdio", "--log-level", "warn"];
    let mut server = StdioServer::start(&mut user.command(flags));
    converse(&mut server, "").await;
    assert_eq!(server.end().await, [""; 0]);

    let wrong = user.run(["--log-level", "exec_service=loud"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
    let wrong = user.run(["--log-format", "xml"]).await;
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
}
