//! Disconnects that cannot be recovered from: everything fails at once, and says why.

use std::time::Duration;

use exec_client::{
    backend::RemoteBackend,
    client::ExecServerClient,
    connector::Continuity,
    error::{ConnectError, ExecServerError, Fault},
};
use exec_env::{
    backend::{ExecBackend, StartError},
    disconnect::Disconnect,
    process::{ExecProcessEvent as Event, ProcessError, Read},
};
use exec_transport::link::Encoding;
use exec_wire::{
    environment::ReadEnvironmentStatus,
    outgoing::Outgoing,
    process::{TerminateMode, WaitUntil},
};
use futures_util::FutureExt;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::{
    doors::House,
    server::{Server, command, events, session, within},
};

/// The refusal of a session that is gone.
const UNKNOWN: &str = "server hung up; session was not resumed: server refused the session: \
    unknown session id s (-32600)";

/// Another session is begun for the next call, and the process of the one before stays failed.
async fn begins_anew(house: &mut House, client: &ExecServerClient) -> Server {
    let status = client.call(ReadEnvironmentStatus);
    let mut server = house.knock().await;
    let initialize = server.shake_hands(session("t")).await;
    assert_eq!(initialize["params"]["resumeSessionId"], json!(null));
    let asked = server.expect("environment/status").await;
    server.answer(&asked, json!({"status": "ready"})).await;
    within(status).await.unwrap();
    assert_eq!(client.session().session_id.as_str(), "t");
    server
}

#[tokio::test]
async fn a_session_that_the_server_does_not_know_is_lost_at_once() {
    let (mut house, mut server, client) = House::connect().await;
    let process = server.start(&client, "p").await.process;
    let pending = process.wait(WaitUntil::Closed, None);
    server.expect("process/wait").await;
    let closed = client.closed();
    drop(server);
    let mut server = house.knock().await;
    let initialize = server.expect("initialize").await;
    let queued = client.call(ReadEnvironmentStatus);
    server
        .refuse(&initialize, -32600, "unknown session id s")
        .await;
    let gone = Disconnect::Session(UNKNOWN.to_owned());
    let error = ProcessError::Disconnected(gone.clone());
    assert_eq!(within(pending).await, Err(error.clone()));
    let failure = within(queued).await.unwrap_err();
    assert_eq!(failure, ExecServerError::Disconnected(gone));
    assert_eq!(failure.fault(), Fault::Session);
    within(closed).await;
    assert_eq!(events(&process).await, [Event::Failed(error.clone())]);
    let mut server = begins_anew(&mut house, &client).await;
    assert_eq!(
        within(process.wait(WaitUntil::Closed, None)).await,
        Err(error)
    );
    // Its id is free in the other session, and dropping the old handle does not end the new one.
    let other = server.start(&client, "p").await;
    drop(process);
    drop(client.call(ReadEnvironmentStatus));
    server.expect("environment/status").await;
    drop(other);
    server.expect("process/terminate").await;
}

#[tokio::test]
async fn another_session_than_the_one_asked_for_breaks_the_protocol() {
    let (mut house, mut server, client) = House::connect().await;
    let process = server.start(&client, "p").await.process;
    drop(server);
    let mut server = house.knock().await;
    let initialize = server.expect("initialize").await;
    server.answer(&initialize, session("x")).await;
    let text = "server hung up; session was not resumed: \
        server resumed session `x` instead of `s`";
    let error = ProcessError::Disconnected(Disconnect::Protocol(text.to_owned()));
    assert_eq!(events(&process).await, [Event::Failed(error)]);
}

