//! Termination of sandboxed commands without leftovers.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{SandboxFixture, as_every_user, policies::SandboxPolicy, processes};
use crate::server::{WatchedProcess, until};

as_every_user!(
    sandboxed_processes_die_with_the_server,
    sandboxed_tree_dies_with_a_terminated_command,
    silent_descendants_end_when_the_output_closes,
    command_can_be_terminated_while_it_starts,
    client_signals_reach_the_command,
);

/// Starts a process tree that ignores signals and leaves its process group.
fn tree(fixture: &mut SandboxFixture, policy: &SandboxPolicy, marker: &str) -> Value {
    let probe = fixture.probe().display().to_string();
    let script = format!(
        "trap '' HUP INT TERM; {probe} wait {marker} & (setsid {probe} wait {marker} &); \
         (setsid sh -c '(setsid {probe} wait {marker} &) &' &); {probe} wait {marker}; true"
    );
    let mut params = fixture.params(Some(policy), &[]);
    params["argv"] = json!(["sh", "-c", script]);
    params
}

async fn watched(
    fixture: &mut SandboxFixture,
    policy: &SandboxPolicy,
    marker: &str,
) -> (String, Vec<WatchedProcess>) {
    let params = tree(fixture, policy, marker);
    let id = fixture.start(params).await;
    until("the whole tree", || processes(marker).len() == 4).await;
    let mut pids = processes(marker);
    // Includes the sandbox's own processes between the server and the command.
    let mut above = pids.clone();
    while let Some(pid) = above.pop() {
        let parent: u32 = crate::server::proc_line(pid, "status", "PPid")
            .parse()
            .unwrap_or(0);
        if parent > 1 && parent != fixture.server.pid() && !pids.contains(&parent) {
            pids.push(parent);
            above.push(parent);
        }
    }
    let of_tests = std::process::id();
    pids.retain(|pid| *pid != of_tests);
    (id, pids.into_iter().map(WatchedProcess::new).collect())
}

async fn sandboxed_processes_die_with_the_server(fixture: &mut SandboxFixture) {
    let mut all = Vec::new();
    for (number, policy) in SandboxPolicy::all(fixture).iter().enumerate() {
        let marker = format!("tree-{number}-{}", fixture.server.pid());
        let (_, processes) = watched(fixture, policy, &marker).await;
        all.extend(processes);
    }
    // Ancestors of the test are not part of the server.
    let own = ancestors(std::process::id());
    all.retain(|process| !own.contains(&process.pid()));
    fixture.server.signal(Signal::KILL);
    for process in all {
        process.death().await;
    }
    assert_eq!(fixture.server.ended().await.0.code(), None);
}

fn ancestors(pid: u32) -> Vec<u32> {
    let mut pids = vec![pid];
    while let Some(pid) = pids.last().copied().filter(|pid| *pid > 1) {
        let parent = crate::server::proc_line(pid, "status", "PPid");
        pids.push(parent.parse().unwrap_or(0));
    }
    pids
}

async fn sandboxed_tree_dies_with_a_terminated_command(fixture: &mut SandboxFixture) {
    for (number, policy) in SandboxPolicy::all(fixture).iter().enumerate() {
        let marker = format!("ended-{number}-{}", fixture.server.pid());
        let params = tree(fixture, policy, &marker);
        let id = fixture.start(params).await;
        until("the whole tree", || processes(&marker).len() == 4).await;
        let watched: Vec<WatchedProcess> = processes(&marker)
            .into_iter()
            .map(WatchedProcess::new)
            .collect();
        let terminate = json!({"processId": id});
        fixture.client.call("process/terminate", terminate).await;
        for process in watched {
            process.death().await;
        }
        let exited = fixture.end(&id).await;
        if exited["exitCode"] != 137 {
            fixture.record_fault(format!("{}: {exited}", policy.name));
        }
    }
}

/// Descendants with closed output are killed without a request.
async fn silent_descendants_end_when_the_output_closes(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        let marker = format!("left-{}", fixture.server.pid());
        let probe = fixture.probe().display().to_string();
        let script = format!("setsid {probe} wait {marker} >/dev/null 2>&1 & exit 4");
        let mut params = fixture.params(Some(&policy), &[]);
        params["argv"] = json!(["sh", "-c", script]);
        let events = fixture.finish(params).await;
        assert_eq!(events.code(), 4, "{}", policy.name);
        until("the rest ends", || processes(&marker).is_empty()).await;
    }
}

async fn command_can_be_terminated_while_it_starts(fixture: &mut SandboxFixture) {
    let marker = format!("early-{}", fixture.server.pid());
    for _ in 0..5 {
        for policy in SandboxPolicy::all(fixture) {
            let params = fixture.params(Some(&policy), &["wait", &marker]);
            let id = params["processId"].as_str().unwrap().to_owned();
            let start = fixture.client.request("process/start", params).await;
            let terminate = json!({"processId": id});
            let end = fixture.client.request("process/terminate", terminate).await;
            let answer = fixture.client.answer(start).await;
            let ended = fixture.client.answer(end).await;
            assert!(ended.get("error").is_none(), "{ended}");
            if let Some(error) = answer.get("error") {
                // It was terminated before it had started.
                assert_eq!(error["code"], -32600, "{answer}");
                continue;
            }
            let terminate = json!({"processId": id});
            fixture.client.call("process/terminate", terminate).await;
            let exited = fixture.end(&id).await;
            assert_eq!(exited["exitCode"], 137, "{exited}");
        }
    }
    until("all end", || processes(&marker).is_empty()).await;
}

async fn client_signals_reach_the_command(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        let mut params = fixture.params(Some(&policy), &[]);
        let script = "trap 'echo int; exit 9' INT; echo up; while :; do sleep 0.02; done";
        params["argv"] = json!(["sh", "-c", script]);
        let id = fixture.start(params).await;
        fixture.client.output_until(&id, "up\n").await;
        let signal = json!({"processId": id, "signal": "interrupt"});
        fixture.client.call("process/signal", signal).await;
        fixture.client.output_until(&id, "int\n").await;
        let exited = fixture.end(&id).await;
        if exited["exitCode"] != 9 {
            fixture.record_fault(format!("{}: {exited}", policy.name));
        }
    }
}
