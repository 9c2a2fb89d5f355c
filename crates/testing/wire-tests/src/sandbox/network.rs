//! Attempts to connect over the network or by unix sockets of the host.

use std::{
    fs::{self, Permissions},
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixDatagram, UnixListener},
        },
    },
};

use serde_json::json;

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy},
};

as_every_user!(
    nothing_is_reachable_without_network,
    host_is_reachable_with_network,
    unix_sockets_are_unreachable_without_network,
    socket_pairs_work,
    raw_sockets_are_refused_with_network,
    unrestricted_files_do_not_enable_the_network,
);

/// Listeners on the host.
struct HostListeners {
    tcp: TcpListener,
    udp: UdpSocket,
    /// Unix sockets by path and by abstract name.
    streams: Vec<UnixListener>,
    datagrams: Vec<UnixDatagram>,
    name: String,
}

impl HostListeners {
    fn new(fixture: &SandboxFixture) -> Self {
        let name = format!("exec-hostile-{}", fixture.server.pid());
        let address = |suffix: &str| {
            SocketAddr::from_abstract_name(format!("{name}{suffix}").as_bytes()).unwrap()
        };
        let mut streams = vec![UnixListener::bind_addr(&address("s")).unwrap()];
        let mut datagrams = vec![UnixDatagram::bind_addr(&address("d")).unwrap()];
        for directory in ["work", "out"] {
            let stream = fixture.path(directory).join("stream");
            streams.push(UnixListener::bind(&stream).unwrap());
            let datagram = fixture.path(directory).join("datagram");
            datagrams.push(UnixDatagram::bind(&datagram).unwrap());
            for path in [stream, datagram] {
                fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
            }
        }
        for datagram in &datagrams {
            datagram.set_nonblocking(true).unwrap();
        }
        for stream in &streams {
            stream.set_nonblocking(true).unwrap();
        }
        let (tcp, udp) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        Self {
            tcp,
            udp,
            streams,
            datagrams,
            name,
        }
    }

    /// Returns whether any listener received anything.
    fn anything_received(&self) -> bool {
        let mut buffer = [0; 16];
        self.tcp.accept().is_ok()
            || self.udp.recv(&mut buffer).is_ok()
            || self
                .streams
                .iter()
                .any(|listener| listener.accept().is_ok())
            || self.datagrams.iter().any(|socket| {
                let mut buffer = [0; 16];
                socket.recv(&mut buffer).is_ok()
            })
    }

    /// Returns probes of the network.
    fn network(&self) -> Vec<Vec<String>> {
        let tcp = self.tcp.local_addr().unwrap().port().to_string();
        let udp = self.udp.local_addr().unwrap().port().to_string();
        let own = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect();
        vec![
            own(&["connect", "127.0.0.1", &tcp]),
            own(&["fast-open", "127.0.0.1", &tcp]),
            own(&["udp", "127.0.0.1", &udp]),
            own(&["bind", "0"]),
            own(&["lo-self"]),
            own(&["socket-inet"]),
            own(&["socket-inet6"]),
        ]
    }

    /// Returns probes of sockets in the workspace.
    fn in_work() -> Vec<Vec<String>> {
        [
            ["unix-connect", "@work/stream"],
            ["unix-dgram-connect", "@work/datagram"],
            ["unix-dgram-send", "@work/datagram"],
            ["unix-pair-send", "@work/datagram"],
            ["unix-pair-send-many", "@work/datagram"],
            ["unix-pair-connect", "@work/datagram"],
        ]
        .map(|args| args.map(str::to_owned).to_vec())
        .to_vec()
    }

    /// Returns probes of all other sockets of the host.
    fn elsewhere(&self) -> Vec<Vec<String>> {
        let (stream, datagram) = (format!("{}s", self.name), format!("{}d", self.name));
        let mut probes: Vec<Vec<String>> = Self::in_work();
        for probe in &mut probes {
            probe[1] = probe[1].replace("@work", "@out");
        }
        for (probe, name) in [
            ("abstract-connect", &stream),
            ("abstract-dgram-send", &datagram),
            ("abstract-pair-send", &datagram),
            ("abstract-pair-connect", &datagram),
        ] {
            probes.push(vec![probe.to_owned(), name.clone()]);
        }
        probes
    }
}

