//! A server, its client, and an origin on the host's loopback for processes to reach.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::process::geteuid;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    client::{Client, Events, argv_params, encode, with},
    server::{Server, Transport, program},
};

/// An account without privileges, wherever there are accounts.
const NOBODY: u32 = 65534;

/// What a process has reached when it prints this.
pub(crate) const HELLO: &str = "hello from the origin";

/// Functions for the scripts: each asks for a page and prints all that comes back.
///
/// `say PORT BYTES` writes to a port of the loopback, `get HOST:PORT` asks the HTTP proxy, `tunnel
/// HOST:PORT` asks it by CONNECT, and `socks HOST PORT` prints the twelve bytes that a SOCKS5 proxy
/// answers, and then what comes.
const FUNCTIONS: &str = r#"
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

/// Puts the server into a network where nothing is up, with a host file of ours.
const APART: &str = r#"printf '%s\n' '127.0.0.1 localhost' '127.0.0.1 rebound.test' '10.9.8.7 inner.test' \
        '11.22.33.44 public.test' '10.9.8.7 mixed.test' '11.22.33.44 mixed.test' >hosts
    [ "$(id -u)" = 0 ] || own=-r
    exec unshare $own -nm sh -c 'mount --bind hosts /etc/hosts && exec "$0" "$@"' "$0" "$@""#;

/// What a test of the network works on.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) session: String,
    pub(crate) origin: Origin,
    runs: u32,
    /// Messages that came while another was looked for.
    aside: Vec<Value>,
}

impl Stage {
    /// Starts a server as whoever runs the tests.
    pub(crate) async fn new() -> Self {
        Self::on(Server::start(Transport::WebSocket, &[]).await).await
    }

    /// Starts a server as somebody without privileges.
    pub(crate) async fn ordinary() -> Self {
        if !geteuid().is_root() {
            return Self::new().await;
        }
        Self::on(Server::start_as(NOBODY, Transport::WebSocket, &[]).await).await
    }

    /// Starts a server that reaches nobody: there is not even a loopback. It knows some names:
    /// `rebound.test` is on the loopback, `inner.test` in a private network, `public.test` is not, and
    /// `mixed.test` is in both.
    pub(crate) async fn apart() -> Self {
        Self::on(Server::start_by(APART, Transport::Unix, &[]).await).await
    }

    async fn on(mut server: Server) -> Self {
        let mut client = server.connect().await;
        let session = client.handshake().await;
        Self {
            server,
            client,
            session,
            origin: Origin::new().await,
            runs: 0,
            aside: Vec::new(),
        }
    }

    /// Params that run a script with the functions, and have some more members.
    pub(crate) fn script(&mut self, script: &str, more: Value) -> Value {
        self.argv(&["bash", "-c", &format!("{FUNCTIONS}{script}")], more)
    }

    /// Params that run a probe of `exec-hostile`, and have some more members.
    pub(crate) fn probe(&mut self, args: &[&str], more: Value) -> Value {
        let probe = program("exec-hostile");
        let mut argv = vec![probe.to_str().unwrap()];
        argv.extend(args);
        self.argv(&argv, more)
    }

    fn argv(&mut self, argv: &[&str], more: Value) -> Value {
        self.runs += 1;
        with(argv_params(&format!("run-{}", self.runs), argv), more)
    }

    /// Starts what params say; returns the id.
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

    /// Waits for the end of a process, which must have asked nothing; returns what it told.
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

    /// Waits for a process to be closed, whatever it told before.
    pub(crate) async fn end(&mut self, id: &str) {
        self.next(|message| {
            message["method"] == "process/closed" && message["params"]["processId"] == id
        })
        .await;
    }

    /// Lets a process that waits for a line go on.
    pub(crate) async fn go(&mut self, id: &str) {
        self.runs += 1;
        let write =
            json!({"processId": id, "chunk": encode(b"\n"), "writeId": self.runs.to_string()});
        let result = self.client.call("process/write", write).await;
        assert_eq!(result, json!({"status": "accepted"}));
    }

    /// Runs what params say; returns what it writes, standard error after standard output.
    pub(crate) async fn run(&mut self, params: Value) -> String {
        let id = self.start(params).await;
        self.text(&id).await
    }

    /// Waits for the end of a process; returns what it wrote, standard error after standard output.
    pub(crate) async fn text(&mut self, id: &str) -> String {
        let events = self.finish(id).await;
        events.stdout() + &events.stream("stderr")
    }

