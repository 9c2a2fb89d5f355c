//! An executor that nobody can reach but through a hub is watched like any other.

use std::{fs, time::Duration};

use exec_server::{
    Command, ExecServerClient, PathUri, ProcessId, RelayExecServerConnectArgs, WaitUntil,
};
use tokio::time::timeout;

use super::{collector::Collector, http::Samples, logs::Spoken};
use crate::cast::{Hub, Person, soon};

#[tokio::test]
async fn a_command_that_is_done_leaves_nothing_behind_that_the_executor_keeps() {
    let person = Person::new();
    let hub = Hub::start(&person).await;
    let mut executor = person.command(["--remote", &hub.server.url, "--environment-id", "box"]);
    executor
        .arg("--remote-token-file")
        .arg(&hub.token_file)
        .args(["--metrics-listen", "127.0.0.1:0", "--log-level", "info"]);
    let mut executor = Spoken::start(&mut executor);
    let metrics = executor.metrics_address().await;
    executor.hear("online box").await;
    let token = hub.token_file.to_str().unwrap();
    let added = ["env", "add", "box", "--hub", &hub.server.url];
    let added = added.into_iter().chain(["--token-file", token]);
    person.run(added).await.well();

    let [work, missing] = ["/", "/not/there"];
    person.run(["ls", "--env", "box", work]).await.well();
    person.run(["run", "--env", "box", "true"]).await.well();
    let failed = person.run(["ls", "--env", "box", missing]).await;
    assert_ne!(failed.status, Some(0), "{failed:?}");
    // An executor keeps a stream for twenty seconds if its harness may come back.
    let left = async {
        while Samples::of(&metrics).await.value("exec_server_connections") > 0.0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), left).await.unwrap();
}

#[tokio::test]
async fn an_executor_behind_a_hub_counts_and_sends_spans() {
    let (person, collector) = (Person::new(), Collector::listen().await);
    let hub = Hub::start(&person).await;
    let mut executor = person.command(["--remote", &hub.server.url, "--environment-id", "box"]);
    executor
        .arg("--remote-token-file")
        .arg(&hub.token_file)
        .args(["--metrics-listen", "127.0.0.1:0", "--log-level", "info"])
        .env(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            collector.url.clone() + "/v1/traces",
        );
    let mut executor = Spoken::start(&mut executor);
    let metrics = executor.metrics_address().await;
    executor.hear("online box").await;

    let token = fs::read_to_string(&hub.token_file).unwrap();
    let url = hub.server.url.as_str();
    let args = RelayExecServerConnectArgs::new(url, "box", token.as_str(), "watcher");
    let client = soon(ExecServerClient::connect_relay(args)).await.unwrap();
    let root = PathUri::parse("file:///").unwrap();
    let argv = vec!["/bin/true".to_owned()];
    let command = Command::new(ProcessId::new("p").unwrap(), argv, root);
    let environment = client.environment();
    let started = soon(environment.backend.start(command)).await;
    let process = started.unwrap().process;
    soon(process.wait(WaitUntil::Closed, None)).await.unwrap();

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
        assert!(names.iter().any(|seen| seen == name), "{name} in {names:?}");
    }
}
