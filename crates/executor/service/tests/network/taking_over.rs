//! Processes of other sessions: who may list them, and what becomes of them when they are taken over.

use std::{sync::Arc, time::Duration};

use exec_transport::link::Principal;
use exec_wire::limits;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    client::{Client, Server},
    written::Written,
};

const SECOND: Duration = Duration::from_secs(1);

fn params(id: &str) -> Value {
    json!({"processId": id, "argv": ["write"], "cwd": "file:///", "env": {}, "tty": false})
}

async fn start(server: &mut Server, client: &mut Client) -> Arc<Written> {
    server.start(client, &params("p")).await.written.unwrap()
}

/// Returns owner and state of each process that is listed.
async fn listed(client: &mut Client, params: Value) -> Vec<(Value, Value)> {
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
    let process = start(&mut server, &mut first).await;
    process.write(2);
    let mut second = server.connect(None).await;
    for params in [json!({}), json!(null), json!({"all": false})] {
        assert_eq!(listed(&mut second, params).await, []);
    }
    let all = json!({"all": true});
    let expected = [(json!("session"), json!("running"))];
    assert_eq!(listed(&mut second, all.clone()).await, expected);
    let list = second.call("process/list", &all).await;
    assert_eq!(list["result"]["processes"][0]["outputBytes"], 2048);
    process.close();
    sleep(SECOND).await;
    let expected = [(json!("session"), json!("exited"))];
    assert_eq!(listed(&mut second, all).await, expected);
    let wrong = second.call("process/list", &json!({"all": 1})).await;
    assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_taken_over_outlives_its_session() {
    let mut server = Server::new();
    let mut first = server.connect(None).await;
    let process = start(&mut server, &mut first).await;
    let mut second = server.connect(None).await;
    let attached = attach(&mut second).await;
    assert_eq!(attached["result"], json!({"nextSeq": 1, "running": true}));
    let expected = [(json!("server"), json!("running"))];
    assert_eq!(listed(&mut second, json!({})).await, expected);
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
    assert_eq!(listed(&mut third, json!({})).await, expected);
    sleep(SECOND * 2).await;
    assert_eq!(listed(&mut third, json!({})).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_client_of_a_process_that_was_taken_over_goes_on_getting_its_events() {
    let mut server = Server::new();
    let mut first = server.connect_with(None, &["acknowledge"]).await;
    let process = start(&mut server, &mut first).await;
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
    let process = start(&mut server, &mut first).await;
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
    assert_eq!(listed(&mut second, json!({})).await, expected);
    sleep(limits::DETACHED_RETENTION).await;
    assert_eq!(listed(&mut second, json!({})).await, []);
}

#[tokio::test(start_paused = true)]
async fn only_clients_of_the_same_principal_list_and_take_over() {
    let mut server = Server::new();
    let named = |name: &str| Some(Principal(name.into()));
    let mut first = server.connect_as(named("ann")).await;
    let _process = start(&mut server, &mut first).await;
    for stranger in [named("bob"), None] {
        let mut stranger = server.connect_as(stranger).await;
        assert_eq!(listed(&mut stranger, json!({"all": true})).await, []);
        let refused = attach(&mut stranger).await;
        assert_eq!(refused["error"]["code"], -32600, "{refused}");
        assert_eq!(refused["error"]["message"], "unknown process id p");
    }
    let mut same = server.connect_as(named("ann")).await;
    assert_eq!(listed(&mut same, json!({"all": true})).await.len(), 1);
    assert_eq!(attach(&mut same).await["result"]["running"], true);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_not_clear_or_names_another_process_by_now_is_refused() {
    let mut server = Server::new();
    let mut first = server.connect(None).await;
    let _one = start(&mut server, &mut first).await;
    let mut third = server.connect(None).await;
    let unnamed = json!({"processId": "p"});
    let refused = third.call("process/attach", &unnamed).await;
    assert_eq!(refused["error"]["message"], "unknown process id p");
    let other = json!({"processId": "p", "startedAtMs": 5});
    let refused = third.call("process/attach", &other).await;
    assert_eq!(refused["error"]["code"], -32004, "{refused}");
    let mut second = server.connect(None).await;
    let _two = start(&mut server, &mut second).await;
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
