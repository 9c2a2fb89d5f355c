//! Detached processes that nobody watched, and sessions that nobody comes back to.

use std::{sync::Arc, time::Duration};

use exec_wire::limits;
use serde_json::{Value, json};
use tokio::{runtime::Handle, time::sleep};

use crate::{
    client::{Client, Server, params},
    written::Written,
};

/// How long the sessions of some of these servers live without a connection.
const TTL: Duration = Duration::from_secs(3600);

/// Starts a detached process.
async fn start(server: &mut Server, client: &mut Client) -> Arc<Written> {
    server.start(client, &detached()).await.written.unwrap()
}

/// Params of its start.
fn detached() -> Value {
    let mut params = params("build", None);
    params["detached"] = true.into();
    params["argv"] = json!(["write"]);
    params
}

async fn listed(client: &mut Client) -> Vec<Value> {
    let list = client.call("process/list", &json!({})).await;
    list["result"]["processes"].as_array().unwrap().clone()
}

/// Returns how many pieces of output can be read of it.
async fn read(client: &mut Client) -> usize {
    let params = json!({"processId": "build"});
    let read = client.call("process/read", &params).await;
    read["result"]["chunks"].as_array().unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn a_detached_process_can_be_read_for_a_day_after_its_end() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = start(&mut server, &mut client).await;
    process.write(1);
    process.close();
    drop(client);
    sleep(limits::DETACHED_RETENTION - Duration::from_secs(60)).await;
    let mut client = server.connect(None).await;
    assert_eq!(listed(&mut client).await.len(), 1);
    assert_eq!(read(&mut client).await, 1);
    assert!(server.service.keeps_detached());
    sleep(Duration::from_secs(120)).await;
    assert_eq!(listed(&mut client).await, Vec::<Value>::new());
    assert!(!server.service.keeps_detached());
}

#[tokio::test(start_paused = true)]
async fn a_detached_process_that_has_finished_gives_its_id_away() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let first = start(&mut server, &mut client).await;
    let refused = client.call("process/start", &detached()).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    first.write(1);
    first.close();
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    let _second = start(&mut server, &mut client).await;
    let listed = listed(&mut client).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["running"], true);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_takes_nothing_from_the_finished_process_by_its_name() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let first = start(&mut server, &mut client).await;
    first.write(1);
    first.close();
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    let mut failing = detached();
    failing["argv"] = json!(["fail"]);
    let failed = client.call("process/start", &failing).await;
    assert_eq!(failed["error"]["code"], -32603, "{failed}");
    assert_eq!(read(&mut client).await, 1);
    // It is kept no longer than before, and gives its id away as before.
    sleep(limits::DETACHED_RETENTION).await;
    assert_eq!(listed(&mut client).await, Vec::<Value>::new());
    let second = start(&mut server, &mut client).await;
    second.close();
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    client.call("process/start", &failing).await;
    let _third = start(&mut server, &mut client).await;
    assert_eq!(listed(&mut client).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_one_too_many_takes_nothing_from_the_finished_process_by_its_name() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let first = start(&mut server, &mut client).await;
    first.write(1);
    first.leave();
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    let mut others = Vec::new();
    for number in 1..limits::MAX_DETACHED_PROCESSES {
        let mut params = detached();
        params["processId"] = format!("other-{number}").into();
        others.push(server.start(&mut client, &params).await);
    }
    // With what the first one has left running they would be too many.
    let refused = client.call("process/start", &detached()).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    assert_eq!(read(&mut client).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_detached_process_that_gave_its_id_away_leaves_no_task_behind() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..1000 {
        start(&mut server, &mut client).await.close();
        for method in ["process/exited", "process/closed"] {
            assert_eq!(client.hear().await["method"], method);
        }
        sleep(Duration::from_millis(1)).await;
    }
    assert!(tasks() <= before + 2, "{} tasks", tasks());
}

/// Has so many clients come and go that none of their sessions is left, if it is spare.
async fn crowd(server: &Server) {
    for _ in 0..limits::MAX_SESSIONS + 10 {
        drop(server.connect(None).await);
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_of_those_who_left_make_room_but_not_those_in_which_something_runs() {
    let mut server = Server::with_ttl(TTL);
    let mut client = server.connect(None).await;
    let _runs = server.start(&mut client, &params("p", None)).await;
    let session = client.session.clone();
    drop(client);
    crowd(&server).await;
    let mut client = server.connect(Some(&session)).await;
    assert_eq!(listed(&mut client).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sessions_in_which_something_was_left_running_do_not_make_room() {
    let mut server = Server::with_ttl(TTL);
    let mut params = params("p", None);
    params["argv"] = json!(["write"]);
    let mut sessions = Vec::new();
    for readable in [false, true] {
        let mut client = server.connect(None).await;
        let left = server.start(&mut client, &params).await.written.unwrap();
        left.leave();
        if !readable {
            sleep(TTL * 2).await;
        }
        sessions.push(client.session.clone());
        drop(client);
    }
    crowd(&server).await;
    for (session, readable) in sessions.iter().zip([0, 1]) {
        let mut client = server.connect(Some(session)).await;
        assert_eq!(listed(&mut client).await.len(), readable);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_made_room_is_not_in_memory_any_more() {
    let server = Server::with_ttl(TTL);
    crowd(&server).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.sessions(), limits::MAX_SESSIONS);
}
