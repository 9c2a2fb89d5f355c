//! How a server is ended when nobody speaks to it any more.

use std::time::Duration;

use exec_mcp_client::launch::Connected;
use exec_wire::process::TerminateMode;

use crate::{fake::Input, talking::connected, within::within};

const GRACEFUL: Input = Input::Terminate(TerminateMode::Graceful { timeout_ms: 3000 });
const FORCE: Input = Input::Terminate(TerminateMode::Force);

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_with_its_input_is_not_terminated() {
    let (mut server, connected) = connected().await;
    drop(connected);
    assert_eq!(server.next_input().await, Input::End);
    server.exits(0, None);
    server.closes();
    assert_eq!(server.next_input().await, Input::Dropped);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_goes_on_is_terminated_then_killed() {
    let (mut server, connected) = connected().await;
    drop(connected);
    assert_eq!(server.next_input().await, Input::End);
    assert_eq!(server.next_input().await, GRACEFUL);
    assert_eq!(server.next_input().await, FORCE);
    assert_eq!(server.next_input().await, Input::Dropped);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_heeds_the_signal_is_not_killed() {
    let (mut server, connected) = connected().await;
    drop(connected);
    assert_eq!(server.next_input().await, Input::End);
    assert_eq!(server.next_input().await, GRACEFUL);
    server.exits(143, Some("SIGTERM"));
    server.closes();
    assert_eq!(server.next_input().await, Input::Dropped);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_is_ended_all_the_same() {
    let (mut server, Connected { service, .. }) = connected().await;
    server.reads(false);
    let peer = service.peer().clone();
    let waiting = tokio::spawn(async move { peer.list_tools(None).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(service);
    assert_eq!(server.next_input().await, GRACEFUL);
    assert_eq!(server.next_input().await, FORCE);
    assert_eq!(server.next_input().await, Input::Dropped);
    let told = within("who waits is told", waiting).await.unwrap();
    assert!(told.is_err());
}

#[tokio::test(start_paused = true)]
async fn cancelling_waits_for_the_end_of_the_server() {
    let (mut server, Connected { service, watch }) = connected().await;
    let serving = async {
        assert_eq!(server.next_input().await, Input::End);
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.exits(0, None);
        server.closes();
        tokio::time::Instant::now()
    };
    let both = futures_util::future::join(service.cancel(), serving);
    let (cancelled, exited) = within("it is over", both).await;
    cancelled.unwrap();
    assert!(tokio::time::Instant::now() >= exited);
    assert_eq!(server.next_input().await, Input::Dropped);
    assert!(watch.ended().is_some());
}
