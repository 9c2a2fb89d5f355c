//! Commands of the server's own account that stop or kill the processes above them keep nothing
//! alive: neither after a termination or a limit, nor after the end of their session or server.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    client::{Client, decode_text, script_params, with},
    over_one_transport,
    server::{Server, Transport, until},
};

over_one_transport!(
    termination_ends_a_tree_whose_supervisor_is_stopped,
    limits_end_a_tree_whose_supervisor_is_stopped,
    end_of_the_session_ends_a_tree_whose_supervisor_is_stopped,
    sigterm_of_the_server_ends_trees_whose_supervisors_are_stopped,
    sigkill_of_the_server_ends_trees_whose_supervisors_are_stopped,
    sigkill_of_the_server_ends_trees_whose_spawner_is_stopped_too,
    stopped_spawner_answers_the_next_start,
    stopped_spawner_does_not_prevent_termination,
    termination_ends_a_tree_that_stops_its_supervisor_in_a_loop,
    termination_ends_a_tree_that_stops_supervisor_and_spawner_in_a_loop,
    start_is_answered_while_a_command_stops_the_spawner_in_a_loop,
    sigkill_of_the_server_ends_a_tree_that_stops_its_supervisor_in_a_loop,
    killed_supervisor_takes_its_tree_along_and_no_other,
    killed_spawner_and_supervisor_take_the_tree_along,
);

/// Sets `supervisor` and `spawner` to the pids of the processes above the command.
const ABOVE: &str = "supervisor=$PPID; read -r _ _ _ spawner _ < /proc/$supervisor/stat;";

/// Starts a daemon that left session and group, prints three pids, and goes on. Runs `attack` before the
/// command prints, and `last` afterwards.
fn attack_script(attack: &str, last: &str) -> String {
    format!(
        "trap '' HUP INT TERM; {ABOVE}
        daemon=$(setsid sh -c '(setsid sh -c \"echo \\$\\$; exec sleep 1000 >/dev/null\" &) &')
        {attack}
        echo $daemon; echo $supervisor; echo $$; {last}
        exec sleep 1000"
    )
}

/// How many pids an [`attack_script`] prints.
const ATTACK_SIZE: usize = 3;

/// Starts an attack, and returns the pids of its tree and of the supervisor when it is done.
async fn start_attack(client: &mut Client, id: &str, attack: &str, change: Value) -> Vec<u32> {
    let params = with(script_params(id, &attack_script(attack, "")), change);
    client.start_tree(params, ATTACK_SIZE).await
}

/// Starts an attack that goes on, and may have its tree killed at any time.
async fn start_endless(client: &mut Client, id: &str, attack: &str, change: Value) -> Vec<u32> {
    let params = with(script_params(id, &attack_script("", attack)), change);
    client.start_tree(params, ATTACK_SIZE).await
}

async fn all_die(processes: Vec<u32>) {
    for pid in processes {
        until(&format!("death of {pid}"), || !is_alive(pid)).await;
    }
}

/// Waits for the end of a process, some of whose output was taken.
async fn exited(client: &mut Client, id: &str) -> Value {
    loop {
        let note = client.note("process/exited").await;
        if note["processId"] == id {
            return note;
        }
    }
}

async fn terminate(client: &mut Client, id: &str) {
    let params = json!({"processId": id});
    let answer = client.call("process/terminate", params).await;
    assert_eq!(answer, json!({"running": true}));
}

const STOP_SUPERVISOR: &str = "kill -STOP $supervisor;";
const STOP_SPAWNER: &str = "kill -STOP $spawner;";
const STOP_SUPERVISOR_FOREVER: &str =
    "(setsid sh -c 'while :; do kill -STOP '$supervisor'; done' &);";
const STOP_BOTH_FOREVER: &str =
    "(setsid sh -c 'while :; do kill -STOP '$supervisor' '$spawner'; done' &);";

async fn termination_ends_a_tree_whose_supervisor_is_stopped(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let tree = start_attack(&mut client, "p", STOP_SUPERVISOR, json!({})).await;
    terminate(&mut client, "p").await;
    let exited = exited(&mut client, "p").await;
    assert_eq!(exited["cause"], "terminated", "{exited}");
    assert_eq!(exited["exitCode"], 137, "{exited}");
    all_die(tree).await;
}

async fn limits_end_a_tree_whose_supervisor_is_stopped(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (id, limit, cause) in [("w", "wallMs", "wallLimit"), ("i", "idleMs", "idleLimit")] {
        let limits = json!({"limits": {limit: 400}});
        let tree = start_attack(&mut client, id, STOP_SUPERVISOR, limits).await;
        let exited = exited(&mut client, id).await;
        assert_eq!(exited["cause"], cause, "{exited}");
        all_die(tree).await;
    }
}

async fn end_of_the_session_ends_a_tree_whose_supervisor_is_stopped(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "0"]).await;
    let mut client = server.ready().await;
    let tree = start_attack(&mut client, "p", STOP_SUPERVISOR, json!({})).await;
    drop(client);
    all_die(tree).await;
}

