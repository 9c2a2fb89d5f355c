//! A client that is played by the test.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use exec_env::{
    catalog::NoCatalog, command::Command, environment::Environment, http::NoHttpClient,
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::{
    link::{Encoding, Link, Principal},
    memory,
};
use exec_wire::{initialize::ServerName, limits, outgoing::Outgoing};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use crate::fake_environment::{Fake, NoFiles, Started};

/// How long anything may take. Time is the test's own.
const LIMIT: Duration = Duration::from_secs(600);

/// A service, and what is started on it.
pub(crate) struct Server {
    pub(crate) service: Service,
    started: mpsc::UnboundedReceiver<Started>,
    sessions: Arc<()>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with_ttl(limits::SESSION_TTL)
    }

    /// Makes one whose sessions live as long as this without a connection.
    pub(crate) fn with_ttl(session_ttl: Duration) -> Self {
        Self::with_times(session_ttl, limits::CLOSED_RETENTION)
    }

    /// The same, and finished processes stay readable for `process_retention`.
    pub(crate) fn with_times(session_ttl: Duration, process_retention: Duration) -> Self {
        let config = ServiceConfig {
            session_ttl,
            process_retention,
            max_processes: limits::MAX_PROCESSES,
            allow_direct_exec: true,
            allow_prepared_exec: true,
            concurrency: Concurrency::AtMost(NonZeroUsize::MIN),
            attention: Duration::ZERO,
            server: ServerName {
                name: "fake".to_owned(),
                version: "0.0.0".to_owned(),
            },
        };
        let (tell, started) = mpsc::unbounded_channel();
        let sessions = Arc::new(());
        let held = Arc::clone(&sessions);
        let service = Service::new(config, move || Environment {
            backend: Arc::new(Fake {
                tell: tell.clone(),
                _session: Arc::clone(&held),
            }),
            files: Arc::new(NoFiles),
            http: Arc::new(NoHttpClient),
            catalog: Arc::new(NoCatalog),
        });
        Self {
            service,
            started,
            sessions,
        }
    }

    /// Returns how many sessions are in memory.
    pub(crate) fn sessions(&self) -> usize {
        // Beside them it is here, with whoever opens them, and in the table of detached processes.
        Arc::strong_count(&self.sessions) - 3
    }

    /// Connects a client, and resumes a session if one is named.
    pub(crate) async fn connect(&self, resume: Option<&Value>) -> Client {
        self.connect_with(resume, &[]).await
    }

    /// The same, with extensions, which must be granted.
    pub(crate) async fn connect_with(&self, resume: Option<&Value>, wanted: &[&str]) -> Client {
        self.open(resume, wanted, None).await
    }

    /// Connects a client that has proved to have this name.
    pub(crate) async fn connect_as(&self, principal: Option<Principal>) -> Client {
        self.open(None, &[], principal).await
    }

    async fn open(
        &self,
        resume: Option<&Value>,
        wanted: &[&str],
        principal: Option<Principal>,
    ) -> Client {
        let (here, mut there) = memory::pair();
        there.principal = principal;
        let service = self.service.clone();
        tokio::spawn(async move { service.serve(there).await });
        let mut client = Client {
            link: here,
            session: Value::Null,
            session_ttl_ms: Value::Null,
        };
        let params = json!({"clientName": "test", "resumeSessionId": resume, "extensions": wanted});
        let response = client.call("initialize", &params).await;
        assert_eq!(
            response["result"]["extensions"],
            json!(wanted),
            "{response}"
        );
        client.session = response["result"]["sessionId"].clone();
        client.session_ttl_ms = response["result"]["sessionTtlMs"].clone();
        client.say(json!({"method": "initialized"})).await;
        client
    }

    /// Takes the last command that was started.
    pub(crate) async fn started(&mut self) -> Started {
        timeout(LIMIT, self.started.recv()).await.unwrap().unwrap()
    }

    /// Starts a process on a client's connection.
    pub(crate) async fn start(&mut self, client: &mut Client, params: &Value) -> Started {
        let response = client.call("process/start", params).await;
        assert_eq!(
            response["result"]["processId"], params["processId"],
            "{response}"
        );
        self.started().await
    }
}

/// The test's end of a connection.
pub(crate) struct Client {
    link: Link,
    pub(crate) session: Value,
    pub(crate) session_ttl_ms: Value,
}

impl Client {
    pub(crate) async fn say(&mut self, message: Value) {
        let text = message.to_string().into_bytes();
        self.link.writer.push(Outgoing::Text(text), Encoding::Text);
        self.link.writer.flush().await.unwrap();
    }

    /// Takes the next message.
    pub(crate) async fn hear(&mut self) -> Value {
        let message = timeout(LIMIT, self.link.reader.next())
            .await
            .expect("a message comes");
        serde_json::from_slice(&message.unwrap().unwrap()).unwrap()
    }

    /// Takes the next message, which must be a question.
    pub(crate) async fn asked(&mut self) -> Value {
        let message = self.hear().await;
        assert_eq!(message["method"], "network/policyRequest", "{message}");
        message
    }

    /// Asks the server something, and takes the next message for the answer.
    pub(crate) async fn call(&mut self, method: &str, params: &Value) -> Value {
        self.say(json!({"id": "call", "method": method, "params": params}))
            .await;
        let answer = self.hear().await;
        assert_eq!(answer["id"], "call", "{answer}");
        answer
    }
}

/// Params of a start with a proxy that asks.
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

/// What was asked for of the network.
pub(crate) fn has_proxy(command: &Command) -> bool {
    command.network.proxy.is_some()
}
