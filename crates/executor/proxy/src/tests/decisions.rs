//! Decisions, records, and the addresses of connections.

use std::{net::IpAddr, time::Duration};

use exec_wire::network::{NetworkDecision, NetworkProtocol};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::{Decider, PUBLIC, TestProxy, TestProxyBuilder, TestServer, read_until};

fn deny(reason: &str) -> NetworkDecision {
    NetworkDecision::Deny {
        reason: reason.to_owned(),
    }
}

async fn answer(proxy: &TestProxy, host: &str) -> String {
    proxy
        .request_http(&format!("CONNECT {host}:9 HTTP/1.1\r\n\r\n"))
        .await
}

/// Opens a tunnel to a server as `host`.
async fn tunnel(proxy: &TestProxy, host: &str) {
    let server = TestServer::start().await;
    let mut client = proxy
        .send_http(&format!("CONNECT {host}:{} HTTP/1.1\r\n\r\n", server.port))
        .await;
    let head = read_until(&mut client, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    client.write_all(b"x").await.unwrap();
}

#[tokio::test]
async fn undecided_host_is_passed_to_the_decider() {
    let builder = TestProxyBuilder::new()
        .with_host("other.test", &[PUBLIC])
        .with_decider(|destination| {
            Box::pin(async move {
                assert_eq!(destination.protocol, NetworkProtocol::HttpsConnect);
                assert_eq!(destination.host, "other.test");
                NetworkDecision::Allow
            })
        });
    let mut proxy = builder.start();
    tunnel(&proxy, "Other.Test.").await;
    let record = proxy.record().await;
    assert_eq!(
        (record.decision.as_str(), record.source.as_str()),
        ("allow", "decider")
    );
    assert_eq!(
        (record.reason.as_str(), record.policy_override),
        ("allowed", true)
    );
    assert_eq!(record.process_id.as_str(), "p1");
}

#[tokio::test]
async fn denials_of_the_decider_are_enforced() {
    let cases: [(Decider, &str, &str); 5] = [
        (
            |_| Box::pin(async { deny("not on the list") }),
            "deny",
            "not on the list",
        ),
        (
            |_| {
                Box::pin(async {
                    NetworkDecision::Ask {
                        reason: "needs approval".into(),
                    }
                })
            },
            "ask",
            "needs approval",
        ),
        (
            |_| Box::pin(async { deny("two\nlines") }),
            "deny",
            "not_allowed",
        ),
        (
            |_| Box::pin(async { deny(&"x".repeat(1025)) }),
            "deny",
            "not_allowed",
        ),
        (
            |_| {
                Box::pin(async {
                    NetworkDecision::Ask {
                        reason: "\u{7}".into(),
                    }
                })
            },
            "deny",
            "not_allowed",
        ),
    ];
    for (decider, decision, reason) in cases {
        let mut proxy = TestProxyBuilder::new().with_decider(decider).start();
        let answer = answer(&proxy, "other.test").await;
        assert!(answer.ends_with(&format!("policy: {reason}\n")), "{answer}");
        let record = proxy.record().await;
        assert_eq!(
            (record.decision.as_str(), record.source.as_str()),
            (decision, "decider")
        );
        assert_eq!(
            (record.reason.as_str(), record.policy_override),
            (reason, false)
        );
        assert!(proxy.connector.lookups().is_empty());
    }
}

#[tokio::test]
async fn decision_timeout_denies_the_host() {
    let mut builder = TestProxyBuilder::new().with_decider(|_| Box::pin(std::future::pending()));
    builder.settings["policyDecisionTimeoutMs"] = json!(10);
    builder.limits.decision_grace = Duration::from_millis(10);
    let mut proxy = builder.start();
    assert!(
        answer(&proxy, "other.test")
            .await
            .ends_with("policy: not_allowed\n")
    );
    let record = proxy.record().await;
    assert_eq!(
        (record.decision.as_str(), record.source.as_str()),
        ("deny", "decider")
    );
}

#[tokio::test]
async fn excess_pending_decisions_are_denied() {
    let mut builder = TestProxyBuilder::new().with_decider(|_| Box::pin(std::future::pending()));
    builder.limits.max_pending_decisions = 0;
    let proxy = builder.start();
    assert!(
        answer(&proxy, "other.test")
            .await
            .ends_with("policy: not_allowed\n")
    );
}

#[tokio::test]
async fn decider_is_not_called_without_a_timeout() {
    let proxy = TestProxyBuilder::new()
        .with_setting("reviewDomains", json!(["*"]))
        .start();
    assert!(
        answer(&proxy, "other.test")
            .await
            .ends_with("policy: not_allowed\n")
    );
    tunnel(&proxy, "allowed.test").await;
}

#[tokio::test]
async fn reviewed_hosts_are_passed_to_the_decider() {
    let decide: Decider = |destination| {
        Box::pin(async move {
            match destination.host.as_str() {
                "allowed.test" => NetworkDecision::Allow,
                _ => deny("reviewed"),
            }
        })
    };
    let builder = TestProxyBuilder::new().with_setting("reviewDomains", json!(["**.allowed.test"]));
    let mut proxy = builder.with_decider(decide).start();
    tunnel(&proxy, "allowed.test").await;
    let record = proxy.record().await;
    assert_eq!(
        (record.source.as_str(), record.policy_override),
        ("decider", false)
    );
    assert!(
        answer(&proxy, "a.allowed.test")
            .await
            .ends_with("policy: reviewed\n")
    );
}

#[tokio::test]
async fn decider_cannot_allow_a_private_address() {
    let private: IpAddr = "10.0.0.1".parse().unwrap();
    let mapped: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
    let builder = TestProxyBuilder::new()
        .with_host("rebound.test", &[private, mapped])
        .with_host(
            "rebound.allowed.test",
            &["169.254.169.254".parse().unwrap()],
        )
        .with_decider(|_| Box::pin(async { NetworkDecision::Allow }));
    let mut proxy = builder.start();
    for host in [
        "rebound.test",
        "rebound.allowed.test",
        "10.0.0.1",
        "localhost",
        "0x7f.1",
    ] {
        let answer = answer(&proxy, host).await;
        assert!(answer.ends_with("policy: not_allowed_local\n"), "{answer}");
        let record = proxy.record().await;
        assert_eq!(
            (record.decision.as_str(), record.source.as_str()),
            ("deny", "baseline_policy")
        );
        assert_eq!(
            (record.reason.as_str(), record.policy_override),
            ("not_allowed_local", false)
        );
    }
    assert!(proxy.has_no_records() && proxy.connector.connects().is_empty());
}

#[tokio::test]
async fn link_local_and_metadata_addresses_stay_blocked_with_local_binding() {
    let metadata = [
        "169.254.169.254",
        "169.254.170.2",
        "::ffff:169.254.169.254",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::169.254.169.254",
        "2002:a9fe:a9fe::1",
        "::169.254.169.254",
        "fe80::1",
        "febf::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
    ];
    for text in metadata {
        let address: IpAddr = text.parse().unwrap();
        let mut proxy = TestProxyBuilder::new()
            .with_setting("domains", json!({"*": "allow"}))
            .with_setting("allowLocalBinding", json!(true))
            .with_host("allowed.test", &[address])
            .start();
        let literal = match address {
            IpAddr::V4(_) => text.to_owned(),
            IpAddr::V6(_) => format!("[{text}]"),
        };
        for host in ["allowed.test", &literal] {
            let answer = answer(&proxy, host).await;
            assert!(
                answer.ends_with("policy: not_allowed_local\n"),
                "{host}: {answer}"
            );
            let record = proxy.record().await;
            assert_eq!(record.decision, "deny", "{host}");
        }
        assert!(proxy.connector.connects().is_empty(), "{text}");
    }
}

#[tokio::test]
async fn literally_allowed_link_local_address_is_reachable() {
    let address: IpAddr = "169.254.169.254".parse().unwrap();
    let domains = json!({"169.254.169.254": "allow", "allowed.test": "allow"});
    for local in [false, true] {
        let proxy = TestProxyBuilder::new()
            .with_setting("domains", domains.clone())
            .with_setting("allowLocalBinding", json!(local))
            .with_host("allowed.test", &[address])
            .start();
        tunnel(&proxy, "169.254.169.254").await;
        if local {
            tunnel(&proxy, "allowed.test").await;
        }
        let reached: Vec<IpAddr> = proxy
            .connector
            .connects()
            .iter()
            .map(|to| to.ip())
            .collect();
        assert!(
            reached.iter().all(|reached| *reached == address),
            "{reached:?}"
        );
        assert!(
            answer(&proxy, "169.254.169.253")
                .await
                .contains("not_allowed_local")
        );
    }
}

#[tokio::test]
async fn name_is_resolved_once_and_private_addresses_are_skipped() {
    let second: IpAddr = "93.184.216.35".parse().unwrap();
    let private: IpAddr = "192.168.0.1".parse().unwrap();
    let proxy = TestProxyBuilder::new()
        .with_host("allowed.test", &[private, PUBLIC, second])
        .start();
    tunnel(&proxy, "allowed.test").await;
    assert_eq!(proxy.connector.lookups(), ["allowed.test"]);
    let reached: Vec<IpAddr> = proxy
        .connector
        .connects()
        .iter()
        .map(|to| to.ip())
        .collect();
    assert_eq!(reached, [PUBLIC]);
}

#[tokio::test]
async fn addresses_are_tried_in_order() {
    let second: IpAddr = "93.184.216.35".parse().unwrap();
    let proxy = TestProxyBuilder::new()
        .with_host("allowed.test", &[PUBLIC, second])
        .start();
    let closed = TestServer::start().await.port;
    let answer = proxy
        .request_http(&format!("CONNECT allowed.test:{closed} HTTP/1.1\r\n\r\n"))
        .await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let reached: Vec<IpAddr> = proxy
        .connector
        .connects()
        .iter()
        .map(|to| to.ip())
        .collect();
    assert_eq!(reached, [PUBLIC, second]);
    assert_eq!(proxy.connector.lookups().len(), 1);
}

#[tokio::test]
async fn local_hosts_are_reachable_if_named_or_all_allowed() {
    let named = TestProxyBuilder::new()
        .with_setting("domains", json!({"127.0.0.1": "allow"}))
        .start();
    tunnel(&named, "127.0.0.1").await;
    assert!(
        answer(&named, "127.0.0.2")
            .await
            .contains("not_allowed_local")
    );
    let open = TestProxyBuilder::new()
        .with_setting("domains", json!({"*": "allow"}))
        .with_setting("allowLocalBinding", json!(true))
        .with_host("inside.test", &["10.0.0.1".parse().unwrap()])
        .start();
    tunnel(&open, "inside.test").await;
    tunnel(&open, "127.0.0.1").await;
}