async fn sigterm_of_the_server_ends_trees_whose_supervisors_are_stopped(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let tree = start_attack(&mut client, "p", STOP_SUPERVISOR, json!({})).await;
    server.signal(Signal::TERM);
    all_die(tree).await;
    assert!(server.ended().await.0.success());
}

/// Kills a server with attacks of different kinds, and expects nothing to be left.
async fn nothing_survives_sigkill(transport: Transport, attack: &str, endless: &str) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let mut processes = spawners_of(&server);
    for (id, change) in [
        ("pipes", json!({})),
        ("tty", json!({"tty": true})),
        ("detached", json!({"detached": true})),
    ] {
        let params = with(script_params(id, &attack_script(attack, endless)), change);
        processes.extend(client.start_tree(params, ATTACK_SIZE).await);
    }
    server.signal(Signal::KILL);
    all_die(processes).await;
}

async fn sigkill_of_the_server_ends_trees_whose_supervisors_are_stopped(transport: Transport) {
    nothing_survives_sigkill(transport, STOP_SUPERVISOR, "").await;
}

async fn sigkill_of_the_server_ends_trees_whose_spawner_is_stopped_too(transport: Transport) {
    let script = format!("{STOP_SPAWNER} {STOP_SUPERVISOR}");
    nothing_survives_sigkill(transport, &script, "").await;
}

async fn sigkill_of_the_server_ends_a_tree_that_stops_its_supervisor_in_a_loop(
    transport: Transport,
) {
    nothing_survives_sigkill(transport, "", STOP_SUPERVISOR_FOREVER).await;
}

async fn stopped_spawner_answers_the_next_start(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let tree = start_attack(&mut client, "p", STOP_SPAWNER, json!({})).await;
    client.start("q", "exit 3").await;
    assert_eq!(client.finish("q").await.code(), 3);
    assert!(tree.iter().all(|pid| is_alive(*pid)));
}

async fn stopped_spawner_does_not_prevent_termination(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = format!("{STOP_SPAWNER} {STOP_SUPERVISOR}");
    let tree = start_attack(&mut client, "p", &script, json!({})).await;
    terminate(&mut client, "p").await;
    all_die(tree).await;
    let exited = exited(&mut client, "p").await;
    assert_eq!(exited["cause"], "terminated", "{exited}");
}

async fn termination_ends_a_tree_that_stops_its_supervisor_in_a_loop(transport: Transport) {
    terminated_loop(transport, STOP_SUPERVISOR_FOREVER).await;
}

async fn termination_ends_a_tree_that_stops_supervisor_and_spawner_in_a_loop(transport: Transport) {
    terminated_loop(transport, STOP_BOTH_FOREVER).await;
}

async fn terminated_loop(transport: Transport, script: &str) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let tree = start_endless(&mut client, "p", script, json!({})).await;
    // Also ended by the spawner, when it has continued the supervisor often enough.
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    exited(&mut client, "p").await;
    all_die(tree).await;
    // Nothing is broken for the next command.
    client.start("q", "exit 3").await;
    assert_eq!(client.finish("q").await.code(), 3);
}

async fn start_is_answered_while_a_command_stops_the_spawner_in_a_loop(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = "(setsid sh -c 'while :; do kill -STOP '$spawner'; done' &);";
    start_endless(&mut client, "p", script, json!({})).await;
    // It may succeed, or fail: a spawner that cannot be continued is replaced.
    let request = client
        .request("process/start", script_params("q", "exit 3"))
        .await;
    client.answer(request).await;
    let request = client
        .request("process/start", script_params("r", "exit 3"))
        .await;
    client.answer(request).await;
}

async fn killed_supervisor_takes_its_tree_along_and_no_other(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("other", "exec sleep 1000").await;
    // Each generation becomes an orphan when the one before has died.
    let script = "trap '' HUP INT TERM
        setsid sh -c 'setsid sh -c \"setsid sh -c \\\"echo \\\\\\$\\\\\\$; sleep 1000; :\\\"; :\"; :' &
        echo $!; sleep 0.2; kill -KILL $PPID; sleep 1000; :";
    let pids = client.start_tree(script_params("p", script), 2).await;
    assert_eq!(exited(&mut client, "p").await["cause"], "lost");
    all_die(pids).await;
    terminate(&mut client, "other").await;
    assert_eq!(client.finish("other").await.code(), 137);
}

async fn killed_spawner_and_supervisor_take_the_tree_along(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = format!(
        "trap '' HUP INT TERM; {ABOVE}
        setsid sh -c 'echo $$
            kill -KILL '$spawner' '$supervisor'; sleep 1000; :' & wait"
    );
    client.start("p", &script).await;
    let note = client.note("process/output").await;
    let printed = decode_text(&note["chunk"]);
    let daemon = printed.lines().next().unwrap().trim().parse().unwrap();
    until("death of the daemon", || !is_alive(daemon)).await;
    client.start("q", "exit 3").await;
    assert_eq!(client.finish("q").await.code(), 3);
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}

/// Finds the spawner, which the server starts when it does.
fn spawners_of(server: &Server) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", server.pid());
    let children = std::fs::read_to_string(path).unwrap();
    children
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}
