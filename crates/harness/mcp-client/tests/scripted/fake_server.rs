//! A scripted server.

use exec_core::output_log::ExitInfo;
use exec_env::environment::StartError;
use exec_mcp_client::config::McpServerConfig;
use exec_test_support::{
    bounded_wait::within,
    fake_environment::FakeBackend,
    fake_process::{FakeProcess, ProcessCall, exit_info},
};
use exec_wire::{id::ProcessId, process::OutputStream};
use serde_json::{Value, json};

/// The server's side.
pub(crate) struct FakeServer {
    pub(crate) process: FakeProcess,
    /// Number of calls that the server has seen.
    seen_calls: usize,
    partial: Vec<u8>,
}

pub(crate) fn config() -> McpServerConfig {
    McpServerConfig::new("fake", "fake-server", "file:///".parse().unwrap())
}

pub(crate) fn id() -> ProcessId {
    ProcessId::new("mcp").unwrap()
}

/// Returns a server that does not end when it is terminated, and the backend that starts it once.
pub(crate) fn pair() -> (FakeServer, FakeBackend) {
    let process = FakeProcess::default();
    process.ignore_termination();
    let backend = FakeBackend::default();
    let mut only = Some(process.clone());
    backend.on_start(move |_| only.take().ok_or(StartError::Cancelled));
    let server = FakeServer {
        process,
        seen_calls: 0,
        partial: Vec::new(),
    };
    (server, backend)
}

impl FakeServer {
    pub(crate) async fn next_call(&mut self) -> ProcessCall {
        let call = self.process.call(self.seen_calls);
        self.seen_calls += 1;
        within("the server is called", call).await
    }

    /// Waits for the next message.
    pub(crate) async fn next_message(&mut self) -> Value {
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                return serde_json::from_slice(&line).unwrap();
            }
            let ProcessCall::Write(data) = self.next_call().await else {
                panic!("expected data: {:?}", self.process.calls());
            };
            self.partial.extend(data);
        }
    }

    /// Waits for a request with this method and returns its id.
    pub(crate) async fn expect_request(&mut self, method: &str) -> Value {
        let message = self.next_message().await;
        assert_eq!(message["method"], method, "{message}");
        message["id"].clone()
    }

    pub(crate) fn send(&self, message: &Value) {
        self.write_stdout(format!("{message}\n").as_bytes());
    }

    pub(crate) fn respond(&self, id: &Value, result: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    /// Completes the handshake.
    pub(crate) async fn complete_handshake(&mut self) {
        let id = self.expect_request("initialize").await;
        self.respond(&id, &initialized());
        let initialized = self.next_message().await;
        assert_eq!(initialized["method"], "notifications/initialized");
    }

    pub(crate) fn write_stdout(&self, data: &[u8]) {
        self.writes(OutputStream::Stdout, data);
    }

    pub(crate) fn write_stderr(&self, text: &str) {
        self.writes(OutputStream::Stderr, text.as_bytes());
    }

    fn writes(&self, stream: OutputStream, data: &[u8]) {
        let written = self.process.print_to(stream, data);
        assert!(written.is_some(), "the output is closed");
    }

    pub(crate) fn exits(&self, code: i32, signal: Option<&'static str>) {
        self.process.exit_with(ExitInfo {
            signal,
            ..exit_info(code)
        });
    }
}

pub(crate) fn initialized() -> Value {
    json!({
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "fake", "version": "0"},
    })
}
