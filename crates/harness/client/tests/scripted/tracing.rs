//! Trace context of requests.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use exec_client::client::{ExecServerClient, ExecServerClientConnectOptions};
use exec_env::process::ExecProcess;
use exec_transport::memory;
use exec_transport::trace::TraceSource;
use exec_wire::{environment::ReadEnvironmentStatus, message::TraceContext};
use serde_json::{Value, json};

use crate::scripted_server::{ScriptedServer, session, within};

async fn connect(trace: Option<TraceSource>) -> (ScriptedServer, ExecServerClient, Value) {
    let (client_link, server_link) = memory::pair();
    let mut server = ScriptedServer(server_link);
    let options = ExecServerClientConnectOptions {
        trace,
        ..ExecServerClientConnectOptions::default()
    };
    let connect = ExecServerClient::connect(client_link, options);
    let (client, initialize) = futures_util::join!(connect, server.handshake(session("s")));
    (server, client.unwrap(), initialize)
}

#[tokio::test]
async fn every_request_carries_the_current_trace() {
    let trace_calls = Arc::new(AtomicU64::new(0));
    let number = Arc::clone(&trace_calls);
    let source = TraceSource::new(move || {
        let number = number.fetch_add(1, Ordering::Relaxed);
        (number != 1).then(|| TraceContext {
            traceparent: Some(format!("00-{number}")),
            tracestate: Some("a=b".to_owned()),
        })
    });
    let (mut server, client, initialize) = connect(Some(source)).await;
    let trace = |number: u64| json!({"traceparent": format!("00-{number}"), "tracestate": "a=b"});
    assert_eq!(initialize["trace"], trace(0));
    for expected in [Value::Null, trace(2)] {
        let status = client.call(ReadEnvironmentStatus);
        let request = server.expect("environment/status").await;
        assert_eq!(request["trace"], expected);
        server.answer(&request, json!({"status": "ready"})).await;
        within(status).await.unwrap();
    }
    let process: Arc<dyn ExecProcess> = server.start(&client, "p").await.process;
    let write = process.write(None, bytes::Bytes::from_static(b"hi"));
    let request = server.expect("process/write").await;
    assert_eq!(request["trace"], trace(4));
    assert_eq!(request["params"]["chunk"], "aGk=");
    drop(write);
    assert_eq!(trace_calls.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn requests_without_a_source_carry_no_trace() {
    let (mut server, client, initialize) = connect(None).await;
    assert!(initialize.get("trace").is_none());
    let _status = client.call(ReadEnvironmentStatus);
    let request = server.expect("environment/status").await;
    let members: Vec<_> = request.as_object().unwrap().keys().collect();
    assert_eq!(members, ["id", "method", "params"]);
}
