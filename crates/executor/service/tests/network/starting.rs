//! Starts with a proxy.

use serde_json::{Value, json};

use crate::client::{Server, has_proxy, params};

async fn refusal(params: &Value) -> String {
    let server = Server::new();
    let mut client = server.connect(None).await;
    let answer = client.call("process/start", params).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    answer["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn no_time_to_decide_is_refused() {
    let text = refusal(&params("p", Some(0))).await;
    assert!(
        text.contains("networkProxy.policyDecisionTimeoutMs"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_id_that_a_client_cannot_be_asked_about_is_refused() {
    for id in ["", &"p".repeat(257)] {
        let text = refusal(&params(id, Some(1))).await;
        assert!(text.contains("processId"), "{text}");
    }
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let longest = "p".repeat(256);
    for (id, timeout_ms) in [(&*longest, Some(1)), ("", None), (&"p".repeat(257), None)] {
        let started = server.start(&mut client, &params(id, timeout_ms)).await;
        assert!(has_proxy(&started.command));
        assert!(started.command.network.watcher.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_without_its_settings_is_refused_by_name() {
    for member in [
        "enabled",
        "enableSocks5",
        "enableSocks5Udp",
        "allowUpstreamProxy",
        "dangerouslyAllowAllUnixSockets",
        "allowLocalBinding",
        "mode",
    ] {
        let mut params = params("p", None);
        let proxy = params["networkProxy"]["proxy"].as_object_mut().unwrap();
        proxy.remove(member);
        let text = refusal(&params).await;
        assert!(text.contains("networkProxy.proxy"), "{text}");
        assert!(text.contains(member), "{text}");
    }
    let mut params = params("p", None);
    params["networkProxy"]["proxy"]["mode"] = json!("open");
    let text = refusal(&params).await;
    assert!(text.contains("networkProxy.proxy.mode"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn names_for_the_record_are_not_looked_at() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let mut params = params("p", None);
    params["networkProxy"]["environmentId"] = json!("");
    params["networkProxy"]["executionId"] = json!("x\n".repeat(1000));
    let started = server.start(&mut client, &params).await;
    let proxy = started.command.network.proxy.unwrap();
    assert_eq!(proxy.environment_id.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn a_process_without_a_proxy_is_not_watched() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let mut params = params("p", None);
    params["networkProxy"] = Value::Null;
    params["enforceManagedNetwork"] = json!(true);
    params["managedNetwork"] = json!({"loopbackPorts": [80]});
    let network = server.start(&mut client, &params).await.command.network;
    assert!(network.watcher.is_none() && network.enforced);
    assert_eq!(network.managed.unwrap().loopback_ports, [80]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_does_not_decode_is_refused_by_name() {
    let entry = |path: Value, access: &str| {
        json!({
            "permissions": {
                "type": "managed",
                "file_system": {"type": "restricted", "entries": [{"path": path, "access": access}]},
                "network": "restricted",
            },
            "windowsSandboxLevel": "disabled",
        })
    };
    let root = json!({"type": "special", "value": {"kind": "root"}});
    let odd = json!({"type": "special", "value": {"kind": "odd"}});
    let nowhere = json!({"type": "path", "path": "/native"});
    let disabled = json!({"type": "disabled"});
    for (sandbox, culprit) in [
        (entry(odd, "read"), "odd"),
        (entry(root, "execute"), "execute"),
        (entry(nowhere, "read"), "URI"),
        (json!({"permissions": disabled}), "windowsSandboxLevel"),
        (json!({"windowsSandboxLevel": "disabled"}), "permissions"),
        (json!("read-only"), "sandbox"),
    ] {
        let mut params = params("p", None);
        params["sandbox"] = sandbox;
        let text = refusal(&params).await;
        assert!(text.contains(culprit) && text.contains("sandbox"), "{text}");
    }
}
