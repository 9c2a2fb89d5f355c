//! Detached processes that nobody watched, and sessions that nobody comes back to.

use std::{sync::Arc, time::Duration};

use exec_transport::link::Principal;
use exec_wire::limits;
use serde_json::{Value, json};
use tokio::{runtime::Handle, time::sleep};

use crate::{
    fake_environment::Written,
    test_client::{Client, Server, params},
};

/// How long the sessions of some of these servers live without a connection.
const TTL: Duration = Duration::from_secs(3600);

/// Starts a detached process.
async fn start_detached(server: &mut Server, client: &mut Client) -> Arc<Written> {
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
    let process = start_detached(&mut server, &mut client).await;
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
    let first = start_detached(&mut server, &mut client).await;
    let refused = client.call("process/start", &detached()).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    first.write(1);
    first.close();
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    let _second = start_detached(&mut server, &mut client).await;
    let listed = listed(&mut client).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["running"], true);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_takes_nothing_from_the_finished_process_by_its_name() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let first = start_detached(&mut server, &mut client).await;
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
    let second = start_detached(&mut server, &mut client).await;
    second.close();
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    client.call("process/start", &failing).await;
    let _third = start_detached(&mut server, &mut client).await;
    assert_eq!(listed(&mut client).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_one_too_many_takes_nothing_from_the_finished_process_by_its_name() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let first = start_detached(&mut server, &mut client).await;
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
        start_detached(&mut server, &mut client).await.close();
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

const SECOND: Duration = Duration::from_secs(1);

fn session_params(id: &str) -> Value {
    json!({"processId": id, "argv": ["write"], "cwd": "file:///", "env": {}, "tty": false})
}

async fn start_in_session(server: &mut Server, client: &mut Client) -> Arc<Written> {
    server
        .start(client, &session_params("p"))
        .await
        .written
        .unwrap()
}

/// Returns owner and state of each process that is listed.
async fn listed_states(client: &mut Client, params: Value) -> Vec<(Value, Value)> {
    let list = client.call("process/list", &params).await;
    let processes = list["result"]["processes"].as_array().unwrap();
    processes
        .iter()
        .map(|process| (process["owner"].clone(), process["state"].clone()))
        .collect()
}

async fn attach(client: &mut Client) -> Value {
    client
        .call(
            "process/attach",
            &json!({"processId": "p", "startedAtMs": 0}),
        )
        .await
}

#[tokio::test(start_paused = true)]
async fn processes_of_other_sessions_are_listed_when_all_are_asked_for() {
    let mut server = Server::new();
    let mut first = server.connect(None).await;
    let process = start_in_session(&mut server, &mut first).await;
    process.write(2);
    let mut second = server.connect(None).await;
    for params in [json!({}), json!(null), json!({"all": false})] {
        assert_eq!(listed_states(&mut second, params).await, []);
    }
    let all = json!({"all": true});
    let expected = [(json!("session"), json!("running"))];
    assert_eq!(listed_states(&mut second, all.clone()).await, expected);
    let list = second.call("process/list", &all).await;
    assert_eq!(list["result"]["processes"][0]["outputBytes"], 2048);
    process.close();
    sleep(SECOND).await;
    let expected = [(json!("session"), json!("exited"))];
    assert_eq!(listed_states(&mut second, all).await, expected);
    let wrong = second.call("process/list", &json!({"all": 1})).await;
    assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_taken_over_outlives_its_session() {
    let mut server = Server::new();
    let mut first = server.connect(None).await;
    let process = start_in_session(&mut server, &mut first).await;
    let mut second = server.connect(None).await;
    let attached = attach(&mut second).await;
    assert_eq!(attached["result"], json!({"nextSeq": 1, "running": true}));
    let expected = [(json!("server"), json!("running"))];
    assert_eq!(listed_states(&mut second, json!({})).await, expected);
    drop(first);
    sleep(limits::SESSION_TTL * 2).await;
    // It is not held for the client that has left, which acknowledges nothing.
    let last = process.write(2000);
    second.hear_up_to(last).await;
    assert!(!process.is_paused());
    drop(second);
    sleep(limits::SESSION_TTL * 2).await;
    process.close();
    sleep(limits::DETACHED_RETENTION - SECOND).await;
    let mut third = server.connect(None).await;
    let expected = [(json!("server"), json!("exited"))];
    assert_eq!(listed_states(&mut third, json!({})).await, expected);
    sleep(SECOND * 2).await;
    assert_eq!(listed_states(&mut third, json!({})).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_client_of_a_process_that_was_taken_over_goes_on_getting_its_events() {
    let mut server = Server::new();
    let mut first = server.connect_with(None, &["acknowledge"]).await;
    let process = start_in_session(&mut server, &mut first).await;
    let mut second = server.connect(None).await;
    attach(&mut second).await;
    let last = process.write(1);
    first.hear_up_to(last).await;
    second.hear_up_to(last).await;
    let session = first.session.clone();
    drop(first);
    sleep(SECOND).await;
    let mut first = server.connect_with(Some(&session), &["acknowledge"]).await;
    let read = json!({"processId": "p"});
    let page = first.call("process/read", &read).await;
    assert_eq!(page["result"]["nextSeq"], last + 1, "{page}");
    let last = process.close();
    first.hear_up_to(last).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_has_ended_is_taken_over_and_kept_as_detached_ones_are() {
    let mut server = Server::new();
    let mut first = server.connect(None).await;
    let process = start_in_session(&mut server, &mut first).await;
    process.write(1);
    let last = process.close();
    drop(first);
    sleep(SECOND).await;
    let mut second = server.connect(None).await;
    let params = json!({"processId": "p", "afterSeq": last, "startedAtMs": 0});
    let attached = second.call("process/attach", &params).await;
    assert_eq!(attached["result"]["running"], false, "{attached}");
    sleep(limits::SESSION_TTL * 3).await;
    let expected = [(json!("server"), json!("exited"))];
    assert_eq!(listed_states(&mut second, json!({})).await, expected);
    sleep(limits::DETACHED_RETENTION).await;
    assert_eq!(listed_states(&mut second, json!({})).await, []);
}

#[tokio::test(start_paused = true)]
async fn only_clients_of_the_same_principal_list_and_take_over() {
    let mut server = Server::new();
    let named = |name: &str| Some(Principal(name.into()));
    let mut first = server.connect_as(named("ann")).await;
    let _process = start_in_session(&mut server, &mut first).await;
    for stranger in [named("bob"), None] {
        let mut stranger = server.connect_as(stranger).await;
        assert_eq!(listed_states(&mut stranger, json!({"all": true})).await, []);
        let refused = attach(&mut stranger).await;
        assert_eq!(refused["error"]["code"], -32600, "{refused}");
        assert_eq!(refused["error"]["message"], "unknown process id p");
    }
    let mut same = server.connect_as(named("ann")).await;
    assert_eq!(
        listed_states(&mut same, json!({"all": true})).await.len(),
        1
    );
    assert_eq!(attach(&mut same).await["result"]["running"], true);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_not_clear_or_names_another_process_by_now_is_refused() {
    let mut server = Server::new();
    let mut first = server.connect(None).await;
    let _one = start_in_session(&mut server, &mut first).await;
    let mut third = server.connect(None).await;
    let unnamed = json!({"processId": "p"});
    let refused = third.call("process/attach", &unnamed).await;
    assert_eq!(refused["error"]["message"], "unknown process id p");
    let other = json!({"processId": "p", "startedAtMs": 5});
    let refused = third.call("process/attach", &other).await;
    assert_eq!(refused["error"]["code"], -32004, "{refused}");
    let mut second = server.connect(None).await;
    let _two = start_in_session(&mut server, &mut second).await;
    let refused = attach(&mut third).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("several sessions"), "{message}");
    drop(second);
    sleep(limits::SESSION_TTL * 2).await;
    let attached = attach(&mut third).await;
    assert_eq!(attached["result"]["running"], true, "{attached}");
    // It is the server's by now, and still another one than this.
    let refused = third.call("process/attach", &other).await;
    assert_eq!(refused["error"]["code"], -32004, "{refused}");
}
