//! Processes, and what the connection does for all.

use std::sync::Arc;

use exec_client::{
    backend::RemoteBackend,
    client::{CallError, ExecServerClient},
    handshake::{ConnectError, ConnectOptions},
};
use exec_core::log::{Event, Follow, From, Pace};
use exec_env::{
    backend::{ExecBackend, StartError, StartedProcess},
    command::Command,
    process::{ExecProcess, ProcessError, Read},
};
use exec_transport::{link::Encoding, memory};
use exec_wire::{
    environment::ReadEnvironmentStatus,
    id::{OutputSeq, ProcessId, SessionId},
    outgoing::Outgoing,
    process::{TerminateMode, WaitUntil},
};
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::server::{LIMIT, Server};

impl Server {
    async fn output(&mut self, id: &str, seq: u64, chunk: &str) {
        let params = json!({"processId": id, "seq": seq, "stream": "stdout", "chunk": chunk});
        self.say(json!({"method": "process/output", "params": params}))
            .await;
    }

    async fn exited(&mut self, id: &str, seq: u64) {
        let params = json!({"processId": id, "seq": seq, "exitCode": 0, "signal": "SIGKILL"});
        self.say(json!({"method": "process/exited", "params": params}))
            .await;
    }

    async fn closed(&mut self, id: &str, seq: u64) {
        let params = json!({"processId": id, "seq": seq});
        self.say(json!({"method": "process/closed", "params": params}))
            .await;
    }

    async fn start(&mut self, client: &ExecServerClient, id: &str) -> StartedProcess {
        let backend = RemoteBackend::new(client.clone());
        let accept = async {
            let start = self.expect("process/start").await;
            self.answer(&start, json!({"processId": id})).await;
        };
        let (started, ()) = futures_util::join!(backend.start(command(id)), accept);
        started.unwrap()
    }
}

fn command(id: &str) -> Command {
    let id = ProcessId::new(id).unwrap();
    Command::new(id, vec!["true".to_owned()], "file:///".parse().unwrap())
}

async fn events(process: &Arc<dyn ExecProcess>) -> Vec<Event> {
    let follow = Follow {
        from: From::After(OutputSeq(0)),
        pace: Pace::Held,
    };
    timeout(LIMIT, process.follow(follow).collect())
        .await
        .expect("the stream ends")
}

fn numbers(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.seq().0).collect()
}

#[tokio::test]
async fn another_session_than_the_one_asked_for_is_an_error() {
    let (here, there) = memory::pair();
    let mut server = Server(there);
    let options = ConnectOptions {
        resume_session_id: Some(SessionId::new("mine")),
        ..ConnectOptions::default()
    };
    let shake = async {
        let initialize = server.expect("initialize").await;
        assert_eq!(initialize["params"]["resumeSessionId"], "mine");
        server
            .answer(&initialize, json!({"sessionId": "another"}))
            .await;
    };
    let (client, ()) = futures_util::join!(ExecServerClient::connect(here, options), shake);
    assert!(matches!(client, Err(ConnectError::WrongSession(id)) if id.as_str() == "another"));
}

#[tokio::test]
async fn events_before_the_answer_and_out_of_order_are_followed_in_order() {
    let (mut server, client) = Server::connect().await;
    let backend = RemoteBackend::new(client);
    let start = backend.start(command("p"));
    let play = async {
        let start = server.expect("process/start").await;
        server.exited("p", 2).await;
        let read = server.expect("process/read").await;
        assert_eq!(read["params"]["afterSeq"], 0);
        server.output("p", 1, "YQ==").await;
        server.closed("p", 3).await;
        server.answer(&start, json!({"processId": "p"})).await;
        // The gap is filled already; the page tells nothing new.
        server
            .answer(
                &read,
                json!({"chunks": [{"seq": 1, "stream": "stdout", "chunk": "YQ=="}],
            "nextSeq": 4, "exited": true, "exitCode": 0, "closed": true}),
            )
            .await;
    };
    let (started, ()) = futures_util::join!(start, play);
    let events = events(&started.unwrap().process).await;
    assert_eq!(numbers(&events), [1, 2, 3]);
    assert!(matches!(&events[1], Event::Exited(_, exit) if exit.signal == Some("SIGKILL")));
}

#[tokio::test]
async fn a_loss_fails_its_process_and_no_other() {
    let (mut server, client) = Server::connect().await;
    let lost = server.start(&client, "lost").await.process;
    let other = server.start(&client, "other").await.process;
    server.output("lost", 5, "YQ==").await;
    let read = server.expect("process/read").await;
    server
        .answer(
            &read,
            json!({"chunks": [], "nextSeq": 6, "exited": false, "exitCode": null,
        "closed": false}),
        )
        .await;
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "lost");
    assert_eq!(events(&lost).await, []);
    let failure = lost.signal(exec_wire::process::ProcessSignal::Kill).await;
    assert!(
        matches!(failure, Err(ProcessError::Remote(_))),
        "{failure:?}"
    );
    server.exited("other", 1).await;
    server.closed("other", 2).await;
    assert_eq!(numbers(&events(&other).await), [1, 2]);
}

