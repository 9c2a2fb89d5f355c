//! Ports: errors of the host, listeners, and the list of ports.

use super::*;

fn find(ports: &[ListeningPort], port: u16) -> Vec<&ListeningPort> {
    ports.iter().filter(|it| it.port == port).collect()
}

#[tokio::test]
async fn port_without_a_listener_is_named() {
    let machine = TestMachine::new();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let expected = TunnelError::Host(format!("nothing listens on port {port} of the environment"));
    for target in [
        TunnelTarget::loopback(port),
        at("localhost", port),
        at("127.0.0.1", port),
    ] {
        assert_eq!(machine.open(target).await.unwrap_err(), expected);
    }
    let text = machine.refusal(TunnelTarget::loopback(0)).await;
    assert_eq!(text, "port must be between 1 and 65535");
}

#[tokio::test]
async fn invalid_and_unknown_hosts_are_named() {
    let (machine, _) = TestMachine::with_names(&[("empty.test", &[])]);
    for host in [
        "a/b",
        "1.2.3.4.5",
        "a..b",
        "bücher.example",
        "[::1",
        "fe80::1%lo",
    ] {
        let text = machine.refusal(at(host, 80)).await;
        assert!(
            text.starts_with(&format!("invalid host `{host}`: ")),
            "{text}"
        );
    }
    let text = machine.refusal(at("no.test", 80)).await;
    assert!(
        text.starts_with("cannot resolve `no.test` in the environment: "),
        "{text}"
    );
    let text = machine.refusal(at("empty.test", 80)).await;
    assert!(text.ends_with("the name has no address"), "{text}");
}

#[tokio::test]
async fn socket_that_connects_to_itself_is_detected() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let own = socket.local_addr().unwrap();
    let stream = with_timeout(socket.connect(own)).await.unwrap();
    assert!(is_connected_to_itself(&stream));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    assert!(!is_connected_to_itself(&stream));
}

#[tokio::test]
async fn listener_serves_both_loopback_addresses_until_it_is_dropped() {
    let machine = TestMachine::new();
    let mut listener = machine
        .network
        .listen(TunnelTarget::loopback(0))
        .await
        .unwrap();
    let port = listener.port();
    for host in ["127.0.0.1", "::1"] {
        let mut client = machine.open(at(host, port)).await.unwrap();
        let mut accepted = with_timeout(listener.accept()).await.unwrap();
        // Half-closing one direction leaves the other open.
        client.shutdown().await.unwrap();
        let mut text = String::new();
        with_timeout(accepted.read_to_string(&mut text))
            .await
            .unwrap();
        accepted.write_all(b"answer").await.unwrap();
        accepted.shutdown().await.unwrap();
        with_timeout(client.read_to_string(&mut text))
            .await
            .unwrap();
        assert_eq!(text, "answer");
    }
    let text = listen_failure(&machine, TunnelTarget::loopback(port)).await;
    assert!(text.contains("is in use on 127.0.0.1"), "{text}");
    let (mut client, mut accepted) = {
        let client = machine.open(TunnelTarget::loopback(port)).await.unwrap();
        (client, with_timeout(listener.accept()).await.unwrap())
    };
    drop(listener);
    for host in ["127.0.0.1", "::1"] {
        let text = machine.refusal(at(host, port)).await;
        assert_eq!(
            text,
            format!("nothing listens on port {port} of the environment")
        );
    }
    // Accepted connections stay.
    accepted.write_all(b"still").await.unwrap();
    let mut text = [0; 5];
    with_timeout(client.read_exact(&mut text)).await.unwrap();
    assert_eq!(&text, b"still");
    // The port can be used again at once.
    machine
        .network
        .listen(TunnelTarget::loopback(port))
        .await
        .unwrap();
}

#[tokio::test]
async fn listener_on_an_address_of_another_machine_is_refused() {
    let machine = TestMachine::new();
    let text = listen_failure(&machine, at("192.0.2.1", 0)).await;
    assert!(text.contains("not an address of it"), "{text}");
}

async fn listen_failure(machine: &TestMachine, target: TunnelTarget) -> String {
    with_timeout(machine.network.listen(target))
        .await
        .unwrap_err()
        .to_string()
}

#[tokio::test]
async fn ports_are_listed_with_their_processes() {
    let machine = TestMachine::new();
    let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let own = own
        .local_addr()
        .map(|address| (own, address.port()))
        .unwrap();
    let script = format!("{} -e '{}' & wait", ECHO_SERVER[0], ECHO_SERVER[2]);
    let outer = machine
        .start("outer", &["sh", "-c", &script], Confinement::Nothing)
        .await;
    let inner = machine
        .start("inner", &ECHO_SERVER, Confinement::OwnLoopback)
        .await;
    let (outer_port, inner_port) = (outer.port().await, inner.port().await);
    let of_host = with_timeout(machine.network.ports(None)).await.unwrap();
    assert!(of_host.is_sorted_by_key(|port| port.port));
    let [listed] = find(&of_host, outer_port)[..] else {
        panic!("port {outer_port} is not listed once: {of_host:?}")
    };
    assert_eq!(listed.address, "127.0.0.1");
    assert_eq!(listed.process_id.as_ref().unwrap().as_str(), "outer");
    assert_eq!(listed.program.as_deref(), Some("perl"));
    assert_ne!(
        listed.os_pid,
        outer.process.status().os_pid,
        "a descendant has it open"
    );
    let [listed] = find(&of_host, own.1)[..] else {
        panic!("port {} is not listed once: {of_host:?}", own.1)
    };
    assert_eq!(
        (listed.process_id.clone(), listed.os_pid),
        (None, Some(std::process::id()))
    );
    let id = ProcessId::new("inner").unwrap();
    let of_process = with_timeout(machine.network.ports(Some(id))).await.unwrap();
    let [listed] = &of_process[..] else {
        panic!("its network has one port: {of_process:?}")
    };
    assert_eq!((listed.port, &*listed.address), (inner_port, "127.0.0.1"));
    assert_eq!(listed.process_id.as_ref().unwrap().as_str(), "inner");
    assert_eq!(listed.os_pid, inner.process.status().os_pid);
    assert_eq!(listed.program.as_deref(), Some("perl"));
}

