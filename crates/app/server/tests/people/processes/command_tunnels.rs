//! Tests of `run --tunnel`.

use std::fs;

use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
};

use crate::{
    processes::{RunningCommand, terminal_window::TerminalWindow},
    test_user::{OutputSoon, TestUser, within_timeout},
};

/// Serves a page whose script the server makes: it tries to reach a port of the host's loopback and
/// says how that ended.
const WEB_SERVER: &str = r#"
import http.server, socket, sys

PAGE = b"<!doctype html><title>page</title><body><script src='/egress.js'></script></body>"

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        if self.path == "/":
            kind, body = "text/html", PAGE
        elif self.path == "/egress.js":
            try:
                socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
                egress = "open"
            except OSError as error:
                egress = type(error).__name__
            text = f"document.body.textContent = 'sum ' + (40 + 2) + ', egress {egress}'"
            kind, body = "text/javascript", text.encode()
        else:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler).serve_forever()
"#;

/// Returns the URL at the end of a notice.
fn url(notice: &str) -> &str {
    let (_, url) = notice.rsplit_once(" is at ").unwrap();
    url
}

fn authority(url: &str) -> &str {
    url.strip_prefix("http://").unwrap()
}

#[tokio::test]
async fn browser_opens_a_server_in_a_sandbox_without_network_and_its_egress_is_refused() {
    let user = TestUser::new();
    let outside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = outside.local_addr().unwrap().port().to_string();
    let line = [
        "run",
        "--sandbox",
        "read-only",
        "--tunnel",
        "auto",
        "--",
        "python3",
        "-c",
    ];
    let line = line.into_iter().chain([WEB_SERVER, &port]);
    let mut running = RunningCommand::start(&mut user.command(line));
    let notice = running.told().await;
    assert!(notice.contains("(python3"), "{notice}");
    let profile = user.home().join("profile");
    let mut browser = user.program(
        "chromium".as_ref(),
        [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            &format!("--user-data-dir={}", profile.display()),
            "--dump-dom",
            url(&notice),
        ],
    );
    let shown = browser.output_soon().await;
    let body = "<body>sum 42, egress ConnectionRefusedError</body>";
    assert!(shown.stdout.contains(body), "{shown:?}");
    let reached = tokio::time::timeout(std::time::Duration::ZERO, outside.accept()).await;
    assert!(reached.is_err(), "the sandbox reached {reached:?}");
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end().await.0.code(), Some(143));
    TcpStream::connect(authority(url(&notice)))
        .await
        .unwrap_err();
}

/// Listens on a port, says hello to one connection, and exits.
const HELLO: &str = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); \
    print('listening', flush=True); c, _ = s.accept(); c.sendall(b'hello'); c.close(); print('bye')";

/// Expects hello at a URL, and returns its port.
async fn hello(url: &str) -> u16 {
    let mut stream = TcpStream::connect(authority(url)).await.unwrap();
    let mut text = String::new();
    within_timeout(stream.read_to_string(&mut text))
        .await
        .unwrap();
    assert_eq!(text, "hello");
    stream.peer_addr().unwrap().port()
}

#[tokio::test]
async fn tunnel_of_a_remote_command_opens_with_it_and_closes_with_it() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let line = [
        "run",
        "-E",
        &server.url,
        "--sandbox",
        "read-only",
        "--tunnel",
    ];
    let line = line
        .into_iter()
        .chain(["0:3000", "python3", "-c", HELLO, "3000"]);
    let mut running = RunningCommand::start(&mut user.command(line));
    let notice = running.told().await;
    assert!(
        notice.starts_with("exec-server: port 3000 is at http://127.0.0.1:"),
        "{notice}"
    );
    running.says("listening").await;
    hello(url(&notice)).await;
    running.says("bye").await;
    let (status, output) = running.end().await;
    assert_eq!((status.code(), output.as_str()), (Some(0), ""));
    TcpStream::connect(authority(url(&notice)))
        .await
        .unwrap_err();
}

#[tokio::test]
async fn port_on_this_machine_is_announced_as_it_is() {
    let user = TestUser::new();
    let line = ["run", "--tunnel", "auto", "python3", "-c", HELLO, "0"];
    let mut running = RunningCommand::start(&mut user.command(line));
    running.says("listening").await;
    let notice = running.told().await;
    // It leads to the command itself: no tunnel is necessary.
    let port = hello(url(&notice)).await;
    assert!(notice.contains(&format!("port {port} (python")), "{notice}");
    assert_eq!(running.end().await.0.code(), Some(0));
}

#[tokio::test]
async fn notice_has_a_line_of_its_own_on_a_terminal_in_raw_mode() {
    let user = TestUser::new().with("TERM", "xterm");
    let script = "import socket, sys; sys.stdout.write('prompt> '); sys.stdout.flush(); \
        s = socket.create_server(('127.0.0.1', 0)); input()";
    let line = ["run", "-t", "--tunnel", "auto", "python3", "-c", script];
    let mut window = TerminalWindow::open(&user.command(line), (24, 100));
    window.shows("prompt> \r\nexec-server: port ").await;
    let rest = window.shows("\r\n").await;
    assert!(rest.contains(" is at http://127.0.0.1:"), "{rest}");
    window.types("\r");
    assert_eq!(window.end().await.code(), Some(0));
}

#[tokio::test]
async fn tunnel_of_a_detached_command_is_refused() {
    let user = TestUser::new();
    let refused = user
        .run(["run", "--detach", "--tunnel", "auto", "true"])
        .await;
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("--detach"), "{refused:?}");
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let file = user.work().join("started");
    let spec = format!("{port}:3000");
    let line = ["run", "--tunnel", &spec, "touch", file.to_str().unwrap()];
    user.run(line).await.failed(1, &["in use", "`0:3000`"]);
    assert!(!fs::exists(file).unwrap());
}
