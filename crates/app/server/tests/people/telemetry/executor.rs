//! Tests of the telemetry of an executor behind a hub.

use std::{fs, time::Duration};

use exec_server::{
    Command, ExecServerClient, PathUri, ProcessId, RelayExecServerConnectArgs, WaitUntil,
};
use tokio::time::timeout;

use crate::{
    telemetry::{http_client::Samples, logs::StdioServer, span_collector::Collector},
    test_user::{Hub, TestUser, within_timeout},
};

#[tokio::test]
async fn finished_command_leaves_no_state_on_the_executor() {
    let user = TestUser::new();
    let hub = Hub::start(&user).await;
    let mut executor = user.command(["--remote", &hub.server.url, "--environment-id", "box"]);
    executor
        .arg("--remote-token-file")
        .arg(&hub.token_file)
        .args(["--metrics-listen", "127.0.0.1:0", "--log-level", "info"]);
    let mut executor = StdioServer::start(&mut executor);
    let metrics = executor.metrics_address().await;
    executor.hear("online box").await;
    let token = hub.token_file.to_str().unwrap();
    let added = ["env", "add", "box", "--hub", &hub.server.url];
    let added = added.into_iter().chain(["--token-file", token]);
    user.run(added).await.expect_success();

    let [work, missing] = ["/", "/not/there"];
    user.run(["ls", "--env", "box", work])
        .await
        .expect_success();
    user.run(["run", "--env", "box", "true"])
        .await
        .expect_success();
    let failed = user.run(["ls", "--env", "box", missing]).await;
    assert_ne!(failed.status, Some(0), "{failed:?}");
    // An executor keeps a stream for twenty seconds, because its harness may reconnect.
    let remaining = async {
        while Samples::of(&metrics).await.value("exec_server_connections") > 0.0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), remaining).await.unwrap();
}

#[tokio::test]
async fn executor_behind_a_hub_exports_metrics_and_spans() {
    let (user, collector) = (TestUser::new(), Collector::listen().await);
    let hub = Hub::start(&user).await;
    let mut executor = user.command(["--remote", &hub.server.url, "--environment-id", "box"]);
    executor
        .arg("--remote-token-file")
        .arg(&hub.token_file)
        .args(["--metrics-listen", "127.0.0.1:0", "--log-level", "info"])
        .env(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            collector.url.clone() + "/v1/traces",
        );
    let mut executor = StdioServer::start(&mut executor);
    let metrics = executor.metrics_address().await;
    executor.hear("online box").await;

    let token = fs::read_to_string(&hub.token_file).unwrap();
    let url = hub.server.url.as_str();
    let args = RelayExecServerConnectArgs::new(url, "box", token.as_str(), "watcher");
    let client = within_timeout(ExecServerClient::connect_relay(args))
        .await
        .unwrap();
    let root = PathUri::parse("file:///").unwrap();
    let argv = vec!["/bin/true".to_owned()];
    let command = Command::new(ProcessId::new("p").unwrap(), argv, root);
    let environment = client.environment();
    let started = within_timeout(environment.backend.start(command)).await;
    let process = started.unwrap().process;
    within_timeout(process.wait(WaitUntil::Closed, None))
        .await
        .unwrap();

    let now = Samples::of(&metrics).await;
    assert_eq!(now.value("exec_server_connections"), 1.0);
    assert_eq!(now.value("exec_server_processes_started_total"), 1.0);
    drop((process, environment, client));
    let logs = executor.stop().await.concat();
    assert!(logs.contains("process started"), "{logs}");
    let names: Vec<String> = collector
        .spans()
        .into_iter()
        .map(|span| span.name)
        .collect();
    for name in ["initialize", "process/start", "process"] {
        assert!(
            names.iter().any(|other| other == name),
            "{name} in {names:?}"
        );
    }
}