#[tokio::test]
async fn owners_of_other_sessions_are_named_on_request() {
    let machine = TestMachine::new();
    let mut others = Vec::new();
    for number in 0..12 {
        let id = format!("other-{number}");
        let session = TestMachine::new();
        let other = session.start(&id, &ECHO_SERVER, Confinement::Nothing).await;
        others.push((id, other.port().await, other));
    }
    let owner = |ports: &[ListeningPort], port| {
        let listed = find(ports, port);
        let id = listed[0].process_id.clone();
        id.map(|id| id.as_str().to_owned())
    };
    // They are found as programs of the host first.
    let unnamed = with_timeout(machine.network.ports(None)).await.unwrap();
    let handles = others.iter().map(|(.., other)| Arc::clone(&other.process));
    let listing = machine.network.ports_with_owners(handles.collect());
    let named = with_timeout(listing).await.unwrap();
    for (id, port, _) in &others {
        assert_eq!(owner(&unnamed, *port), None);
        assert_eq!(owner(&named, *port).as_ref(), Some(id));
    }
    for (.., other) in others {
        other.kill().await;
    }
}

#[tokio::test]
async fn ports_of_an_unknown_or_ended_process_are_refused() {
    let machine = TestMachine::new();
    let id = || Some(ProcessId::new("server").unwrap());
    let error = machine.network.ports(id()).await.unwrap_err();
    assert_eq!(
        error,
        TunnelError::Refused("process id `server` is unknown".into())
    );
    let server = machine
        .start("server", &["true"], Confinement::OwnLoopback)
        .await;
    server.kill().await;
    let error = machine.network.ports(id()).await.unwrap_err();
    assert_eq!(
        error,
        TunnelError::Refused("process `server` has ended".into())
    );
}

#[tokio::test]
async fn new_port_of_a_tree_is_noticed_by_polling_within_a_second() {
    let machine = TestMachine::new();
    let script = format!("read go; {} -e '{}' & wait", ECHO_SERVER[0], ECHO_SERVER[2]);
    for confinement in [Confinement::Nothing, Confinement::OwnLoopback] {
        let cwd = PathUri::from_native(Path::new("/")).unwrap();
        let argv = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let id = ProcessId::new("late").unwrap();
        let mut command = Command::new(id.clone(), argv, cwd);
        command.env.insert("PATH".into(), "/usr/bin:/bin".into());
        command.io = exec_env::environment::ProcessIo::Pipes {
            stdin: exec_env::environment::StdinMode::Piped,
        };
        (command.sandbox, command.network) = confinement.parts();
        let process = machine.backend.start(command).await.unwrap().process;
        let ports_of_tree = async || {
            let ports = machine.network.ports(Some(id.clone())).await.unwrap();
            let own = |port: &ListeningPort| port.process_id.as_ref() == Some(&id);
            ports.into_iter().filter(own).collect::<Vec<_>>()
        };
        assert_eq!(ports_of_tree().await, []);
        process.write(None, "go\n".into()).await.unwrap();
        let server = TestProcess { process };
        let port = server.port().await;
        let listens = Instant::now();
        let found = with_timeout(async {
            loop {
                let ports = ports_of_tree().await;
                if !ports.is_empty() {
                    return ports;
                }
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(found.await[0].port, port);
        assert!(
            listens.elapsed() < Duration::from_secs(1),
            "{:?}",
            listens.elapsed()
        );
        server.kill().await;
    }
}

#[test]
fn owner_is_forgotten_when_it_closes_its_socket() {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let sockets = listening_sockets(None).unwrap();
    let socket = *sockets.iter().find(|socket| socket.port == port).unwrap();
    let id = ProcessId::new("this").unwrap();
    let own = std::process::id().cast_signed();
    let trees = || vec![(id.clone(), vec![own])];
    let mut owners = SocketOwners::default();
    let now = std::time::Instant::now();
    owners.update(&[socket], trees, ScanScope::Session, now);
    assert_eq!(owners.port(&socket).process_id, Some(id.clone()));
    // A known owner costs no search.
    let no_search = || panic!("searched for a known owner");
    owners.update(&[socket], no_search, ScanScope::Session, now);
    drop(listener);
    owners.update(&[socket], trees, ScanScope::Session, now);
    assert_eq!(owners.port(&socket).os_pid, None);
}

#[test]
fn owner_that_is_not_found_is_searched_for_rarely() {
    let socket = listening_sockets::ListeningSocket {
        port: 1,
        address: Ipv4Addr::LOCALHOST.into(),
        inode: u64::MAX,
    };
    let mut searches = Vec::new();
    let mut owners = SocketOwners::default();
    let start = std::time::Instant::now();
    for millis in (0..20_000).step_by(500) {
        let now = start + Duration::from_millis(millis);
        let trees = || {
            searches.push(millis);
            Vec::new()
        };
        owners.update(&[socket], trees, ScanScope::Session, now);
    }
    let new: Vec<u64> = (0..3000).step_by(500).collect();
    assert!(searches.starts_with(&new), "{searches:?}");
    assert_eq!(searches[new.len()..], [7500, 12500, 17500]);
}
