//! The managed network of a process: its proxy, decisions, and unreachable destinations.
//!
//! Programs inside are shell functions that send plain bytes to the proxy. Destinations are servers
//! of the test on loopback. Where a decision would lead beyond, the server under test runs in an
//! empty network namespace. Sandboxes without a managed network are in `sandbox`.
//!
//! The fixture here is a server, its client, and an origin server on the host's loopback.

mod advisory_proxy;
mod bad_settings;
mod client_proxy;
mod datagrams;
mod decision_records;
mod decision_requests;
mod enforced_proxy;
mod local_addresses;
mod profiles;
mod proxy_variables;

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use exec_test_support::workspace_program::workspace_program;
use rustix::process::geteuid;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    client::{Client, Events, argv_params, encode, with},
    server::{Server, Transport},
};

/// User id without privileges on every host.
const NOBODY: u32 = 65534;

/// Page of the origin server.
pub(crate) const HELLO: &str = "hello from the origin";

/// Shell functions for the scripts: each requests a page and prints the whole response.
///
/// `say PORT BYTES` writes to a loopback port, `get HOST:PORT` uses the HTTP proxy, `tunnel
/// HOST:PORT` uses CONNECT, and `socks HOST PORT` prints the twelve bytes of the SOCKS5 replies and
/// then the response.
const SHELL_FUNCTIONS: &str = r#"
say() {
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return
    printf "$2" >&3
    cat <&3
    exec 3>&-
}
get() { say "${HTTP_PROXY##*:}" "GET http://$1/ HTTP/1.1\r\nHost: $1\r\n\r\n"; }
tunnel() {
    say "${HTTPS_PROXY##*:}" "CONNECT $1 HTTP/1.1\r\nHost: $1\r\n\r\nGET / HTTP/1.1\r\nHost: $1\r\n\r\n"
}
socks() {
    exec 3<>"/dev/tcp/127.0.0.1/${ALL_PROXY##*:}" || return
    printf '\x05\x01\x00\x05\x01\x00\x03' >&3
    printf "$(printf '\\x%02x' ${#1})$1$(printf '\\x%02x\\x%02x' $(($2 / 256)) $(($2 % 256)))" >&3
    head -c 12 <&3 | od -An -v -tx1
    printf 'GET / HTTP/1.1\r\nHost: x\r\n\r\n' >&3
    cat <&3
    exec 3>&-
}
"#;

/// Runs the server in an empty network namespace with its own hosts file.
const ISOLATED_NETWORK: &str = r#"printf '%s\n' '127.0.0.1 localhost' '127.0.0.1 rebound.test' '10.9.8.7 inner.test' \
        '11.22.33.44 public.test' '10.9.8.7 mixed.test' '11.22.33.44 mixed.test' >hosts
    [ "$(id -u)" = 0 ] || own=-r
    exec unshare $own -nm sh -c 'mount --bind hosts /etc/hosts && exec "$0" "$@"' "$0" "$@""#;

/// Server, client and origin of a network test.
#[derive(Debug)]
pub(crate) struct NetworkFixture {
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) session: String,
    pub(crate) origin: OriginServer,
    runs: u32,
    /// Messages received while waiting for another one.
    aside: Vec<Value>,
}

impl NetworkFixture {
    /// Starts a server as the current user.
    pub(crate) async fn new() -> Self {
        Self::on(Server::start(Transport::WebSocket, &[]).await).await
    }

    /// Starts a server as an unprivileged user.
    pub(crate) async fn ordinary() -> Self {
        if !geteuid().is_root() {
            return Self::new().await;
        }
        Self::on(Server::start_as(NOBODY, Transport::WebSocket, &[]).await).await
    }

    /// Starts a server in an empty network namespace without loopback. It resolves some names:
    /// `rebound.test` to loopback, `inner.test` to a private address, `public.test` to a public
    /// one, and `mixed.test` to both.
    pub(crate) async fn apart() -> Self {
        Self::on(Server::start_by(ISOLATED_NETWORK, Transport::Unix, &[]).await).await
    }

    async fn on(mut server: Server) -> Self {
        let mut client = server.connect().await;
        let session = client.handshake().await;
        Self {
            server,
            client,
            session,
            origin: OriginServer::new().await,
            runs: 0,
            aside: Vec::new(),
        }
    }

