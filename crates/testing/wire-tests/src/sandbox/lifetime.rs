//! How commands in a sandbox end, and that nothing of theirs or ours is left.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    ground::{Ground, as_every_user, processes},
    policies::Policy,
};
use crate::server::{Watched, until};

as_every_user!(
    nothing_survives_the_server,
    nothing_survives_a_terminated_command,
    what_a_command_leaves_behind_ends_with_the_output,
    a_command_can_be_ended_while_it_starts,
    signals_of_the_client_reach_the_command,
);

/// A tree of processes that ignore what can be ignored, and leave their group.
fn tree(ground: &mut Ground, policy: &Policy, word: &str) -> Value {
    let probe = ground.probe().display().to_string();
    let script = format!(
        "trap '' HUP INT TERM; {probe} wait {word} & (setsid {probe} wait {word} &); \
         (setsid sh -c '(setsid {probe} wait {word} &) &' &); {probe} wait {word}; true"
    );
    let mut params = ground.params(Some(policy), &[]);
    params["argv"] = json!(["sh", "-c", script]);
    params
}

async fn watched(ground: &mut Ground, policy: &Policy, word: &str) -> (String, Vec<Watched>) {
    let params = tree(ground, policy, word);
    let id = ground.start(params).await;
    until("the whole tree", || processes(word).len() == 4).await;
    let mut pids = processes(word);
    // Stages of ours, too: whoever is above the command, and below the server.
    let mut above = pids.clone();
    while let Some(pid) = above.pop() {
        let parent: u32 = crate::server::proc_line(pid, "status", "PPid")
            .parse()
            .unwrap_or(0);
        if parent > 1 && parent != ground.server.pid() && !pids.contains(&parent) {
            pids.push(parent);
            above.push(parent);
        }
    }
    let of_tests = std::process::id();
    pids.retain(|pid| *pid != of_tests);
    (id, pids.into_iter().map(Watched::new).collect())
}

async fn nothing_survives_the_server(ground: &mut Ground) {
    let mut all = Vec::new();
    for (number, policy) in Policy::all(ground).iter().enumerate() {
        let word = format!("tree-{number}-{}", ground.server.pid());
        let (_, processes) = watched(ground, policy, &word).await;
        all.extend(processes);
    }
    // The tests' own ancestors are not the server's.
    let own = ancestors(std::process::id());
    all.retain(|process| !own.contains(&process.pid()));
    ground.server.signal(Signal::KILL);
    for process in all {
        process.death().await;
    }
    assert_eq!(ground.server.ended().await.0.code(), None);
}

fn ancestors(pid: u32) -> Vec<u32> {
    let mut pids = vec![pid];
    while let Some(pid) = pids.last().copied().filter(|pid| *pid > 1) {
        let parent = crate::server::proc_line(pid, "status", "PPid");
        pids.push(parent.parse().unwrap_or(0));
    }
    pids
}

async fn nothing_survives_a_terminated_command(ground: &mut Ground) {
    for (number, policy) in Policy::all(ground).iter().enumerate() {
        let word = format!("ended-{number}-{}", ground.server.pid());
        let params = tree(ground, policy, &word);
        let id = ground.start(params).await;
        until("the whole tree", || processes(&word).len() == 4).await;
        let watched: Vec<Watched> = processes(&word).into_iter().map(Watched::new).collect();
        let terminate = json!({"processId": id});
        ground.client.call("process/terminate", terminate).await;
        for process in watched {
            process.death().await;
        }
        let exited = ground.end(&id).await;
        if exited["exitCode"] != 137 {
            ground.fault(format!("{}: {exited}", policy.name));
        }
    }
}

/// What says nothing any more ends at once, without having to be asked.
async fn what_a_command_leaves_behind_ends_with_the_output(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        let word = format!("left-{}", ground.server.pid());
        let probe = ground.probe().display().to_string();
        let script = format!("setsid {probe} wait {word} >/dev/null 2>&1 & exit 4");
        let mut params = ground.params(Some(&policy), &[]);
        params["argv"] = json!(["sh", "-c", script]);
        let events = ground.finish(params).await;
        assert_eq!(events.code(), 4, "{}", policy.name);
        until("the rest ends", || processes(&word).is_empty()).await;
    }
}

async fn a_command_can_be_ended_while_it_starts(ground: &mut Ground) {
    let word = format!("early-{}", ground.server.pid());
    for _ in 0..5 {
        for policy in Policy::all(ground) {
            let params = ground.params(Some(&policy), &["wait", &word]);
            let id = params["processId"].as_str().unwrap().to_owned();
            let start = ground.client.request("process/start", params).await;
            let terminate = json!({"processId": id});
            let end = ground.client.request("process/terminate", terminate).await;
            let answer = ground.client.answer(start).await;
            let ended = ground.client.answer(end).await;
            assert!(ended.get("error").is_none(), "{ended}");
            if let Some(error) = answer.get("error") {
                // It was ended before it was there.
                assert_eq!(error["code"], -32600, "{answer}");
                continue;
            }
            let terminate = json!({"processId": id});
            ground.client.call("process/terminate", terminate).await;
            let exited = ground.end(&id).await;
            assert_eq!(exited["exitCode"], 137, "{exited}");
        }
    }
    until("all end", || processes(&word).is_empty()).await;
}

async fn signals_of_the_client_reach_the_command(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        let mut params = ground.params(Some(&policy), &[]);
        let script = "trap 'echo int; exit 9' INT; echo up; while :; do sleep 0.02; done";
        params["argv"] = json!(["sh", "-c", script]);
        let id = ground.start(params).await;
        ground.client.output_until(&id, "up\n").await;
        let signal = json!({"processId": id, "signal": "interrupt"});
        ground.client.call("process/signal", signal).await;
        ground.client.output_until(&id, "int\n").await;
        let exited = ground.end(&id).await;
        if exited["exitCode"] != 9 {
            ground.fault(format!("{}: {exited}", policy.name));
        }
    }
}