    /// Waits for a question of the server's; returns its id and what is asked.
    pub(crate) async fn question(&mut self) -> (Value, Value) {
        let mut message = self
            .next(|message| message["method"] == "network/policyRequest")
            .await;
        assert_eq!(message.as_object().unwrap().len(), 3, "{message}");
        (message["id"].take(), message["params"].take())
    }

    /// Answers a question with a decision.
    pub(crate) async fn decide(&mut self, id: &Value, decision: Value) {
        let answer = json!({"id": id, "result": {"decision": decision}});
        self.client.send(&answer.to_string()).await;
    }

    /// Returns the records of a process, as far as the server has sent them by now.
    pub(crate) async fn records(&mut self, id: &str) -> Vec<Value> {
        let barrier = self.client.request("environment/status", json!({})).await;
        self.next(|message| message["id"] == barrier && message.get("method").is_none())
            .await;
        let wanted = |message: &mut Value| {
            message["method"] == "network/policyDecision" && message["params"]["processId"] == id
        };
        let records = self.aside.extract_if(.., wanted);
        records.map(|mut record| record["params"].take()).collect()
    }

    /// Returns the only record of a process, as far as the server has sent them by now.
    pub(crate) async fn record(&mut self, id: &str) -> Value {
        let mut records = self.records(id).await;
        assert_eq!(records.len(), 1, "{records:?}");
        records.remove(0)
    }

    /// Asks for a start that is refused; the message contains each of the words, and nothing runs.
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

    async fn next(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(index) = self.aside.iter().position(&wanted) {
            return self.aside.remove(index);
        }
        loop {
            let message = self.client.recv().await;
            if wanted(&message) {
                return message;
            }
            self.aside.push(message);
        }
    }
}

/// Serves a page on the host's loopback, and counts who asks for it.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) port: u16,
    visits: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Origin {
    /// Listens at a free port.
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let visits = Arc::new(AtomicUsize::new(0));
        let (mut tasks, counter) = (JoinSet::new(), Arc::clone(&visits));
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
            visits,
            _tasks: tasks,
        }
    }

    /// Returns where it is, as a client names it.
    pub(crate) fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Tells how many connections there were.
    pub(crate) fn visits(&self) -> usize {
        self.visits.load(Ordering::Relaxed)
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
    // The client may be gone.
    drop(stream.write_all(text.as_bytes()).await);
}

/// `networkProxy` with rules for hosts.
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

/// `networkProxy` with rules for hosts, that asks about others.
pub(crate) fn asking(domains: Value) -> Value {
    with(proxy(domains), json!({"policyDecisionTimeoutMs": 60_000}))
}

/// `sandbox` where all files are read and none is written.
pub(crate) fn sandbox(network: &str) -> Value {
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let files = json!({"type": "restricted", "entries": [root]});
    profile(json!({"type": "managed", "file_system": files, "network": network}))
}

/// `sandbox` with permissions.
pub(crate) fn profile(permissions: Value) -> Value {
    json!({
        "permissions": permissions, "cwd": "file:///", "workspaceRoots": [],
        "windowsSandboxLevel": "disabled", "windowsSandboxProxySettingsMode": "reconcile",
    })
}

/// A sandbox from which only a proxy is reached.
pub(crate) fn managed(proxy: Value) -> Value {
    json!({
        "sandbox": sandbox("restricted"), "enforceManagedNetwork": true, "networkProxy": proxy,
        "managedNetwork": {"loopbackPorts": [], "allowLocalBinding": false},
    })
}

/// Makes each case a named test as whoever runs the tests, and as somebody without privileges.
macro_rules! as_every_user {
    ($($case:ident),+ $(,)?) => {
        $crate::network::stage::as_user!(same, new; $($case),+);
        $crate::network::stage::as_user!(ordinary, ordinary; $($case),+);
    };
}

macro_rules! as_user {
    ($module:ident, $make:ident; $($case:ident),+) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(&mut $crate::network::stage::Stage::$make().await).await;
                }
            )+
        }
    };
}

/// Makes each case a named test as whoever runs the tests.
macro_rules! as_one_user {
    ($($case:ident),+ $(,)?) => {
        $crate::network::stage::as_user!(once, new; $($case),+);
    };
}

pub(crate) use {as_every_user, as_one_user, as_user};