    /// Builds params that run a script with the shell functions and extra fields.
    pub(crate) fn script(&mut self, script: &str, extra: Value) -> Value {
        self.argv(
            &["bash", "-c", &format!("{SHELL_FUNCTIONS}{script}")],
            extra,
        )
    }

    /// Builds params that run a probe of `exec-hostile` with extra fields.
    pub(crate) fn probe(&mut self, args: &[&str], extra: Value) -> Value {
        let probe = workspace_program("exec-hostile");
        let mut argv = vec![probe.to_str().unwrap()];
        argv.extend(args);
        self.argv(&argv, extra)
    }

    fn argv(&mut self, argv: &[&str], extra: Value) -> Value {
        self.runs += 1;
        with(argv_params(&format!("run-{}", self.runs), argv), extra)
    }

    /// Starts a process and returns its id.
    pub(crate) async fn start(&mut self, params: Value) -> String {
        let kind = if params["sandbox"].is_null() {
            "none"
        } else {
            "linuxSeccomp"
        };
        let id = params["processId"].as_str().unwrap().to_owned();
        let result = self.client.call("process/start", params).await;
        assert_eq!(result, json!({"processId": id, "sandboxType": kind}));
        id
    }

    /// Waits for the close of a process without decision requests, and returns its events.
    pub(crate) async fn finish(&mut self, id: &str) -> Events {
        let mut events = Events::default();
        while events.closed.is_null() {
            let mut message = self
                .next(|message| {
                    let method = message["method"].as_str().unwrap_or_default();
                    message["params"]["processId"] == id && method != "network/policyDecision"
                })
                .await;
            let params = message["params"].take();
            match message["method"].as_str().unwrap() {
                "process/output" => events.output.push(params),
                "process/exited" => events.exited = params,
                "process/closed" => events.closed = params,
                other => panic!("unexpected {other}: {params}"),
            }
        }
        events
    }

    /// Waits for the close of a process.
    pub(crate) async fn end(&mut self, id: &str) {
        self.next(|message| {
            message["method"] == "process/closed" && message["params"]["processId"] == id
        })
        .await;
    }

    /// Sends a line to a waiting process.
    pub(crate) async fn go(&mut self, id: &str) {
        self.runs += 1;
        let write =
            json!({"processId": id, "chunk": encode(b"\n"), "writeId": self.runs.to_string()});
        let result = self.client.call("process/write", write).await;
        assert_eq!(result, json!({"status": "accepted"}));
    }

    /// Runs a process and returns its stdout followed by its stderr.
    pub(crate) async fn run(&mut self, params: Value) -> String {
        let id = self.start(params).await;
        self.text(&id).await
    }

    /// Waits for the close of a process and returns its stdout followed by its stderr.
    pub(crate) async fn text(&mut self, id: &str) -> String {
        let events = self.finish(id).await;
        events.stdout() + &events.stream("stderr")
    }

    /// Waits for a decision request and returns its id and params.
    pub(crate) async fn question(&mut self) -> (Value, Value) {
        let mut message = self
            .next(|message| message["method"] == "network/policyRequest")
            .await;
        assert_eq!(message.as_object().unwrap().len(), 3, "{message}");
        (message["id"].take(), message["params"].take())
    }

    /// Answers a decision request.
    pub(crate) async fn decide(&mut self, id: &Value, decision: Value) {
        let answer = json!({"id": id, "result": {"decision": decision}});
        self.client.send(&answer.to_string()).await;
    }

    /// Returns the records that the server has sent for a process so far.
    pub(crate) async fn records(&mut self, id: &str) -> Vec<Value> {
        let barrier = self.client.request("environment/status", json!({})).await;
        self.next(|message| message["id"] == barrier && message.get("method").is_none())
            .await;
        let predicate = |message: &mut Value| {
            message["method"] == "network/policyDecision" && message["params"]["processId"] == id
        };
        let records = self.aside.extract_if(.., predicate);
        records.map(|mut record| record["params"].take()).collect()
    }

    /// Returns the only record that the server has sent for a process so far.
    pub(crate) async fn record(&mut self, id: &str) -> Value {
        let mut records = self.records(id).await;
        assert_eq!(records.len(), 1, "{records:?}");
        records.remove(0)
    }

