//! Reaching anybody by the network, or by sockets of the host.

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
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy},
};

as_every_user!(
    without_network_nobody_is_reached,
    with_network_the_host_is_reached,
    without_network_unix_sockets_are_out_of_reach,
    pairs_of_sockets_work,
    raw_sockets_are_refused_with_network_too,
    unrestricted_files_do_not_give_a_network,
);

/// Who can be reached.
struct Listeners {
    tcp: TcpListener,
    udp: UdpSocket,
    /// In directories and without any.
    streams: Vec<UnixListener>,
    datagrams: Vec<UnixDatagram>,
    name: String,
}

impl Listeners {
    fn new(ground: &Ground) -> Self {
        let name = format!("exec-hostile-{}", ground.server.pid());
        let address = |suffix: &str| {
            SocketAddr::from_abstract_name(format!("{name}{suffix}").as_bytes()).unwrap()
        };
        let mut streams = vec![UnixListener::bind_addr(&address("s")).unwrap()];
        let mut datagrams = vec![UnixDatagram::bind_addr(&address("d")).unwrap()];
        for directory in ["work", "out"] {
            let stream = ground.path(directory).join("stream");
            streams.push(UnixListener::bind(&stream).unwrap());
            let datagram = ground.path(directory).join("datagram");
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

    /// Tells whether anybody has heard anything.
    fn heard(&self) -> bool {
        let mut room = [0; 16];
        self.tcp.accept().is_ok()
            || self.udp.recv(&mut room).is_ok()
            || self
                .streams
                .iter()
                .any(|listener| listener.accept().is_ok())
            || self.datagrams.iter().any(|socket| {
                let mut room = [0; 16];
                socket.recv(&mut room).is_ok()
            })
    }

    /// Probes of the network.
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

    /// Probes of sockets in the workspace.
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

    /// Probes of all other sockets of the host.
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

async fn without_network_nobody_is_reached(ground: &mut Ground) {
    let listeners = Listeners::new(ground);
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
    for policy in Policy::with_network(ground, Network::Restricted) {
        for args in &probes {
            ground.refused(&policy, "EPERM", &words(args)).await;
        }
    }
    assert!(!listeners.heard(), "somebody was reached");
}

async fn with_network_the_host_is_reached(ground: &mut Ground) {
    let listeners = Listeners::new(ground);
    let probes = listeners.network();
    for policy in Policy::with_network(ground, Network::Enabled) {
        for args in &probes {
            if args[0] == "fast-open" {
                // A setting of the kernel's decides whether this is possible.
                continue;
            }
            ground.allowed(&policy, &words(args)).await;
        }
        if policy.kind != Kind::ReadOnly {
            ground
                .allowed(&policy, &["unix-connect", "@work/stream"])
                .await;
        }
    }
    assert!(listeners.heard(), "nobody was reached");
}

async fn without_network_unix_sockets_are_out_of_reach(ground: &mut Ground) {
    let listeners = Listeners::new(ground);
    let mut probes = listeners.elsewhere();
    probes.extend(Listeners::in_work());
    for policy in Policy::with_network(ground, Network::Restricted) {
        for args in &probes {
            ground.refused(&policy, REFUSALS, &words(args)).await;
        }
        let name = policy.name.clone();
        if listeners.heard() {
            ground.fault(format!("{name}: somebody was reached"));
        }
    }
    for args in &probes {
        ground.says(None, "ok", &words(args)).await;
    }
    assert!(listeners.heard(), "nobody was reached");
}

async fn pairs_of_sockets_work(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        for probe in ["socketpair", "send-on-socketpair"] {
            ground.allowed(&policy, &[probe]).await;
        }
    }
}

async fn raw_sockets_are_refused_with_network_too(ground: &mut Ground) {
    for policy in Policy::with_network(ground, Network::Enabled) {
        for probe in ["socket-raw", "socket-packet"] {
            ground.refused(&policy, "EPERM", &[probe]).await;
        }
    }
    for probe in ["socket-raw", "socket-packet"] {
        let line = ground.run(None, &[probe]).await;
        if ground.uid() == 0 && line != "ok" {
            ground.fault(format!("outside: {probe}: {line}"));
        }
    }
}

async fn unrestricted_files_do_not_give_a_network(ground: &mut Ground) {
    let listeners = Listeners::new(ground);
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
        let policy = Policy::with(ground, name, permissions);
        for args in listeners.network() {
            ground.refused(&policy, "EPERM", &words(&args)).await;
        }
        for args in listeners.elsewhere() {
            ground.refused(&policy, REFUSALS, &words(&args)).await;
        }
        ground.allowed(&policy, &["write", "@out/file"]).await;
        assert!(!listeners.heard(), "{name}: somebody was reached");
        ground.reset();
        drop(fs::remove_file(ground.path("out/stream")));
    }
}
