//! Who decides, what is recorded, and where connections go.

use std::{net::IpAddr, time::Duration};

use exec_wire::network::{Decision, NetworkProtocol};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::{Decider, PUBLIC, Script, Server, Stage, read_until};

fn deny(reason: &str) -> Decision {
    Decision::Deny {
        reason: reason.to_owned(),
    }
}

async fn answer(stage: &Stage, host: &str) -> String {
    stage
        .ask(&format!("CONNECT {host}:9 HTTP/1.1\r\n\r\n"))
        .await
}

/// Connects to a server as `host`; returns the stage after that.
async fn tunnel(stage: &Stage, host: &str) {
    let server = Server::start().await;
    let mut client = stage
        .say(&format!("CONNECT {host}:{} HTTP/1.1\r\n\r\n", server.port))
        .await;
    let head = read_until(&mut client, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    client.write_all(b"x").await.unwrap();
}

#[tokio::test]
async fn an_undecided_host_is_asked_about() {
    let script = Script::new()
        .name("other.test", &[PUBLIC])
        .asking(|destination| {
            Box::pin(async move {
                assert_eq!(destination.protocol, NetworkProtocol::HttpsConnect);
                assert_eq!(destination.host, "other.test");
                Decision::Allow
            })
        });
    let mut stage = script.start();
    tunnel(&stage, "Other.Test.").await;
    let record = stage.record().await;
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
async fn what_is_not_allowed_by_who_is_asked_stays_out() {
    let cases: [(Decider, &str, &str); 5] = [
        (
            |_| Box::pin(async { deny("not on the list") }),
            "deny",
            "not on the list",
        ),
        (
            |_| {
                Box::pin(async {
                    Decision::Ask {
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
                    Decision::Ask {
                        reason: "\u{7}".into(),
                    }
                })
            },
            "deny",
            "not_allowed",
        ),
    ];
    for (decider, decision, reason) in cases {
        let mut stage = Script::new().asking(decider).start();
        let answer = answer(&stage, "other.test").await;
        assert!(answer.ends_with(&format!("policy: {reason}\n")), "{answer}");
        let record = stage.record().await;
        assert_eq!(
            (record.decision.as_str(), record.source.as_str()),
            (decision, "decider")
        );
        assert_eq!(
            (record.reason.as_str(), record.policy_override),
            (reason, false)
        );
        assert!(stage.outside.lookups().is_empty());
    }
}

#[tokio::test]
async fn silence_is_a_denial() {
    let mut script = Script::new().asking(|_| Box::pin(std::future::pending()));
    script.settings["policyDecisionTimeoutMs"] = json!(10);
    script.limits.decision_grace = Duration::from_millis(10);
    let mut stage = script.start();
    assert!(
        answer(&stage, "other.test")
            .await
            .ends_with("policy: not_allowed\n")
    );
    let record = stage.record().await;
    assert_eq!(
        (record.decision.as_str(), record.source.as_str()),
        ("deny", "decider")
    );
}

#[tokio::test]
async fn too_many_questions_are_denials() {
    let mut script = Script::new().asking(|_| Box::pin(std::future::pending()));
    script.limits.decisions = 0;
    let stage = script.start();
    assert!(
        answer(&stage, "other.test")
            .await
            .ends_with("policy: not_allowed\n")
    );
}

#[tokio::test]
async fn without_time_to_decide_nobody_is_asked() {
    let stage = Script::new().set("reviewDomains", json!(["*"])).start();
    assert!(
        answer(&stage, "other.test")
            .await
            .ends_with("policy: not_allowed\n")
    );
    tunnel(&stage, "allowed.test").await;
}

#[tokio::test]
async fn reviewed_hosts_are_asked_about_although_they_are_allowed() {
    let decide: Decider = |destination| {
        Box::pin(async move {
            match destination.host.as_str() {
                "allowed.test" => Decision::Allow,
                _ => deny("reviewed"),
            }
        })
    };
    let script = Script::new().set("reviewDomains", json!(["**.allowed.test"]));
    let mut stage = script.asking(decide).start();
    tunnel(&stage, "allowed.test").await;
    let record = stage.record().await;
    assert_eq!(
        (record.source.as_str(), record.policy_override),
        ("decider", false)
    );
    assert!(
        answer(&stage, "a.allowed.test")
            .await
            .ends_with("policy: reviewed\n")
    );
}

#[tokio::test]
async fn nobody_can_allow_a_private_address() {
    let private: IpAddr = "10.0.0.1".parse().unwrap();
    let mapped: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
    let script = Script::new()
        .name("rebound.test", &[private, mapped])
        .name(
            "rebound.allowed.test",
            &["169.254.169.254".parse().unwrap()],
        )
        .asking(|_| Box::pin(async { Decision::Allow }));
    let mut stage = script.start();
    for host in [
        "rebound.test",
        "rebound.allowed.test",
        "10.0.0.1",
        "localhost",
        "0x7f.1",
    ] {
        let answer = answer(&stage, host).await;
        assert!(answer.ends_with("policy: not_allowed_local\n"), "{answer}");
        let record = stage.record().await;
        assert_eq!(
            (record.decision.as_str(), record.source.as_str()),
            ("deny", "baseline_policy")
        );
        assert_eq!(
            (record.reason.as_str(), record.policy_override),
            ("not_allowed_local", false)
        );
    }
    assert!(stage.is_quiet() && stage.outside.connects().is_empty());
}

#[tokio::test]
async fn link_local_and_metadata_addresses_stay_blocked_although_local_ones_are_allowed() {
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
        let mut stage = Script::new()
            .set("domains", json!({"*": "allow"}))
            .set("allowLocalBinding", json!(true))
            .name("allowed.test", &[address])
            .start();
        let literal = match address {
            IpAddr::V4(_) => text.to_owned(),
            IpAddr::V6(_) => format!("[{text}]"),
        };
        for host in ["allowed.test", &literal] {
            let answer = answer(&stage, host).await;
            assert!(
                answer.ends_with("policy: not_allowed_local\n"),
                "{host}: {answer}"
            );
            let record = stage.record().await;
            assert_eq!(record.decision, "deny", "{host}");
        }
        assert!(stage.outside.connects().is_empty(), "{text}");
    }
}

#[tokio::test]
async fn a_link_local_address_is_reached_if_it_is_allowed_literally() {
    let address: IpAddr = "169.254.169.254".parse().unwrap();
    let domains = json!({"169.254.169.254": "allow", "allowed.test": "allow"});
    for local in [false, true] {
        let stage = Script::new()
            .set("domains", domains.clone())
            .set("allowLocalBinding", json!(local))
            .name("allowed.test", &[address])
            .start();
        tunnel(&stage, "169.254.169.254").await;
        if local {
            tunnel(&stage, "allowed.test").await;
        }
        let reached: Vec<IpAddr> = stage.outside.connects().iter().map(|to| to.ip()).collect();
        assert!(
            reached.iter().all(|reached| *reached == address),
            "{reached:?}"
        );
        assert!(
            answer(&stage, "169.254.169.253")
                .await
                .contains("not_allowed_local")
        );
    }
}

#[tokio::test]
async fn a_name_is_looked_up_once_and_private_answers_are_skipped() {
    let second: IpAddr = "93.184.216.35".parse().unwrap();
    let private: IpAddr = "192.168.0.1".parse().unwrap();
    let stage = Script::new()
        .name("allowed.test", &[private, PUBLIC, second])
        .start();
    tunnel(&stage, "allowed.test").await;
    assert_eq!(stage.outside.lookups(), ["allowed.test"]);
    let reached: Vec<IpAddr> = stage.outside.connects().iter().map(|to| to.ip()).collect();
    assert_eq!(reached, [PUBLIC]);
}

#[tokio::test]
async fn addresses_are_tried_in_order() {
    let second: IpAddr = "93.184.216.35".parse().unwrap();
    let stage = Script::new()
        .name("allowed.test", &[PUBLIC, second])
        .start();
    let closed = Server::start().await.port;
    let answer = stage
        .ask(&format!("CONNECT allowed.test:{closed} HTTP/1.1\r\n\r\n"))
        .await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let reached: Vec<IpAddr> = stage.outside.connects().iter().map(|to| to.ip()).collect();
    assert_eq!(reached, [PUBLIC, second]);
    assert_eq!(stage.outside.lookups().len(), 1);
}

#[tokio::test]
async fn local_hosts_are_reached_when_they_are_named_or_all_allowed() {
    let named = Script::new()
        .set("domains", json!({"127.0.0.1": "allow"}))
        .start();
    tunnel(&named, "127.0.0.1").await;
    assert!(
        answer(&named, "127.0.0.2")
            .await
            .contains("not_allowed_local")
    );
    let open = Script::new()
        .set("domains", json!({"*": "allow"}))
        .set("allowLocalBinding", json!(true))
        .name("inside.test", &["10.0.0.1".parse().unwrap()])
        .start();
    tunnel(&open, "inside.test").await;
    tunnel(&open, "127.0.0.1").await;
}
