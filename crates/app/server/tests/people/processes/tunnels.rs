//! Tests of `tunnel` and `ports`.

use std::{io::ErrorKind, net::SocketAddr, process::Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
};

use crate::{
    processes::{RunningCommand, cuttable_link::CuttableLink, noise},
    test_user::{TestUser, within_timeout},
};

/// Returns the port of a service that sends back what it receives, and then its end.
pub(super) async fn echo_service() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                // A client may break the connection.
                drop(copy(&mut read, &mut write).await);
                drop(write.shutdown().await);
            });
        }
    });
    port
}

/// Sends data, half-closes, and returns everything that comes back.
async fn echoed(address: SocketAddr, data: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut back = Vec::new();
    let (mut read, mut write) = stream.split();
    let send = async {
        write.write_all(data).await.unwrap();
        write.shutdown().await.unwrap();
    };
    within_timeout(async { tokio::join!(send, read.read_to_end(&mut back)) })
        .await
        .1
        .unwrap();
    back
}

/// A running `tunnel --json`.
struct Tunnel {
    running: RunningCommand,
}

impl Tunnel {
    fn start(user: &TestUser, url: &str, flags: &[&str]) -> Self {
        let mut command = user.command(["tunnel", "--json", "-E", url]);
        let running = RunningCommand::start(command.args(flags));
        Self { running }
    }

    /// Waits for the next line, and returns it with the address that it names.
    async fn opened(&mut self) -> (Value, SocketAddr) {
        let line = within_timeout(self.running.lines.next_line()).await;
        let line: Value = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
        let ip = line["address"].as_str().unwrap().parse().unwrap();
        let port = line["port"].as_u64().unwrap();
        let address = SocketAddr::new(ip, port.try_into().unwrap());
        (line, address)
    }

    /// Presses Ctrl-C, and returns stderr.
    async fn interrupt(mut self) -> String {
        self.running.signal(Signal::INT);
        let (status, output) = self.running.end().await;
        assert_eq!(status.code(), Some(130), "{output}");
        output
    }
}

#[tokio::test]
async fn tunnels_lead_to_ports_of_the_environment_until_ctrl_c() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let port = echo_service().await;
    let (plain, named) = (port.to_string(), format!("0:localhost:{port}"));
    let mut tunnel = Tunnel::start(&user, &server.url, &[&plain, &named]);
    // The service itself has the port on this machine.
    let (line, first) = tunnel.opened().await;
    assert_ne!(first.port(), port);
    assert_eq!(line["direction"], "local");
    assert_eq!(line["url"], format!("http://{first}"));
    assert_eq!(
        (&line["targetHost"], &line["targetPort"]),
        (&"localhost".into(), &port.into())
    );
    let (_, second) = tunnel.opened().await;
    let data = noise(3 << 20, 7);
    for address in [first, second] {
        assert!(address.ip().is_loopback());
        assert!(echoed(address, &data).await == data);
    }
    let told = tunnel.interrupt().await;
    assert_eq!(
        told,
        format!("exec-server: port {port} is not available on this machine\n")
    );
    assert!(TcpStream::connect(first).await.is_err());
}

#[tokio::test]
async fn reverse_tunnel_leads_to_this_machine() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let port = echo_service().await;
    let spec = format!("0:localhost:{port}");
    let open = format!("0.0.0.0:{spec}");
    let mut tunnel = Tunnel::start(&user, &server.url, &["-R", &spec, "-R", &open]);
    let (line, there) = tunnel.opened().await;
    assert_eq!(line["direction"], "reverse");
    assert!(there.ip().is_loopback(), "{there}");
    // The environment is this machine.
    let data = noise(1 << 20, 8);
    assert!(echoed(there, &data).await == data);
    let (_, everywhere) = tunnel.opened().await;
    let notice = format!(
        "exec-server: everyone who reaches {everywhere} there can connect to localhost:{port}\n"
    );
    assert_eq!(tunnel.interrupt().await, notice);
}

#[tokio::test]
async fn tunnel_continues_after_disconnects_and_they_are_reported() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let wire = CuttableLink::to(&server).await;
    let spec = format!("0:{}", echo_service().await);
    let mut tunnel = Tunnel::start(&user, &wire.url, &[&spec]);
    let (_, address) = tunnel.opened().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for round in 0..3 {
        let data = noise(256 << 10, round);
        stream.write_all(&data).await.unwrap();
        wire.cut();
        let mut back = vec![0; data.len()];
        within_timeout(stream.read_exact(&mut back)).await.unwrap();
        assert!(back == data, "{round}");
    }
    let told = tunnel.interrupt().await;
    assert!(told.starts_with("exec-server: reconnecting…\n"), "{told}");
}