#[tokio::test]
async fn after_a_disconnect_everything_fails_at_once() {
    let (mut server, client) = Server::connect().await;
    let process = server.start(&client, "p").await.process;
    let pending = process.wait(WaitUntil::Exited, None);
    server.expect("process/wait").await;
    drop(server);
    let disconnected = ProcessError::Disconnected;
    assert_eq!(
        timeout(LIMIT, pending).await.unwrap().unwrap_err(),
        disconnected
    );
    timeout(LIMIT, client.closed()).await.unwrap();
    assert_eq!(events(&process).await, []);
    let outcomes = [
        process.read(Read::default()).await.map(drop),
        process.write(None, bytes::Bytes::new()).await.map(drop),
        process.close_stdin(None).await.map(drop),
        process.terminate(TerminateMode::Force).await.map(drop),
        process.wait(WaitUntil::Closed, None).await.map(drop),
        process.snapshot().await.map(drop),
    ];
    for outcome in outcomes {
        assert_eq!(outcome, Err(disconnected.clone()));
    }
    let started = RemoteBackend::new(client.clone()).start(command("q")).await;
    assert!(matches!(started, Err(StartError::Disconnected)));
    let status = client.call(ReadEnvironmentStatus).await;
    assert_eq!(status, Err(CallError::Disconnected));
}

#[tokio::test]
async fn the_last_handle_ends_the_process() {
    let (mut server, client) = Server::connect().await;
    let started = server.start(&client, "p").await;
    let clone = started.clone();
    drop(started);
    assert!(client.call(ReadEnvironmentStatus).now_or_never().is_none());
    server.expect("environment/status").await;
    drop(clone);
    let terminate = server.expect("process/terminate").await;
    assert_eq!(
        terminate["params"],
        json!({"processId": "p", "mode": {"type": "force"}})
    );
}

#[tokio::test]
async fn the_last_handle_of_all_ends_the_process_before_the_connection() {
    let (mut server, client) = Server::connect().await;
    let started = server.start(&client, "p").await;
    drop(client);
    drop(started);
    server.expect("process/terminate").await;
    let end = timeout(LIMIT, server.0.reader.next()).await.unwrap();
    assert!(matches!(end, Ok(None)));
}

#[tokio::test]
async fn a_start_that_is_dropped_is_ended_when_it_is_answered() {
    let (mut server, client) = Server::connect().await;
    let backend = RemoteBackend::new(client.clone());
    assert!(backend.start(command("p")).now_or_never().is_none());
    let start = server.expect("process/start").await;
    server.answer(&start, json!({"processId": "p"})).await;
    let terminate = server.expect("process/terminate").await;
    assert_eq!(terminate["params"]["processId"], "p");
}

#[tokio::test]
async fn an_id_that_is_followed_is_not_started_again() {
    let (mut server, client) = Server::connect().await;
    let _first = server.start(&client, "p").await;
    let second = RemoteBackend::new(client).start(command("p")).await;
    assert!(
        matches!(
            second,
            Err(StartError::Refused {
                field: "processId",
                ..
            })
        ),
        "{second:?}"
    );
}

#[tokio::test]
async fn a_forgotten_process_is_read_from_what_came_of_it() {
    let (mut server, client) = Server::connect().await;
    let process = server.start(&client, "p").await.process;
    server.output("p", 1, "YQ==").await;
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    events(&process).await;
    let forget = async {
        let read = server.expect("process/read").await;
        let error = json!({"code": -32600, "message": "unknown process id p"});
        server.say(json!({"id": read["id"], "error": error})).await;
    };
    let (page, ()) = futures_util::join!(process.read(Read::default()), forget);
    let page = page.unwrap();
    assert_eq!(
        (page.chunks.len(), page.next_seq, page.closed),
        (1, OutputSeq(4), true)
    );
}

#[tokio::test]
async fn a_malformed_message_ends_the_connection() {
    for text in [
        "{",
        r#"{"method":"process/output","params":{"processId":"p"}}"#,
    ] {
        let (mut server, client) = Server::connect().await;
        server
            .push(Outgoing::Text(text.into()), Encoding::Text)
            .await;
        timeout(LIMIT, client.closed()).await.expect("it ends");
    }
}

#[tokio::test]
async fn unknown_notifications_are_ignored_and_requests_are_refused() {
    let (mut server, client) = Server::connect().await;
    server
        .say(json!({"method": "no/such", "params": {"a": 1}}))
        .await;
    server.output("nobody", 1, "YQ==").await;
    server
        .say(json!({"id": "x", "method": "network/unknown"}))
        .await;
    let refusal = timeout(LIMIT, server.0.reader.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let refusal: Value = serde_json::from_slice(&refusal).unwrap();
    assert_eq!(
        (&refusal["id"], &refusal["error"]["code"]),
        (&json!("x"), &json!(-32601))
    );
    drop(client);
}
