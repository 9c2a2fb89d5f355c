//! Cases that hold in every environment.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use exec_env::process::ExecProcess;
use exec_mcp_client::{
    config::{ConnectedServer, InheritedVariables, LaunchError, McpServerConfig},
    transport::{McpTransport, McpTransportError},
};
use exec_test_support::bounded_wait::{LIMIT, within};
use exec_wire::process::{ProcessSignal, WaitUntil};
use futures_util::future::join_all;
use rmcp::{
    ClientHandler,
    model::{CallToolRequestParams, CallToolResult, ProgressNotificationParam},
    service::{NotificationContext, RoleClient, RunningService, ServiceError, serve_client},
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fixture::{self, EnvironmentFixture};

fn time() -> McpServerConfig {
    McpServerConfig::new("time", fixture::time(), "file:///".parse().unwrap())
}

fn everything() -> McpServerConfig {
    let cwd = "file:///".parse().unwrap();
    let mut config = McpServerConfig::new("everything", fixture::everything(), cwd);
    config.args = vec!["stdio".to_owned()];
    config.startup_timeout = LIMIT;
    config
}

async fn connect(fixture: &EnvironmentFixture, config: &McpServerConfig) -> ConnectedServer<()> {
    let connect = config.connect(&*fixture.backend, fixture.id(), ());
    within("a server gets ready", connect).await.unwrap()
}

fn tool(name: &'static str, arguments: &Value) -> CallToolRequestParams {
    let arguments = arguments.as_object().unwrap().clone();
    CallToolRequestParams::new(name).with_arguments(arguments)
}

/// Returns the first text of a result.
fn text(result: &CallToolResult) -> String {
    let result = serde_json::to_value(result).unwrap();
    let text = result["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text: {result}"))
        .to_owned()
}

async fn call(
    service: &RunningService<RoleClient, ()>,
    name: &'static str,
    arguments: Value,
) -> String {
    let called = service.call_tool(tool(name, &arguments));
    text(&within("a tool is called", called).await.unwrap())
}

/// Makes a call that never completes.
async fn endless_call(service: &RunningService<RoleClient, impl ClientHandler>) -> ServiceError {
    let arguments = json!({"duration": 600, "steps": 600});
    let called = service.call_tool(tool("trigger-long-running-operation", &arguments));
    within("the call is over", called).await.unwrap_err()
}

fn transport_error(error: &ServiceError) -> McpTransportError {
    let ServiceError::TransportSend(error) = error else {
        panic!("expected a transport error: {error:?}");
    };
    let error = error.error.downcast_ref::<McpTransportError>();
    error.unwrap().clone()
}

/// Starts the server with a second process handle for the test.
async fn with_handle(fixture: &EnvironmentFixture) -> (Arc<dyn ExecProcess>, McpTransport) {
    let config = everything();
    let started = fixture.backend.start(config.command(fixture.id())).await;
    let process = started.unwrap().process;
    let transport = McpTransport::new(process.clone(), &config);
    (process, transport)
}

pub(crate) async fn pypi_time_server_converts_times(fixture: &EnvironmentFixture) {
    let ConnectedServer { service, .. } = connect(fixture, &time()).await;
    let tools = within("tools are listed", service.list_all_tools()).await;
    let names: Vec<_> = tools.unwrap().into_iter().map(|tool| tool.name).collect();
    assert_eq!(names, ["get_current_time", "convert_time"]);
    let arguments = json!({
        "source_timezone": "Etc/UTC",
        "time": "12:00",
        "target_timezone": "Asia/Tokyo",
    });
    let converted = call(&service, "convert_time", arguments).await;
    assert!(converted.contains("T21:00:00+09:00"), "{converted}");
}

pub(crate) async fn npm_everything_server_adds_numbers(fixture: &EnvironmentFixture) {
    let ConnectedServer { service, .. } = connect(fixture, &everything()).await;
    let sum = call(&service, "get-sum", json!({"a": 40, "b": 2})).await;
    assert!(sum.contains("42"), "{sum}");
}

pub(crate) async fn megabyte_message_is_echoed(fixture: &EnvironmentFixture) {
    let ConnectedServer { service, .. } = connect(fixture, &everything()).await;
    let message = "gr\u{fc}n \u{1f331} ".repeat(100_000);
    let echo = call(&service, "echo", json!({ "message": message })).await;
    assert!(echo.ends_with(&message), "{} bytes", echo.len());
}

/// Counts progress notifications.
#[derive(Clone, Default)]
struct ProgressCounter(Arc<(Mutex<u64>, Notify)>);

impl ClientHandler for ProgressCounter {
    async fn on_progress(&self, _: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_one();
    }
}

pub(crate) async fn progress_notifications_arrive_during_a_call(fixture: &EnvironmentFixture) {
    let (progress, config) = (ProgressCounter::default(), everything());
    let connect = config.connect(&*fixture.backend, fixture.id(), progress.clone());
    let ConnectedServer { service, .. } = within("a server gets ready", connect).await.unwrap();
    let arguments = json!({"duration": 0.3, "steps": 3});
    let called = service.call_tool(tool("trigger-long-running-operation", &arguments));
    let result = within("a tool is called", called).await.unwrap();
    assert!(text(&result).contains("completed"), "{result:?}");
    within("three progress notifications", async {
        while *progress.0.0.lock().unwrap() < 3 {
            progress.0.1.notified().await;
        }
    })
    .await;
}

