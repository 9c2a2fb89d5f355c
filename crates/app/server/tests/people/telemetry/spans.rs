//! Tests of exported spans.

use crate::{
    telemetry::{
        logs::{StdioServer, converse},
        span_collector::{Collector, Span},
    },
    test_user::TestUser,
};

const TRACE: [u8; 16] = [
    0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36,
];
const PARENT: [u8; 8] = [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7];
const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn exported(variables: &[(&str, &str)], trace: &str) -> Vec<Span> {
    let collector = Collector::listen().await;
    let user = TestUser::new();
    let mut command = user.command(["--listen", "stdio"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
    command.envs(variables.iter().copied());
    let mut server = StdioServer::start(&mut command);
    let session = converse(&mut server, trace).await;
    // Remaining spans are flushed when the server exits.
    assert_eq!(server.end().await, [""; 0]);
    let spans = collector.spans();
    assert!(
        spans.iter().all(|span| !span.mentions(&session)),
        "{spans:?}"
    );
    spans
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found = spans.iter().find(|span| span.name == name);
    found.unwrap_or_else(|| panic!("no {name:?} in {spans:?}"))
}

#[tokio::test]
async fn request_span_continues_the_client_trace() {
    let trace = format!(r#""trace":{{"traceparent":"{HEADER}","tracestate":"vendor=x"}},"#);
    let spans = exported(&[("OTEL_SERVICE_NAME", "box-7")], &trace).await;
    let start = named(&spans, "process/start");
    assert_eq!(
        (&start.trace[..], &start.parent[..]),
        (&TRACE[..], &PARENT[..])
    );
    assert!(start.comes_from("box-7"), "{start:?}");
    for attribute in ["rpc.method", "jsonrpc", "process_id", "p-1", "session"] {
        assert!(start.mentions(attribute), "{attribute}: {start:?}");
    }
    let life = named(&spans, "process");
    assert_eq!((&life.trace, &life.parent), (&start.trace, &start.id));
    for attribute in ["process.executable.name", "process.exit.code", "exit"] {
        assert!(life.mentions(attribute), "{attribute}: {life:?}");
    }
    // A request without a trace starts its own.
    let resize = named(&spans, "process/resize");
    assert!(resize.parent.is_empty());
    assert_ne!(resize.trace, TRACE);
    assert!(resize.mentions("rpc.jsonrpc.error_code"), "{resize:?}");
    assert!(spans.iter().all(|span| !span.mentions("s3cret")));
}

#[tokio::test]
async fn invalid_trace_is_ignored_and_unsampled_trace_is_not_exported() {
    let nonsense = r#""trace":{"traceparent":"00-zz-01"},"#;
    let spans = exported(&[], nonsense).await;
    let start = named(&spans, "process/start");
    assert!(start.parent.is_empty());
    assert!(start.comes_from("exec-server"), "{start:?}");
    let unsampled = HEADER.replace("-01", "-00");
    let trace = format!(r#""trace":{{"traceparent":"{unsampled}"}},"#);
    let spans = exported(&[], &trace).await;
    assert!(spans.iter().all(|span| span.trace != TRACE), "{spans:?}");
    named(&spans, "initialize");
}

#[tokio::test]
async fn unreachable_collector_does_not_block_the_server() {
    let user = TestUser::new();
    let mut command = user.command(["--listen", "stdio"]);
    // A port that is bound and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    let mut server = StdioServer::start(&mut command);
    converse(&mut server, "").await;
    let began = std::time::Instant::now();
    server.end().await;
    assert!(began.elapsed() < std::time::Duration::from_secs(8));
    assert!(
        exported(&[("OTEL_SDK_DISABLED", "true")], "")
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn start_span_is_exported_while_the_process_runs() {
    let collector = Collector::listen().await;
    let user = TestUser::new();
    let mut command = user.command(["--listen", "stdio"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let mut server = StdioServer::start(&mut command);
    converse(&mut server, "").await;
    server
        .say(r#"{"id":4,"method":"process/start","params":{"processId":"p-2","argv":["sleep","1000"],"cwd":"file:///","env":{"PATH":"/usr/bin:/bin"},"tty":false}}"#)
        .await;
    server.hear(r#""id":4"#).await;
    let start = collector.until("process/start", "p-2").await;
    server.end().await;
    let life = collector.until("process", "p-2").await;
    assert_eq!((life.trace, life.parent), (start.trace, start.id));
}