    /// Sends a start that must be refused; the message contains each of the words, and nothing
    /// runs.
    pub(crate) async fn refused(&mut self, params: Value, words: &[&str]) {
        let message = self
            .client
            .expect_error(-32602, "process/start", params.clone())
            .await;
        for word in words {
            assert!(message.contains(word), "{params}: {message} lacks {word}");
        }
        assert_eq!(
            self.client.call("process/list", json!({})).await,
            json!({"processes": []}),
            "{params}"
        );
    }

    async fn next(&mut self, predicate: impl Fn(&Value) -> bool) -> Value {
        if let Some(index) = self.aside.iter().position(&predicate) {
            return self.aside.remove(index);
        }
        loop {
            let message = self.client.recv().await;
            if predicate(&message) {
                return message;
            }
            self.aside.push(message);
        }
    }
}

/// HTTP server on the host's loopback that counts connections.
#[derive(Debug)]
pub(crate) struct OriginServer {
    pub(crate) port: u16,
    connection_count: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl OriginServer {
    /// Listens on a free port.
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connection_count = Arc::new(AtomicUsize::new(0));
        let (mut tasks, counter) = (JoinSet::new(), Arc::clone(&connection_count));
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
                open.spawn(serve(stream));
            }
        });
        Self {
            port,
            connection_count,
            _tasks: tasks,
        }
    }

    /// Returns its `host:port`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the number of connections.
    pub(crate) fn connection_count(&self) -> usize {
        self.connection_count.load(Ordering::Relaxed)
    }
}

async fn serve(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else {
            return;
        };
        head.push(byte);
    }
    let text = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{HELLO}",
        HELLO.len()
    );
    // The client may have closed.
    drop(stream.write_all(text.as_bytes()).await);
}

/// Returns a `networkProxy` with host rules.
pub(crate) fn proxy(domains: Value) -> Value {
    json!({
        "proxy": {
            "enabled": true, "enableSocks5": true, "enableSocks5Udp": true,
            "allowUpstreamProxy": false, "dangerouslyAllowAllUnixSockets": false,
            "allowLocalBinding": false, "mode": "full", "domains": domains, "unixSockets": null,
        },
        "auditMetadata": {"conversationId": "c", "model": null},
    })
}

/// Returns a `networkProxy` with host rules that asks about other hosts.
pub(crate) fn asking(domains: Value) -> Value {
    with(proxy(domains), json!({"policyDecisionTimeoutMs": 60_000}))
}

/// Returns a `sandbox` in which all files are readable and none is writable.
pub(crate) fn sandbox(network: &str) -> Value {
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let files = json!({"type": "restricted", "entries": [root]});
    profile(json!({"type": "managed", "file_system": files, "network": network}))
}

/// Returns a `sandbox` with permissions.
pub(crate) fn profile(permissions: Value) -> Value {
    json!({
        "permissions": permissions, "cwd": "file:///", "workspaceRoots": [],
        "windowsSandboxLevel": "disabled", "windowsSandboxProxySettingsMode": "reconcile",
    })
}

/// Returns start fields for a sandbox from which only a proxy is reachable.
pub(crate) fn managed(proxy: Value) -> Value {
    json!({
        "sandbox": sandbox("restricted"), "enforceManagedNetwork": true, "networkProxy": proxy,
        "managedNetwork": {"loopbackPorts": [], "allowLocalBinding": false},
    })
}

/// Makes each case a named test as the current user and as an unprivileged user.
macro_rules! as_every_user {
    ($($case:ident),+ $(,)?) => {
        $crate::network::as_user!(same, new; $($case),+);
        $crate::network::as_user!(ordinary, ordinary; $($case),+);
    };
}

macro_rules! as_user {
    ($module:ident, $make:ident; $($case:ident),+) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(&mut $crate::network::NetworkFixture::$make().await).await;
                }
            )+
        }
    };
}

/// Makes each case a named test as the current user.
macro_rules! as_one_user {
    ($($case:ident),+ $(,)?) => {
        $crate::network::as_user!(once, new; $($case),+);
    };
}

pub(crate) use {as_every_user, as_one_user, as_user};
