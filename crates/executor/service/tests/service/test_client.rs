//! Server and client of the tests. The client sends raw messages over a memory link.

use std::{io, num::NonZeroUsize, sync::Arc, time::Duration};

use exec_core::output_log::RetentionLimits;
use exec_env::environment::{Command, NetworkPolicyHook, StartError};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_test_support::{fake_environment::FakeBackend, fake_process::FakeProcess};
use exec_transport::{
    link::{DataEncoding, Link, Principal},
    memory,
};
use exec_wire::{initialize::ServerInfo, limits, outgoing_message::OutgoingMessage};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Time limit of every wait. The clock is paused, so this costs no real time.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A service on a fake environment, and the commands started on it.
pub(crate) struct Server {
    pub(crate) service: Service,
    backend: Arc<FakeBackend>,
    /// Number of started commands that the test has seen.
    seen_starts: usize,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with_ttl(limits::SESSION_TTL)
    }

    /// Creates a server with this session TTL.
    pub(crate) fn with_ttl(session_ttl: Duration) -> Self {
        Self::with_retention(session_ttl, limits::CLOSED_RETENTION)
    }

    /// Creates a server with this session TTL and retention of finished processes.
    pub(crate) fn with_retention(session_ttl: Duration, process_retention: Duration) -> Self {
        let config = ServiceConfig {
            session_ttl,
            process_retention,
            max_processes: limits::MAX_PROCESSES,
            allow_direct_exec: true,
            allow_prepared_exec: true,
            concurrency: Concurrency::AtMost(NonZeroUsize::MIN),
            busy_poll: Duration::ZERO,
            durability: None,
            server_name: ServerInfo {
                name: "fake".to_owned(),
                version: "0.0.0".to_owned(),
            },
        };
        let backend = Arc::new(FakeBackend::default());
        backend.on_start(start_fake);
        let session_backend = Arc::clone(&backend);
        Self {
            service: Service::new(config, move || session_backend.environment()),
            backend,
            seen_starts: 0,
        }
    }

    /// Returns the number of sessions in memory.
    pub(crate) fn sessions(&self) -> usize {
        // Three references are not sessions: this field, the open function and the table of
        // detached processes.
        Arc::strong_count(&self.backend) - 3
    }

    /// Connects a client, and resumes a session if one is given.
    pub(crate) async fn connect(&self, resume: Option<&Value>) -> Client {
        self.connect_with(resume, &[]).await
    }

    /// Connects a client with extensions, all of which must be granted.
    pub(crate) async fn connect_with(&self, resume: Option<&Value>, extensions: &[&str]) -> Client {
        self.open(resume, extensions, None).await
    }

    /// Connects a client with an authenticated principal.
    pub(crate) async fn connect_as(&self, principal: Option<Principal>) -> Client {
        self.open(None, &[], principal).await
    }

    async fn open(
        &self,
        resume: Option<&Value>,
        extensions: &[&str],
        principal: Option<Principal>,
    ) -> Client {
        let (client, mut server) = memory::pair();
        server.principal = principal;
        let service = self.service.clone();
        tokio::spawn(async move { service.serve(server).await });
        let mut client = Client {
            link: client,
            session: Value::Null,
            session_ttl_ms: Value::Null,
        };
        let params =
            json!({"clientName": "test", "resumeSessionId": resume, "extensions": extensions});
        let response = client.call("initialize", &params).await;
        assert_eq!(
            response["result"]["extensions"],
            json!(extensions),
            "{response}"
        );
        client.session = response["result"]["sessionId"].clone();
        client.session_ttl_ms = response["result"]["sessionTtlMs"].clone();
        client.send(json!({"method": "initialized"})).await;
        client
    }

    /// Waits for the next started command.
    pub(crate) async fn started(&mut self) -> StartedCommand {
        let started = self.backend.started(self.seen_starts);
        let (command, process) = timeout(TIMEOUT, started).await.unwrap();
        self.seen_starts += 1;
        StartedCommand { command, process }
    }

    /// Starts a process on a client's connection.
    pub(crate) async fn start(&mut self, client: &mut Client, params: &Value) -> StartedCommand {
        let response = client.call("process/start", params).await;
        assert_eq!(
            response["result"]["processId"], params["processId"],
            "{response}"
        );
        self.started().await
    }
}

