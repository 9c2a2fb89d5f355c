//! What sandbox policies and managed networks allow.

use super::*;

fn under(network: &str, target: TunnelTarget) -> TunnelTarget {
    TunnelTarget {
        sandbox: Some(Box::new(policy(network))),
        ..target
    }
}

/// Allows `allowed.test` and one port of loopback by name.
fn allow_list() -> serde_json::Value {
    json!({"proxy": {
        "enabled": true, "enableSocks5": true, "enableSocks5Udp": false,
        "allowUpstreamProxy": false, "dangerouslyAllowAllUnixSockets": false,
        "allowLocalBinding": false, "mode": "full",
        "domains": {"**.allowed.test": "allow", "denied.test": "deny"},
    }})
}

fn allow_everything() -> serde_json::Value {
    let mut settings = allow_list();
    settings["proxy"]["allowLocalBinding"] = json!(true);
    settings["proxy"]["domains"] = json!({"*": "allow"});
    settings
}

fn limited() -> serde_json::Value {
    let mut settings = allow_list();
    settings["proxy"]["mode"] = json!("limited");
    settings
}

const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8));
const METADATA: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));

#[tokio::test]
async fn policy_without_network_refuses_tunnels_without_resolving_or_connecting() {
    let (machine, connector) = TestMachine::with_names(&[("allowed.test", &[PUBLIC])]);
    let _server = machine
        .start("server", &ECHO_SERVER, Confinement::OwnLoopback)
        .await;
    let targets = [
        TunnelTarget::loopback(80),
        at("allowed.test", 80),
        at("127.0.0.1", 80),
        in_process("server", 80),
    ];
    for target in targets {
        let text = machine.refusal(under("restricted", target.clone())).await;
        assert_eq!(text, "sandbox: the policy allows no network");
        let listening = machine.network.listen(under("restricted", target)).await;
        let text = listening.unwrap_err().to_string();
        assert!(
            text.starts_with("sandbox: the policy does not allow listening"),
            "{text}"
        );
    }
    assert_eq!(connector.take(), (vec![], vec![]));
}

#[tokio::test]
async fn policy_with_the_network_of_the_host_allows_tunnels() {
    let machine = TestMachine::new();
    let server = machine
        .start("server", &ECHO_SERVER, Confinement::Nothing)
        .await;
    let port = server.port().await;
    machine
        .expect_echo(under("enabled", TunnelTarget::loopback(port)))
        .await;
    let listener = machine
        .network
        .listen(under("enabled", TunnelTarget::loopback(0)));
    assert_ne!(listener.await.unwrap().port(), 0);
}

#[tokio::test]
async fn policy_that_is_invalid_for_commands_is_refused() {
    let machine = TestMachine::new();
    let server = machine
        .start("server", &ECHO_SERVER, Confinement::Nothing)
        .await;
    let mut target = under("enabled", TunnelTarget::loopback(server.port().await));
    target.sandbox.as_mut().unwrap().windows_sandbox_level =
        exec_wire::sandbox::WindowsSandboxLevel::Mxc;
    let text = machine.refusal(target.clone()).await;
    assert!(text.starts_with("sandbox: "), "{text}");
    let listening = machine.network.listen(target).await;
    assert!(matches!(listening, Err(TunnelError::Refused(_))));
}