fn words(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

const REFUSALS: &str = "EPERM EACCES ECONNREFUSED ENOENT ENETUNREACH EAFNOSUPPORT";

async fn nothing_is_reachable_without_network(fixture: &mut SandboxFixture) {
    let listeners = HostListeners::new(fixture);
    let mut probes = listeners.network();
    for probe in [
        "socket-raw",
        "socket-packet",
        "socket-netlink",
        "socket-vsock",
        "socket-alg",
        "socketpair-inet",
    ] {
        probes.push(vec![probe.to_owned()]);
    }
    for policy in SandboxPolicy::with_network(fixture, NetworkPolicy::Restricted) {
        for args in &probes {
            fixture.refused(&policy, "EPERM", &words(args)).await;
        }
    }
    assert!(!listeners.anything_received(), "a listener was reached");
}

async fn host_is_reachable_with_network(fixture: &mut SandboxFixture) {
    let listeners = HostListeners::new(fixture);
    let probes = listeners.network();
    for policy in SandboxPolicy::with_network(fixture, NetworkPolicy::Enabled) {
        for args in &probes {
            if args[0] == "fast-open" {
                // A kernel setting decides whether this is possible.
                continue;
            }
            fixture.allowed(&policy, &words(args)).await;
        }
        if policy.kind != FilePolicy::ReadOnly {
            fixture
                .allowed(&policy, &["unix-connect", "@work/stream"])
                .await;
        }
    }
    assert!(listeners.anything_received(), "no listener was reached");
}

async fn unix_sockets_are_unreachable_without_network(fixture: &mut SandboxFixture) {
    let listeners = HostListeners::new(fixture);
    let mut probes = listeners.elsewhere();
    probes.extend(HostListeners::in_work());
    for policy in SandboxPolicy::with_network(fixture, NetworkPolicy::Restricted) {
        for args in &probes {
            fixture.refused(&policy, REFUSALS, &words(args)).await;
        }
        let name = policy.name.clone();
        if listeners.anything_received() {
            fixture.record_fault(format!("{name}: a listener was reached"));
        }
    }
    for args in &probes {
        fixture.says(None, "ok", &words(args)).await;
    }
    assert!(listeners.anything_received(), "no listener was reached");
}

async fn socket_pairs_work(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        for probe in ["socketpair", "send-on-socketpair"] {
            fixture.allowed(&policy, &[probe]).await;
        }
    }
}

async fn raw_sockets_are_refused_with_network(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::with_network(fixture, NetworkPolicy::Enabled) {
        for probe in ["socket-raw", "socket-packet"] {
            fixture.refused(&policy, "EPERM", &[probe]).await;
        }
    }
    for probe in ["socket-raw", "socket-packet"] {
        let line = fixture.run(None, &[probe]).await;
        if fixture.uid() == 0 && line != "ok" {
            fixture.record_fault(format!("outside: {probe}: {line}"));
        }
    }
}

async fn unrestricted_files_do_not_enable_the_network(fixture: &mut SandboxFixture) {
    let listeners = HostListeners::new(fixture);
    let open = json!({"type": "unrestricted"});
    for (name, permissions) in [
        (
            "unrestricted",
            json!({"type": "managed", "file_system": open, "network": "restricted"}),
        ),
        (
            "external",
            json!({"type": "external", "network": "restricted"}),
        ),
    ] {
        let policy = SandboxPolicy::with(fixture, name, permissions);
        for args in listeners.network() {
            fixture.refused(&policy, "EPERM", &words(&args)).await;
        }
        for args in listeners.elsewhere() {
            fixture.refused(&policy, REFUSALS, &words(&args)).await;
        }
        fixture.allowed(&policy, &["write", "@out/file"]).await;
        assert!(
            !listeners.anything_received(),
            "{name}: a listener was reached"
        );
        fixture.reset();
        drop(fs::remove_file(fixture.path("out/stream")));
    }
}