/// Retention of a process without a hold.
pub(crate) const RETAINED_BYTES: usize = 4096;

/// Fails to start the program `fail`. Other processes end only when the test ends them.
fn start_fake(command: &Command) -> Result<FakeProcess, StartError> {
    if command.argv[0] == "fail" {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let context = "cannot start `fail`".to_owned();
        return Err(StartError::Spawn { context, source });
    }
    let process = FakeProcess::default();
    process.limit_retention(RetentionLimits {
        bytes: RETAINED_BYTES,
        chunks: 50_000,
    });
    process.ignore_termination();
    Ok(process)
}

/// A command that the service started.
pub(crate) struct StartedCommand {
    pub(crate) command: Command,
    pub(crate) process: FakeProcess,
}

impl StartedCommand {
    pub(crate) fn watcher(&self) -> &Arc<dyn NetworkPolicyHook> {
        let hook = self.command.network.policy_hook.as_ref();
        hook.expect("process has a network watcher")
    }
}

/// Writes this many chunks of 1 KiB. Returns the last sequence number.
pub(crate) fn write_chunks(process: &FakeProcess, chunks: usize) -> u64 {
    (0..chunks).fold(0, |_, _| process.print([b'x'; 1024]).unwrap().0)
}

/// Ends a process and its output. Returns the sequence number of the close.
pub(crate) fn end(process: &FakeProcess) -> u64 {
    process.exit(0);
    process.close().0
}

/// Client end of a connection.
pub(crate) struct Client {
    link: Link,
    pub(crate) session: Value,
    pub(crate) session_ttl_ms: Value,
}

impl Client {
    pub(crate) async fn send(&mut self, message: Value) {
        let text = message.to_string().into_bytes();
        self.link
            .writer
            .push(OutgoingMessage::Text(text), DataEncoding::Text);
        self.link.writer.flush().await.unwrap();
    }

    /// Receives the next message.
    pub(crate) async fn receive(&mut self) -> Value {
        let message = timeout(TIMEOUT, self.link.reader.next())
            .await
            .expect("no message before the timeout");
        serde_json::from_slice(&message.unwrap().unwrap()).unwrap()
    }

    /// Receives the next message, which must be a network policy request.
    pub(crate) async fn expect_policy_request(&mut self) -> Value {
        let message = self.receive().await;
        assert_eq!(message["method"], "network/policyRequest", "{message}");
        message
    }

    /// Sends a request and receives its response, which must be the next message.
    pub(crate) async fn call(&mut self, method: &str, params: &Value) -> Value {
        self.send(json!({"id": "call", "method": method, "params": params}))
            .await;
        let answer = self.receive().await;
        assert_eq!(answer["id"], "call", "{answer}");
        answer
    }
}

/// Start parameters with a network proxy.
pub(crate) fn params(id: &str, timeout_ms: Option<u64>) -> Value {
    json!({
        "processId": id, "argv": ["true"], "cwd": "file:///", "env": {}, "tty": false,
        "networkProxy": {
            "proxy": {
                "enabled": true, "enableSocks5": false, "enableSocks5Udp": false,
                "allowUpstreamProxy": false, "dangerouslyAllowAllUnixSockets": false,
                "allowLocalBinding": false, "mode": "full",
            },
            "policyDecisionTimeoutMs": timeout_ms,
        },
    })
}

/// Returns whether the command has a network proxy.
pub(crate) fn has_proxy(command: &Command) -> bool {
    command.network.proxy.is_some()
}