#[tokio::test]
async fn rules_of_a_managed_network_decide_about_host_and_address() {
    let names: [(&str, &[IpAddr]); 3] = [
        ("allowed.test", &[PUBLIC]),
        ("rebinding.allowed.test", &[IpAddr::V4(Ipv4Addr::LOCALHOST)]),
        ("metadata.allowed.test", &[METADATA]),
    ];
    let (machine, connector) = TestMachine::with_names(&names);
    let sleep = ["sleep", "1000"];
    let _server = machine
        .start("managed", &sleep, Confinement::Managed(allow_list))
        .await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = |host: &str| TunnelTarget {
        process: Some(ProcessId::new("managed").unwrap()),
        ..under("restricted", at(host, port))
    };
    machine.open(target("allowed.test")).await.unwrap();
    machine.open(target("ALLOWED.test.")).await.unwrap();
    let (lookups, connects) = connector.take();
    assert_eq!(lookups, ["allowed.test", "allowed.test"]);
    assert_eq!(connects, [SocketAddr::new(PUBLIC, port); 2]);
    let denied = [
        ("other.test", "not_allowed"),
        ("denied.test", "denied"),
        ("localhost", "not_allowed_local"),
        ("localhost.", "not_allowed_local"),
        ("a.localhost", "not_allowed_local"),
        ("0", "not_allowed_local"),
        ("0x7f.1", "not_allowed_local"),
        ("2130706433", "not_allowed_local"),
        ("127.0.0.1", "not_allowed_local"),
        ("::1", "not_allowed_local"),
        ("[::1]", "not_allowed_local"),
        ("::ffff:127.0.0.1", "not_allowed_local"),
        ("64:ff9b::7f00:1", "not_allowed_local"),
        ("10.0.0.1", "not_allowed_local"),
        ("rebinding.allowed.test", "not_allowed_local"),
        ("metadata.allowed.test", "not_allowed_local"),
        ("169.254.169.254", "not_allowed_local"),
        ("fe80::1", "not_allowed_local"),
    ];
    for (host, reason) in denied {
        let text = machine.refusal(target(host)).await;
        assert!(text.starts_with("sandbox: "), "{host}: {text}");
        assert!(text.contains(&format!("({reason})")), "{host}: {text}");
    }
    // No host means loopback.
    let mut unnamed = target("localhost");
    unnamed.host = None;
    assert!(machine.refusal(unnamed).await.contains("not_allowed_local"));
    assert_eq!(connector.take().1, [], "a denied address was connected");
}

#[tokio::test]
async fn metadata_services_are_never_connected_under_a_managed_network() {
    let names: [(&str, &[IpAddr]); 1] = [("any.test", &[METADATA])];
    let (machine, connector) = TestMachine::with_names(&names);
    let sleep = ["sleep", "1000"];
    let _server = machine
        .start("managed", &sleep, Confinement::Managed(allow_everything))
        .await;
    let hosts = [
        "any.test",
        "169.254.169.254",
        "0xa9fea9fe",
        "2852039166",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "[fe80::1]",
        "fd00:ec2::254",
        "100.100.100.200",
    ];
    for host in hosts {
        let target = TunnelTarget {
            process: Some(ProcessId::new("managed").unwrap()),
            ..under("restricted", at(host, 80))
        };
        let text = machine.refusal(target).await;
        assert!(text.contains("not_allowed_local"), "{host}: {text}");
    }
    assert_eq!(connector.take().1, []);
}

#[tokio::test]
async fn managed_network_that_only_allows_requests_has_no_tunnels() {
    let (machine, connector) = TestMachine::with_names(&[("allowed.test", &[PUBLIC])]);
    let sleep = ["sleep", "1000"];
    let _server = machine
        .start("managed", &sleep, Confinement::Managed(limited))
        .await;
    let target = TunnelTarget {
        process: Some(ProcessId::new("managed").unwrap()),
        ..under("restricted", at("allowed.test", 80))
    };
    assert!(machine.refusal(target).await.contains("method_not_allowed"));
    assert_eq!(connector.take(), (vec![], vec![]));
}

#[tokio::test]
async fn tunnel_into_a_network_that_the_client_manages_is_refused() {
    let machine = TestMachine::new();
    let sleep = ["sleep", "1000"];
    let _server = machine
        .start("bridged", &sleep, Confinement::ClientProxy)
        .await;
    let text = machine
        .refusal(under("restricted", in_process("bridged", 3128)))
        .await;
    assert!(text.contains("this server cannot decide"), "{text}");
}

#[tokio::test]
async fn rules_of_a_managed_network_end_with_its_process() {
    let (machine, connector) = TestMachine::with_names(&[("allowed.test", &[PUBLIC])]);
    let sleep = ["sleep", "1000"];
    let server = machine
        .start("managed", &sleep, Confinement::Managed(allow_list))
        .await;
    server.kill().await;
    let target = TunnelTarget {
        process: Some(ProcessId::new("managed").unwrap()),
        ..under("restricted", at("allowed.test", 80))
    };
    // The proxy stops when the output of its process is closed, in a task of its own.
    let ended = async {
        while !machine.refusal(target.clone()).await.contains("has ended") {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(ended).await;
    drop((server, connector));
}
