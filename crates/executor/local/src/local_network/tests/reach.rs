//! Where tunnels lead: the host, and networks of processes.

use super::*;

#[tokio::test]
async fn tunnel_reaches_a_server_in_a_sandbox_without_network() {
    let machine = TestMachine::new();
    let server = machine
        .start("server", &ECHO_SERVER, Confinement::OwnLoopback)
        .await;
    let port = server.port().await;
    machine.expect_echo(in_process("server", port)).await;
    let spelled = TunnelTarget {
        process: Some(ProcessId::new("server").unwrap()),
        ..at("127.0.0.1", port)
    };
    machine.expect_echo(spelled).await;
}

#[tokio::test]
async fn egress_of_a_sandbox_with_its_own_loopback_is_refused() {
    let machine = TestMachine::new();
    let outside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = outside.local_addr().unwrap().port();
    let script = format!(
        "exec 2>/dev/null; (echo > /dev/tcp/127.0.0.1/{port}) && echo connected || echo refused; \
         ls /sys/class/net; cat /proc/net/route | wc -l"
    );
    let argv = ["bash", "-c", &script];
    let client = machine
        .start("client", &argv, Confinement::OwnLoopback)
        .await;
    let lines = client.lines(2).await;
    assert_eq!(lines[0], "refused", "{lines:?}");
    let unconfined = machine.start("other", &argv, Confinement::Nothing).await;
    assert_eq!(
        unconfined.lines(1).await[0],
        "connected",
        "the listener works"
    );
}

#[tokio::test]
async fn sandbox_without_network_and_without_loopback_has_no_sockets() {
    let machine = TestMachine::new();
    let server = machine
        .start("server", &ECHO_SERVER, Confinement::NoSockets)
        .await;
    let lines = server.lines(1).await;
    assert!(lines[0].starts_with("socket: "), "{lines:?}");
}

#[tokio::test]
async fn tunnel_into_a_process_does_not_lead_to_the_host() {
    let machine = TestMachine::new();
    let outside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = outside.local_addr().unwrap().port();
    let server = machine
        .start("server", &ECHO_SERVER, Confinement::OwnLoopback)
        .await;
    let inner = server.port().await;
    let text = machine.refusal(in_process("server", port)).await;
    assert_eq!(
        text,
        format!("nothing listens on port {port} in the network of process `server`")
    );
    if inner != port {
        let text = machine.refusal(TunnelTarget::loopback(inner)).await;
        assert_eq!(
            text,
            format!("nothing listens on port {inner} of the environment")
        );
    }
}

#[tokio::test]
async fn server_on_ipv6_only_is_reached() {
    let machine = TestMachine::new();
    let script = ECHO_SERVER[2]
        .replace(
            "use Socket;",
            "use Socket qw(:DEFAULT :addrinfo inet_pton);",
        )
        .replace("AF_INET,", "AF_INET6,")
        .replace(
            "pack_sockaddr_in(0, INADDR_LOOPBACK)",
            "Socket::pack_sockaddr_in6(0, inet_pton(AF_INET6, '::1'))",
        )
        .replace("unpack_sockaddr_in(", "Socket::unpack_sockaddr_in6(");
    for confinement in [Confinement::Nothing, Confinement::OwnLoopback] {
        let argv = ["perl", "-e", &script];
        let server = machine.start("server", &argv, confinement).await;
        let port = server.port().await;
        machine.expect_echo(in_process("server", port)).await;
        server.kill().await;
    }
}

#[tokio::test]
async fn descendant_that_outlives_its_command_is_reached() {
    let machine = TestMachine::new();
    let script = format!("{} -e '{}' & exit 0", ECHO_SERVER[0], ECHO_SERVER[2]);
    let argv = ["sh", "-c", &script];
    for confinement in [Confinement::Nothing, Confinement::OwnLoopback] {
        let server = machine.start("server", &argv, confinement).await;
        let exited = server
            .process
            .wait(exec_wire::process::WaitUntil::Exited, None);
        with_timeout(exited).await.unwrap();
        let port = server.port().await;
        machine.expect_echo(in_process("server", port)).await;
        server.kill().await;
    }
}

#[tokio::test]
async fn process_that_shares_the_network_of_the_host_is_reached_there() {
    let machine = TestMachine::new();
    let server = machine
        .start("server", &ECHO_SERVER, Confinement::Nothing)
        .await;
    let port = server.port().await;
    machine.expect_echo(in_process("server", port)).await;
    machine.expect_echo(TunnelTarget::loopback(port)).await;
    for host in [
        "localhost",
        "LOCALHOST.",
        "127.0.0.1",
        "127.1",
        "::ffff:127.0.0.1",
    ] {
        machine.expect_echo(at(host, port)).await;
    }
}

