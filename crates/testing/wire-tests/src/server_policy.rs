//! Server policy: invalid sandboxes, disabled modes, and the process limit.

use serde_json::json;

use crate::{
    client::{script_params, with},
    over_every_transport,
    server::{PATH, Server, Transport},
};

over_every_transport!(
    invalid_sandbox_is_refused,
    only_working_capabilities_are_advertised,
    direct_exec_can_be_disabled,
    prepared_exec_can_be_disabled,
    number_of_processes_per_session_is_bounded,
);

async fn invalid_sandbox_is_refused(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let sandboxes = [
        json!({}),
        json!({"permissions": {"type": "managed"}, "windowsSandboxLevel": "disabled"}),
        json!({"permissions": {"type": "disabled"}}),
        json!({"permissions": {"type": "disabled"}, "windowsSandboxLevel": "mxc"}),
        json!("none"),
    ];
    for sandbox in sandboxes {
        let params = with(script_params("p", "true"), json!({"sandbox": sandbox}));
        let message = client.expect_error(-32602, "process/start", params).await;
        assert!(message.contains("sandbox"), "{message}");
    }
    // These have no effect without a sandbox.
    let idle = json!({"enforceManagedNetwork": true, "managedNetwork": {"loopbackPorts": [1]}});
    client.start_with(script_params("p", "true"), idle).await;
}

async fn only_working_capabilities_are_advertised(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let info = client.call("environment/info", json!({})).await;
    for (capability, method) in [
        ("fsWatchMissing", "fs/watchMissing"),
        ("capabilityDiscoveryV2", "capabilities/discoverV2"),
        ("environmentConfigRead", "environmentConfig/read"),
        ("fileWriteStreaming", "fs/writeBlock"),
    ] {
        let id = client.request(method, json!([])).await;
        let exists = client.answer(id).await["error"]["code"] != -32601;
        let claimed = info["capabilities"][capability] == true;
        assert!(
            !claimed || exists,
            "{capability} is claimed without {method}"
        );
    }
}

async fn direct_exec_can_be_disabled(transport: Transport) {
    let mut server = Server::start(transport, &["--allow-direct-exec", "false"]).await;
    let mut client = server.ready().await;
    for mode in [json!(null), json!("direct")] {
        let params = with(script_params("p", "true"), json!({"mode": mode}));
        let message = client.expect_error(-32600, "process/start", params).await;
        assert!(message.contains("direct"), "{message}");
    }
    let exec = json!({"processId": "p", "argv": ["true"], "cwd": "/", "env": {"PATH": PATH}, "tty": false});
    client.expect_error(-32600, "command/exec", exec).await;
    client
        .start_with(script_params("p", "exit 2"), json!({"mode": "prepared"}))
        .await;
    assert_eq!(client.finish("p").await.code(), 2);
}

async fn prepared_exec_can_be_disabled(transport: Transport) {
    let mut server = Server::start(transport, &["--allow-prepared-exec", "false"]).await;
    let mut client = server.ready().await;
    let params = with(script_params("p", "true"), json!({"mode": "prepared"}));
    let message = client.expect_error(-32600, "process/start", params).await;
    assert!(message.contains("prepared"), "{message}");
    client
        .start_with(script_params("p", "exit 2"), json!({"mode": "direct"}))
        .await;
    client
        .start_with(script_params("q", "exit 2"), json!({}))
        .await;
}

async fn number_of_processes_per_session_is_bounded(transport: Transport) {
    let mut server = Server::start(transport, &["--max-processes", "2"]).await;
    let mut client = server.ready().await;
    client.start("a", "exec sleep 1000").await;
    client
        .expect_error(
            -32603,
            "process/start",
            with(script_params("x", ""), json!({"argv": ["nope"]})),
        )
        .await;
    client.start("b", "exec sleep 1000").await;
    let message = client
        .expect_error(-32600, "process/start", script_params("c", "true"))
        .await;
    assert!(
        message.contains('2') && message.contains("limit"),
        "{message}"
    );
    let pipelined: Vec<i64> = {
        let mut ids = Vec::new();
        for id in ["d", "e", "f"] {
            ids.push(
                client
                    .request("process/start", script_params(id, "true"))
                    .await,
            );
        }
        ids
    };
    for id in pipelined {
        assert_eq!(client.answer(id).await["error"]["code"], -32600);
    }
    client.expect_alive().await;
}