#[tokio::test]
async fn client_that_breaks_its_upload_does_not_end_it() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    let forth = format!("0:localhost:{port}");
    let mut tunnel = Tunnel::start(&user, &server.url, &[&forth, "-R", &forth]);
    for direction in ["local", "reverse"] {
        let (line, address) = tunnel.opened().await;
        assert_eq!(line["direction"], direction);
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut far, _) = within_timeout(service.accept()).await.unwrap();
        client.write_all(b"half").await.unwrap();
        let mut half = [0; 4];
        within_timeout(far.read_exact(&mut half)).await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
        let broken = within_timeout(far.read(&mut half)).await.unwrap_err();
        assert_eq!(broken.kind(), ErrorKind::ConnectionReset, "{direction}");
    }
    // So does the end of the command.
    let mut tunnel = Tunnel::start(&user, &server.url, &[&forth]);
    let (_, address) = tunnel.opened().await;
    let mut client = TcpStream::connect(address).await.unwrap();
    let (mut far, _) = within_timeout(service.accept()).await.unwrap();
    far.write_all(b"half").await.unwrap();
    within_timeout(client.read_exact(&mut [0; 4]))
        .await
        .unwrap();
    tunnel.interrupt().await;
    for stream in [&mut client, &mut far] {
        let broken = within_timeout(stream.read(&mut [0])).await.unwrap_err();
        assert_eq!(broken.kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn lost_session_ends_the_tunnel() {
    let user = TestUser::new();
    let (server, other) = (user.server(&[]).await, user.server(&[]).await);
    let wire = CuttableLink::to(&server).await;
    let mut tunnel = Tunnel::start(&user, &wire.url, &["0:9"]);
    tunnel.opened().await;
    wire.relay_to(&other);
    let (status, output) = tunnel.running.end().await;
    assert_eq!(status.code(), Some(75), "{output}");
    assert!(output.contains("session"), "{output}");
}

#[tokio::test]
async fn port_where_nothing_listens_is_reported_when_it_is_used() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let spec = format!("0:{port}");
    let mut tunnel = Tunnel::start(&user, &server.url, &[&spec]);
    let (_, address) = tunnel.opened().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    within_timeout(stream.read(&mut [0])).await.unwrap_err();
    let told = tunnel.running.told().await;
    let expected = format!("exec-server: localhost:{port}: nothing listens on port {port}");
    assert!(told.starts_with(&expected), "{told}");
    assert_eq!(tunnel.interrupt().await, "");
}

#[tokio::test]
async fn wrong_tunnels_are_explained() {
    let user = TestUser::new();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let named = format!("{port}:3000");
    let address = format!("127.0.0.1:{port}");
    let in_use = user.run(["tunnel", &named]).await;
    in_use.failed(1, &[&address, "in use", "`0:3000`"]);
    let there = ["-R", &format!("{port}:localhost:3000")];
    let in_use = user.run(["tunnel"].into_iter().chain(there)).await;
    in_use.failed(1, &[&port.to_string(), "in use", "`-R 0:localhost:3000`"]);
    let unknown = ["tunnel", "--process", "nothing", "3000"];
    user.run(unknown).await.failed(66, &["`nothing`", "ps"]);
    let all = user.run(["tunnel", "auto"]).await;
    all.failed(2, &["`auto`", "--process"]);
    for wrong in [&["tunnel"][..], &["tunnel", "0"], &["tunnel", "a:b:c"]] {
        assert_eq!(user.run(wrong).await.status, Some(2), "{wrong:?}");
    }
}

#[tokio::test]
async fn ports_are_listed_with_their_programs_and_processes() {
    let user = TestUser::new();
    let script = "import socket; s = socket.create_server(('127.0.0.1', 0)); \
        print(s.getsockname()[1], flush=True); s.accept()";
    let start = ["run", "-d", "--name", "service", "python3", "-c", script];
    user.run(start).await.expect_success();
    let logs = ["logs", "-f", "service"];
    let mut logs = RunningCommand::start(&mut user.command(logs));
    let port = within_timeout(logs.lines.next_line()).await.unwrap();
    let port: u16 = port.unwrap().parse().unwrap();
    for flags in [&[][..], &["--process", "serv"]] {
        let line = ["ports", "--json"].iter().chain(flags);
        let listed = user.run(line).await.expect_success();
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        let is_ours = |one: &&Value| one["port"] == port;
        let ours = listed.iter().find(is_ours).unwrap();
        assert_eq!(ours["address"], "127.0.0.1", "{ours}");
        assert_eq!(ours["processId"], "service", "{ours}");
        assert!(ours["osPid"].is_u64(), "{ours}");
        assert!(
            ours["program"].as_str().unwrap().starts_with("python"),
            "{ours}"
        );
    }
    let table = user.run(["ports"]).await.expect_success();
    let head: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["PORT", "ADDRESS", "PROCESS", "PID", "PROGRAM"]);
    let row = table
        .lines()
        .find(|line| line.starts_with(&port.to_string()))
        .unwrap();
    assert!(row.contains("service") && row.contains("python"), "{row}");
    user.run(["kill", "-9", "service"]).await.expect_success();
}

#[tokio::test]
async fn detached_server_without_network_is_reached_by_another_command() {
    let user = TestUser::new();
    let script = "import socket; s = socket.create_server(('127.0.0.1', 3000)); \
        print('ready', flush=True); c, _ = s.accept(); c.sendall(c.recv(9).upper())";
    let start = ["run", "-d", "--name", "service", "--sandbox", "read-only"];
    let start = start
        .into_iter()
        .chain(["--network=private", "python3", "-c", script]);
    user.run(start).await.expect_success();
    let logs = ["logs", "-f", "service"];
    RunningCommand::start(&mut user.command(logs))
        .says("ready")
        .await;
    let mut command = user.command(["tunnel", "--json", "--process", "service", "auto"]);
    let running = RunningCommand::start(command.stdin(Stdio::null()));
    let mut tunnel = Tunnel { running };
    let (line, address) = tunnel.opened().await;
    assert_eq!(
        (&line["targetPort"], &line["processId"]),
        (&3000.into(), &"service".into())
    );
    assert_eq!(echoed(address, b"hello").await, b"HELLO");
    tunnel.interrupt().await;
}