#[tokio::test]
async fn process_that_has_ended_is_refused() {
    let machine = TestMachine::new();
    for confinement in [Confinement::Nothing, Confinement::OwnLoopback] {
        let server = machine.start("server", &ECHO_SERVER, confinement).await;
        let port = server.port().await;
        server.kill().await;
        let text = machine.refusal(in_process("server", port)).await;
        assert_eq!(text, "process `server` has ended");
        drop(server);
        let text = machine.refusal(in_process("server", port)).await;
        assert_eq!(text, "process id `server` is unknown");
    }
}

#[tokio::test]
async fn process_of_another_session_is_reached_once_it_is_adopted() {
    let machine = TestMachine::new();
    let server = machine
        .start("server", &ECHO_SERVER, Confinement::OwnLoopback)
        .await;
    let port = server.port().await;
    let backend = machine.backend.clone();
    let other = TestMachine {
        network: LocalNetwork::new(&backend),
        backend,
    };
    let text = other.refusal(in_process("server", port)).await;
    assert_eq!(text, "process id `server` is unknown");
    // The other session may have a process with this id, which has ended.
    let own = other.start("server", &["true"], Confinement::Nothing).await;
    own.kill().await;
    other.network.adopt(&server.process);
    other.expect_echo(in_process("server", port)).await;
}

#[tokio::test]
async fn listener_in_the_network_of_a_process_accepts_from_there_only() {
    let machine = TestMachine::new();
    let argv = ["sleep", "1000"];
    let _holder = machine
        .start("holder", &argv, Confinement::OwnLoopback)
        .await;
    // A privileged port, which is free in a network of its own.
    let mut listener = with_timeout(machine.network.listen(in_process("holder", 80)))
        .await
        .unwrap();
    assert_eq!(listener.port(), 80);
    let both = async {
        let client = machine.open(in_process("holder", 80)).await.unwrap();
        (listener.accept().await.unwrap(), client)
    };
    let (mut accepted, mut client) = with_timeout(both).await;
    client.write_all(b"in").await.unwrap();
    client.shutdown().await.unwrap();
    let mut text = String::new();
    with_timeout(accepted.read_to_string(&mut text))
        .await
        .unwrap();
    assert_eq!(text, "in");
    drop(listener);
    let text = machine.refusal(in_process("holder", 80)).await;
    assert_eq!(
        text,
        "nothing listens on port 80 in the network of process `holder`"
    );
}

#[tokio::test]
async fn thousand_tunnels_into_a_sandbox_are_opened_at_once() {
    let machine = TestMachine::new();
    let script = ECHO_SERVER[2].replace(
        "while (accept(C, S)) {",
        "$SIG{CHLD} = 'IGNORE'; while (accept(C, S) || 1) { next if !fileno(C) || fork;",
    );
    let script = script.replace("listen(S, 64)", "listen(S, 4096)");
    let argv = ["perl", "-e", &script];
    let server = machine
        .start("server", &argv, Confinement::OwnLoopback)
        .await;
    let port = server.port().await;
    let opening = (0..1000).map(|_| machine.network.open(in_process("server", port)));
    let opened = with_timeout(futures_util::future::join_all(opening)).await;
    let failed: Vec<_> = opened.iter().filter_map(|it| it.as_ref().err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test]
async fn process_that_is_killed_while_tunnels_open_fails_them_cleanly() {
    let machine = TestMachine::new();
    for round in 0..20 {
        let server = machine
            .start("server", &ECHO_SERVER, Confinement::OwnLoopback)
            .await;
        let port = server.port().await;
        let opening = (0..8).map(|_| machine.network.open(in_process("server", port)));
        let kill = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            server
                .process
                .terminate(TerminateMode::Force)
                .await
                .unwrap();
        };
        let opening = futures_util::future::join_all(opening);
        let (opened, ()) = with_timeout(futures_util::future::join(opening, kill)).await;
        for opened in opened {
            match opened {
                Ok(mut stream) => {
                    // The server is gone, so the stream ends or breaks.
                    let mut rest = Vec::new();
                    drop(with_timeout(stream.read_to_end(&mut rest)).await);
                    assert_eq!(rest, b"");
                }
                Err(error) => {
                    let text = error.to_string();
                    let expected = text == "process `server` has ended"
                        || text.starts_with("nothing listens on port ");
                    assert!(expected, "{text}");
                }
            }
        }
    }
}

#[test]
fn unprivileged_server_passes_the_tests_of_this_module() {
    use std::os::unix::process::CommandExt;

    if !rustix::process::geteuid().is_root() {
        // The tests above were unprivileged.
        return;
    }
    let account = 65534;
    // The account may not be allowed to find the program by its path.
    let output = std::process::Command::new("/proc/self/exe")
        .args([
            "local_network::tests::reach::",
            "--skip",
            "unprivileged_server",
        ])
        .env_clear()
        .current_dir("/")
        .uid(account)
        .gid(account)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("reach::tunnel_reaches_a_server_in_a_sandbox_without_network ... ok"));
}
