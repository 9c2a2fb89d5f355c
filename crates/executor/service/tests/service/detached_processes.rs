//! Detached processes, eviction of detached sessions, and processes that the server takes over.

use std::time::Duration;

use exec_test_support::fake_process::FakeProcess;
use exec_transport::link::Principal;
use exec_wire::limits;
use serde_json::{Value, json};
use tokio::{runtime::Handle, time::sleep};

use crate::test_client::{Client, Server, end, params, write_chunks};

/// Session TTL of some of these servers.
const TTL: Duration = Duration::from_secs(3600);

/// Starts a detached process.
async fn start_detached(server: &mut Server, client: &mut Client) -> FakeProcess {
    server.start(client, &detached()).await.process
}

/// Start parameters of a detached process.
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

/// Returns the number of readable output chunks.
async fn chunk_count(client: &mut Client) -> usize {
    let params = json!({"processId": "build"});
    let read = client.call("process/read", &params).await;
    read["result"]["chunks"].as_array().unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn detached_process_is_readable_for_a_day_after_it_ends() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let process = start_detached(&mut server, &mut client).await;
    write_chunks(&process, 1);
    end(&process);
    drop(client);
    sleep(limits::DETACHED_RETENTION - Duration::from_secs(60)).await;
    let mut client = server.connect(None).await;
    assert_eq!(listed(&mut client).await.len(), 1);
    assert_eq!(chunk_count(&mut client).await, 1);
    assert!(server.service.has_detached_processes());
    sleep(Duration::from_secs(120)).await;
    assert_eq!(listed(&mut client).await, Vec::<Value>::new());
    assert!(!server.service.has_detached_processes());
}

#[tokio::test(start_paused = true)]
async fn finished_detached_process_frees_its_id_for_a_new_start() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let first = start_detached(&mut server, &mut client).await;
    let refused = client.call("process/start", &detached()).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    write_chunks(&first, 1);
    end(&first);
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    let _second = start_detached(&mut server, &mut client).await;
    let listed = listed(&mut client).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["running"], true);
}

#[tokio::test(start_paused = true)]
async fn failed_start_keeps_the_finished_process_with_the_same_id() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let first = start_detached(&mut server, &mut client).await;
    write_chunks(&first, 1);
    end(&first);
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    let mut failing = detached();
    failing["argv"] = json!(["fail"]);
    let failed = client.call("process/start", &failing).await;
    assert_eq!(failed["error"]["code"], -32603, "{failed}");
    assert_eq!(chunk_count(&mut client).await, 1);
    // The failed start neither extends the retention nor blocks the id.
    sleep(limits::DETACHED_RETENTION).await;
    assert_eq!(listed(&mut client).await, Vec::<Value>::new());
    let second = start_detached(&mut server, &mut client).await;
    end(&second);
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    client.call("process/start", &failing).await;
    let _third = start_detached(&mut server, &mut client).await;
    assert_eq!(listed(&mut client).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn start_beyond_the_limit_keeps_the_finished_process_with_the_same_id() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let first = start_detached(&mut server, &mut client).await;
    write_chunks(&first, 1);
    first.leave_descendants();
    end(&first);
    sleep(Duration::from_secs(1)).await;
    let mut client = server.connect(None).await;
    let mut others = Vec::new();
    for number in 1..limits::MAX_DETACHED_PROCESSES {
        let mut params = detached();
        params["processId"] = format!("other-{number}").into();
        others.push(server.start(&mut client, &params).await);
    }
    // Live descendants of the first process count towards the limit.
    let refused = client.call("process/start", &detached()).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    assert_eq!(chunk_count(&mut client).await, 1);
}

#[tokio::test(start_paused = true)]
async fn displaced_detached_process_leaves_no_task_behind() {
    let mut server = Server::new();
    let mut client = server.connect(None).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..1000 {
        end(&start_detached(&mut server, &mut client).await);
        for method in ["process/exited", "process/closed"] {
            assert_eq!(client.receive().await["method"], method);
        }
        sleep(Duration::from_millis(1)).await;
    }
    assert!(tasks() <= before + 2, "{} tasks", tasks());
}

/// Connects and drops enough clients to evict every idle session.
async fn fill_session_table(server: &Server) {
    for _ in 0..limits::MAX_SESSIONS + 10 {
        drop(server.connect(None).await);
    }
}