pub(crate) async fn environment_variables_match_the_configuration(fixture: &EnvironmentFixture) {
    let mut config = everything();
    config.env.insert("GIVEN".to_owned(), "value".to_owned());
    for (env_vars, plain, token) in [
        (InheritedVariables::Core, None, None),
        (
            InheritedVariables::Named(vec!["EXEC_MCP_TOKEN".to_owned()]),
            None,
            Some("secret"),
        ),
        (
            InheritedVariables::Named(vec!["EXEC_MCP_*".to_owned()]),
            Some("plain"),
            Some("secret"),
        ),
    ] {
        config.env_vars = env_vars;
        let ConnectedServer { service, .. } = connect(fixture, &config).await;
        let env = call(&service, "get-env", json!({})).await;
        let env: Value = serde_json::from_str(&env).unwrap();
        assert_eq!(env["GIVEN"], "value");
        assert!(env["PATH"].is_string());
        assert_eq!(env["EXEC_MCP_PLAIN"].as_str(), plain);
        assert_eq!(env["EXEC_MCP_TOKEN"].as_str(), token);
    }
}

pub(crate) async fn concurrent_calls_complete(fixture: &EnvironmentFixture) {
    let ConnectedServer { service, .. } = connect(fixture, &everything()).await;
    let calls = (0..200).map(|number| {
        let service = &service;
        async move {
            let sum = call(service, "get-sum", json!({"a": number, "b": 1000})).await;
            let expected = (number + 1000).to_string();
            assert!(sum.contains(&expected), "{sum}");
        }
    });
    join_all(calls).await;
}

pub(crate) async fn killed_server_fails_the_pending_call(fixture: &EnvironmentFixture) {
    let (process, transport) = with_handle(fixture).await;
    let progress = ProgressCounter::default();
    let service = within("it gets ready", serve_client(progress.clone(), transport)).await;
    let service = service.unwrap();
    let kill = async {
        // The first notification shows that the call is in progress.
        within("the call begins", progress.0.1.notified()).await;
        let killed = process.signal(ProcessSignal::Kill).await;
        killed.unwrap();
        Instant::now()
    };
    let (error, killed) = futures_util::future::join(endless_call(&service), kill).await;
    assert!(killed.elapsed() < Duration::from_secs(10));
    let McpTransportError::Exited { exit, .. } = transport_error(&error) else {
        panic!("expected the end: {error:?}");
    };
    assert_eq!((exit.code, exit.signal), (137, Some("SIGKILL")));
    let text = error.to_string();
    assert!(text.contains("was killed by SIGKILL"), "{text}");
}

pub(crate) async fn disconnect_fails_the_pending_call(fixture: &EnvironmentFixture) {
    let progress = ProgressCounter::default();
    let config = everything();
    let connect = config.connect(&*fixture.backend, fixture.id(), progress.clone());
    let ConnectedServer { service, watch } = within("it gets ready", connect).await.unwrap();
    let disconnect = async {
        within("the call begins", progress.0.1.notified()).await;
        fixture.disconnect();
        Instant::now()
    };
    let (error, disconnected) =
        futures_util::future::join(endless_call(&service), disconnect).await;
    assert!(disconnected.elapsed() < Duration::from_secs(10));
    let lost = transport_error(&error);
    assert!(matches!(lost, McpTransportError::Lost { .. }), "{lost:?}");
    assert_eq!(watch.ended(), Some(lost));
}

pub(crate) async fn missing_server_program_is_a_start_error(fixture: &EnvironmentFixture) {
    let cwd = "file:///".parse().unwrap();
    let config = McpServerConfig::new("absent", "/nowhere/mcp-server", cwd);
    let connect = config.connect(&*fixture.backend, fixture.id(), ());
    let error = within("it is refused", connect).await.unwrap_err();
    assert!(matches!(error, LaunchError::Start { .. }), "{error:?}");
}

pub(crate) async fn non_mcp_program_is_reported_with_its_stderr(fixture: &EnvironmentFixture) {
    let cwd = "file:///".parse().unwrap();
    let mut config = McpServerConfig::new("broken", "/bin/sh", cwd);
    let script = "read line; echo hello; echo 'config not found' >&2; exit 7";
    config.args = vec!["-c".to_owned(), script.to_owned()];
    let connect = config.connect(&*fixture.backend, fixture.id(), ());
    let error = within("it ends", connect).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LaunchError::Transport(_)), "{error:?}");
    assert!(text.contains("exited with code 7"), "{text}");
    assert!(text.contains("config not found"), "{text}");
}

pub(crate) async fn dropping_the_service_stops_the_server(fixture: &EnvironmentFixture) {
    let (process, transport) = with_handle(fixture).await;
    let service = within("it gets ready", serve_client((), transport)).await;
    drop(service.unwrap());
    let ended = within("it ends", process.wait(WaitUntil::Exited, None)).await;
    let exit = ended.unwrap().exit.unwrap();
    assert_eq!(
        (exit.code, exit.signal),
        (0, None),
        "it exits when its stdin is closed"
    );
}