#[tokio::test(start_paused = true)]
async fn recovery_with_a_server_that_promises_nothing_ends_after_45_seconds() {
    let (mut house, mut server, client) = House::connect().await;
    let process = server.start(&client, "p").await.process;
    let begin = Instant::now();
    house.close(usize::MAX);
    let backend = RemoteBackend::new(client.clone());
    let play = async {
        server.expect("process/start").await;
        drop(server);
    };
    let limit = Duration::from_secs(60);
    let start = timeout(limit, backend.start(command("q")));
    let (started, ()) = futures_util::join!(start, play);
    assert_eq!(begin.elapsed().as_secs(), 45);
    assert!(house.times().len() > 240, "{}", house.times().len());
    let text = "server hung up; session was not resumed within 45s: ";
    assert!(
        matches!(started.unwrap(), Err(StartError::Disconnected(Disconnect::Transport(reason)))
            if reason.starts_with(text) && reason.contains("connection refused"))
    );
    assert!(matches!(
        &events(&process).await[..],
        [Event::Failed(ProcessError::Disconnected(
            Disconnect::Transport(_)
        ))]
    ));
    // A call is one attempt; it says what that came to.
    let failure = within(client.call(ReadEnvironmentStatus))
        .await
        .unwrap_err();
    assert!(matches!(
        &failure,
        ExecServerError::Connect(ConnectError::Link(_))
    ));
    assert_eq!(failure.fault(), Fault::Transport);
    assert_eq!(begin.elapsed().as_secs(), 45);
    house.close(0);
    begins_anew(&mut house, &client).await;
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_hangs_for_good_is_given_up_in_time() {
    let (mut house, mut server, client) = House::connect().await;
    let process = server.start(&client, "p").await.process;
    let begin = Instant::now();
    drop(server);
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(house.knock().await);
    }
    let end = timeout(Duration::from_secs(60), client.closed()).await;
    end.expect("it is given up");
    assert_eq!(begin.elapsed().as_secs(), 45);
    let told = events(&process).await;
    let text = "did not answer `initialize` within 10s";
    assert!(
        matches!(&told[..], [Event::Failed(ProcessError::Disconnected(gone))]
            if gone.to_string().contains(text)),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lets_in_and_hangs_up_is_given_up_in_time() {
    let (mut house, mut server, client) = House::connect().await;
    let process = server.start(&client, "p").await.process;
    let begin = Instant::now();
    drop(server);
    let play = async {
        loop {
            let mut server = house.knock().await;
            let initialize = server.expect("initialize").await;
            let answer = json!({"id": initialize["id"], "result": session("s")});
            let text = answer.to_string().into_bytes();
            server.0.writer.push(Outgoing::Text(text), Encoding::Text);
            // The last attempt may be out of time already.
            drop(server.0.writer.flush().await);
        }
    };
    let end = timeout(Duration::from_secs(60), client.closed());
    tokio::select! {
        () = play => {}
        ended = end => ended.expect("it is given up"),
    }
    assert!(begin.elapsed() < Duration::from_secs(47));
    assert!(matches!(&events(&process).await[..], [Event::Failed(_)]));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_lasts_a_while_each_time_is_not_given_up() {
    let (mut house, mut server, client) = House::connect().await;
    let process = server.start(&client, "p").await.process;
    let wait = process.wait(WaitUntil::Exited, None);
    server.expect("process/wait").await;
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(5)).await;
        drop(server);
        server = house.resume().await;
        // Neither is answered.
        server.expect("process/read").await;
        server.expect("process/wait").await;
    }
    assert!(wait.now_or_never().is_none());
    assert!(process.status().tree_alive);
}

#[tokio::test]
async fn a_server_that_goes_with_its_link_is_not_looked_for() {
    let session = session("s");
    let (mut house, mut server, client) = House::connect_to(Continuity::Ended, session).await;
    let process = server.start(&client, "p").await.process;
    let pending = client.call(ReadEnvironmentStatus);
    server.expect("environment/status").await;
    drop(server);
    let gone = Disconnect::Transport("server hung up".to_owned());
    assert_eq!(
        within(pending).await,
        Err(ExecServerError::Disconnected(gone.clone()))
    );
    let error = ProcessError::Disconnected(gone);
    assert_eq!(events(&process).await, [Event::Failed(error)]);
    assert_eq!(house.times().len(), 1);
    begins_anew(&mut house, &client).await;
}

#[tokio::test]
async fn a_client_that_nobody_holds_does_not_recover() {
    let (mut house, mut server, client) = House::connect().await;
    let process = server.start(&client, "p").await;
    drop(server);
    let mut server = house.knock().await;
    server.expect("initialize").await;
    drop((client, process));
    // The link is closed: the session's time is running at the server.
    let end = within(server.0.reader.next()).await;
    assert!(matches!(end, Ok(None)));
}

#[tokio::test]
async fn a_process_that_was_over_stays_readable_and_names_no_other() {
    let (mut house, mut server, client) = House::connect().await;
    let process = server.start(&client, "p").await.process;
    server.output("p", 1, "YQ==").await;
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    let told = events(&process).await;
    drop(server);
    let mut server = house.knock().await;
    let initialize = server.expect("initialize").await;
    server
        .refuse(&initialize, -32600, "unknown session id s")
        .await;
    within(client.closed()).await;
    let page = within(process.read(Read::default())).await.unwrap();
    assert_eq!((page.chunks.len(), page.closed), (1, true));
    assert_eq!(events(&process).await, told);
    let mut server = begins_anew(&mut house, &client).await;
    let _other = server.start(&client, "p").await;
    let ended = within(process.terminate(TerminateMode::Force)).await;
    let gone = Disconnect::Session(UNKNOWN.to_owned());
    assert_eq!(ended, Err(ProcessError::Disconnected(gone)));
}

#[tokio::test(start_paused = true)]
async fn who_is_not_let_in_any_more_does_not_try_again() {
    for status in [401, 403, 404, 426] {
        let (house, mut server, client) = House::connect().await;
        let process = server.start(&client, "p").await.process;
        let begin = Instant::now();
        house.refuse(status);
        drop(server);
        let text = format!(
            "server hung up; session was not resumed: server refused the connection: {status} no entry"
        );
        let error = ProcessError::Disconnected(Disconnect::Transport(text));
        assert_eq!(events(&process).await, [Event::Failed(error)]);
        assert_eq!(begin.elapsed(), Duration::ZERO);
        assert_eq!(house.times().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_out_of_order_is_tried_again() {
    for status in [408, 429, 500, 503] {
        let (mut house, mut server, client) = House::connect().await;
        let process = server.start(&client, "p").await.process;
        house.refuse(status);
        drop(server);
        while house.times().len() < 4 {
            tokio::time::advance(Duration::from_millis(50)).await;
            tokio::task::yield_now().await;
        }
        house.refuse(0);
        let mut server = house.resume().await;
        server.expect("process/read").await;
        assert!(process.status().tree_alive);
    }
}

/// Connects to a server that promises to keep sessions for ten minutes.
async fn connect_to_a_patient_server() -> (House, Server, ExecServerClient) {
    let mut session = session("s");
    session["sessionTtlMs"] = json!(600_000);
    House::connect_to(Continuity::Resumed, session).await
}

#[tokio::test(start_paused = true)]
async fn a_session_is_resumed_for_as_long_as_the_server_promised_to_keep_it() {
    let (mut house, mut server, client) = connect_to_a_patient_server().await;
    let process = server.start(&client, "p").await.process;
    house.close(usize::MAX);
    drop(server);
    tokio::time::sleep(Duration::from_secs(599)).await;
    house.close(0);
    let mut server = house.resume().await;
    let read = server.expect("process/read").await;
    server.page(&read, &[1], 2).await;
    server.exited("p", 2).await;
    server.closed("p", 3).await;
    assert_eq!(events(&process).await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn recovery_ends_with_the_time_that_the_server_promised() {
    let (house, server, client) = connect_to_a_patient_server().await;
    house.close(usize::MAX);
    let begin = Instant::now();
    drop(server);
    client.closed().await;
    assert_eq!(begin.elapsed().as_secs(), 600);
}

#[tokio::test(start_paused = true)]
async fn recovery_can_be_given_up_earlier_than_the_server_does() {
    let (house, server, client) = connect_to_a_patient_server().await;
    client.set_reconnect_timeout(Duration::from_secs(5));
    house.close(usize::MAX);
    let begin = Instant::now();
    drop(server);
    client.closed().await;
    assert_eq!(begin.elapsed().as_secs(), 5);
}