#[tokio::test(start_paused = true)]
async fn idle_detached_sessions_are_evicted_but_not_those_with_running_processes() {
    let mut server = Server::with_ttl(TTL);
    let mut client = server.connect(None).await;
    let _process = server.start(&mut client, &params("p", None)).await;
    let session = client.session.clone();
    drop(client);
    fill_session_table(&server).await;
    let mut client = server.connect(Some(&session)).await;
    assert_eq!(listed(&mut client).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sessions_with_live_descendants_are_not_evicted() {
    let mut server = Server::with_ttl(TTL);
    let mut params = params("p", None);
    params["argv"] = json!(["write"]);
    let mut sessions = Vec::new();
    for readable in [false, true] {
        let mut client = server.connect(None).await;
        let process = server.start(&mut client, &params).await.process;
        process.leave_descendants();
        end(&process);
        if !readable {
            sleep(TTL * 2).await;
        }
        sessions.push(client.session.clone());
        drop(client);
    }
    fill_session_table(&server).await;
    for (session, readable) in sessions.iter().zip([0, 1]) {
        let mut client = server.connect(Some(session)).await;
        assert_eq!(listed(&mut client).await.len(), readable);
    }
}

#[tokio::test(start_paused = true)]
async fn evicted_session_is_freed() {
    let server = Server::with_ttl(TTL);
    fill_session_table(&server).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.sessions(), limits::MAX_SESSIONS);
}

const SECOND: Duration = Duration::from_secs(1);

fn session_params(id: &str) -> Value {
    json!({"processId": id, "argv": ["write"], "cwd": "file:///", "env": {}, "tty": false})
}

async fn start_in_session(server: &mut Server, client: &mut Client) -> FakeProcess {
    server.start(client, &session_params("p")).await.process
}

/// Returns the owner and state of each listed process.
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
async fn list_all_includes_processes_of_other_sessions() {
    let mut server = Server::new();
    let mut first = server.connect(None).await;
    let process = start_in_session(&mut server, &mut first).await;
    write_chunks(&process, 2);
    let mut second = server.connect(None).await;
    for params in [json!({}), json!(null), json!({"all": false})] {
        assert_eq!(listed_states(&mut second, params).await, []);
    }
    let all = json!({"all": true});
    let expected = [(json!("session"), json!("running"))];
    assert_eq!(listed_states(&mut second, all.clone()).await, expected);
    let list = second.call("process/list", &all).await;
    assert_eq!(list["result"]["processes"][0]["outputBytes"], 2048);
    end(&process);
    sleep(SECOND).await;
    let expected = [(json!("session"), json!("exited"))];
    assert_eq!(listed_states(&mut second, all).await, expected);
    let wrong = second.call("process/list", &json!({"all": 1})).await;
    assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
}

#[tokio::test(start_paused = true)]
async fn process_taken_over_by_the_server_outlives_its_session() {
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
    // Output is not held for the original client, which acknowledges nothing.
    let last = write_chunks(&process, 2000);
    second.receive_until(last).await;
    assert!(!process.is_paused());
    drop(second);
    sleep(limits::SESSION_TTL * 2).await;
    end(&process);
    sleep(limits::DETACHED_RETENTION - SECOND).await;
    let mut third = server.connect(None).await;
    let expected = [(json!("server"), json!("exited"))];
    assert_eq!(listed_states(&mut third, json!({})).await, expected);
    sleep(SECOND * 2).await;
    assert_eq!(listed_states(&mut third, json!({})).await, []);
}

#[tokio::test(start_paused = true)]
async fn original_client_still_receives_events_after_take_over() {
    let mut server = Server::new();
    let mut first = server.connect_with(None, &["acknowledge"]).await;
    let process = start_in_session(&mut server, &mut first).await;
    let mut second = server.connect(None).await;
    attach(&mut second).await;
    let last = write_chunks(&process, 1);
    first.receive_until(last).await;
    second.receive_until(last).await;
    let session = first.session.clone();
    drop(first);
    sleep(SECOND).await;
    let mut first = server.connect_with(Some(&session), &["acknowledge"]).await;
    let read = json!({"processId": "p"});
    let page = first.call("process/read", &read).await;
    assert_eq!(page["result"]["nextSeq"], last + 1, "{page}");
    let last = end(&process);
    first.receive_until(last).await;
}

#[tokio::test(start_paused = true)]
async fn finished_process_can_be_taken_over_and_is_retained_as_detached() {
    let mut server = Server::new();
    let mut first = server.connect(None).await;
    let process = start_in_session(&mut server, &mut first).await;
    write_chunks(&process, 1);
    let last = end(&process);
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
async fn only_clients_of_the_same_principal_can_list_and_take_over() {
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
async fn ambiguous_or_reused_process_id_is_rejected() {
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
    // The server owns it now, and the start time still differs.
    let refused = third.call("process/attach", &other).await;
    assert_eq!(refused["error"]["code"], -32004, "{refused}");
}
