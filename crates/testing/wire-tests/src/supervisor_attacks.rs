//! Commands that stop or kill the supervisor or spawner above them keep nothing alive: not after a
//! terminate or a limit, nor after the end of their session or server.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    client::{Client, decode_text, script_params, with},
    over_one_transport,
    server::{Server, Transport, until},
};

over_one_transport!(
    terminate_kills_a_tree_with_a_stopped_supervisor,
    limits_kill_a_tree_with_a_stopped_supervisor,
    session_end_kills_a_tree_with_a_stopped_supervisor,
    sigterm_of_the_server_kills_trees_with_stopped_supervisors,
    sigkill_of_the_server_kills_trees_with_stopped_supervisors,
    sigkill_of_the_server_kills_trees_with_a_stopped_spawner,
    stopped_spawner_answers_the_next_start,
    stopped_spawner_does_not_prevent_termination,
    terminate_kills_a_tree_that_keeps_stopping_its_supervisor,
    terminate_kills_a_tree_that_keeps_stopping_supervisor_and_spawner,
    start_is_answered_while_a_command_keeps_stopping_the_spawner,
    sigkill_of_the_server_kills_a_tree_that_keeps_stopping_its_supervisor,
    killed_supervisor_kills_only_its_own_tree,
    killed_spawner_and_supervisor_kill_the_tree,
);

/// Sets `supervisor` and `spawner` to the pids of the processes above the command.
const ABOVE: &str = "supervisor=$PPID; read -r _ _ _ spawner _ < /proc/$supervisor/stat;";

/// Builds a script that starts a daemon outside the session and group, prints three pids, and
/// continues. Runs `attack` before it prints and `last` afterwards.
fn attack_script(attack: &str, last: &str) -> String {
    format!(
        "trap '' HUP INT TERM; {ABOVE}
        daemon=$(setsid sh -c '(setsid sh -c \"echo \\$\\$; exec sleep 1000 >/dev/null\" &) &')
        {attack}
        echo $daemon; echo $supervisor; echo $$; {last}
        exec sleep 1000"
    )
}

/// Number of pids that an [`attack_script`] prints.
const ATTACK_SIZE: usize = 3;

/// Starts an attack, waits until it is done, and returns the pids of its tree and of the
/// supervisor.
async fn start_attack(client: &mut Client, id: &str, attack: &str, change: Value) -> Vec<u32> {
    let params = with(script_params(id, &attack_script(attack, "")), change);
    client.start_tree(params, ATTACK_SIZE).await
}

/// Starts an attack that continues and whose tree may be killed at any time.
async fn start_endless(client: &mut Client, id: &str, attack: &str, change: Value) -> Vec<u32> {
    let params = with(script_params(id, &attack_script("", attack)), change);
    client.start_tree(params, ATTACK_SIZE).await
}

async fn assert_all_die(processes: Vec<u32>) {
    for pid in processes {
        until(&format!("death of {pid}"), || !is_alive(pid)).await;
    }
}

/// Waits for the close of a process whose first output was consumed.
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

async fn terminate_kills_a_tree_with_a_stopped_supervisor(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let tree = start_attack(&mut client, "p", STOP_SUPERVISOR, json!({})).await;
    terminate(&mut client, "p").await;
    let exited = exited(&mut client, "p").await;
    assert_eq!(exited["cause"], "terminated", "{exited}");
    assert_eq!(exited["exitCode"], 137, "{exited}");
    assert_all_die(tree).await;
}

async fn limits_kill_a_tree_with_a_stopped_supervisor(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (id, limit, cause) in [("w", "wallMs", "wallLimit"), ("i", "idleMs", "idleLimit")] {
        let limits = json!({"limits": {limit: 400}});
        let tree = start_attack(&mut client, id, STOP_SUPERVISOR, limits).await;
        let exited = exited(&mut client, id).await;
        assert_eq!(exited["cause"], cause, "{exited}");
        assert_all_die(tree).await;
    }
}

async fn session_end_kills_a_tree_with_a_stopped_supervisor(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "0"]).await;
    let mut client = server.ready().await;
    let tree = start_attack(&mut client, "p", STOP_SUPERVISOR, json!({})).await;
    drop(client);
    assert_all_die(tree).await;
}

async fn sigterm_of_the_server_kills_trees_with_stopped_supervisors(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let tree = start_attack(&mut client, "p", STOP_SUPERVISOR, json!({})).await;
    server.signal(Signal::TERM);
    assert_all_die(tree).await;
    assert!(server.ended().await.0.success());
}

/// Kills a server that runs different attacks and expects no process to survive.
async fn assert_sigkill_kills_every_tree(transport: Transport, attack: &str, endless: &str) {
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
    assert_all_die(processes).await;
}

async fn sigkill_of_the_server_kills_trees_with_stopped_supervisors(transport: Transport) {
    assert_sigkill_kills_every_tree(transport, STOP_SUPERVISOR, "").await;
}

async fn sigkill_of_the_server_kills_trees_with_a_stopped_spawner(transport: Transport) {
    let script = format!("{STOP_SPAWNER} {STOP_SUPERVISOR}");
    assert_sigkill_kills_every_tree(transport, &script, "").await;
}

async fn sigkill_of_the_server_kills_a_tree_that_keeps_stopping_its_supervisor(
    transport: Transport,
) {
    assert_sigkill_kills_every_tree(transport, "", STOP_SUPERVISOR_FOREVER).await;
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
    assert_all_die(tree).await;
    let exited = exited(&mut client, "p").await;
    assert_eq!(exited["cause"], "terminated", "{exited}");
}

async fn terminate_kills_a_tree_that_keeps_stopping_its_supervisor(transport: Transport) {
    check_terminate_of_looping_attack(transport, STOP_SUPERVISOR_FOREVER).await;
}

async fn terminate_kills_a_tree_that_keeps_stopping_supervisor_and_spawner(transport: Transport) {
    check_terminate_of_looping_attack(transport, STOP_BOTH_FOREVER).await;
}

async fn check_terminate_of_looping_attack(transport: Transport, script: &str) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let tree = start_endless(&mut client, "p", script, json!({})).await;
    // The spawner also kills it after continuing the supervisor often enough.
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    exited(&mut client, "p").await;
    assert_all_die(tree).await;
    // The next command works.
    client.start("q", "exit 3").await;
    assert_eq!(client.finish("q").await.code(), 3);
}

async fn start_is_answered_while_a_command_keeps_stopping_the_spawner(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = "(setsid sh -c 'while :; do kill -STOP '$spawner'; done' &);";
    start_endless(&mut client, "p", script, json!({})).await;
    // It may succeed or fail: a spawner that cannot be continued is replaced.
    let request = client
        .request("process/start", script_params("q", "exit 3"))
        .await;
    client.answer(request).await;
    let request = client
        .request("process/start", script_params("r", "exit 3"))
        .await;
    client.answer(request).await;
}

async fn killed_supervisor_kills_only_its_own_tree(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("other", "exec sleep 1000").await;
    // Each generation is orphaned when the previous one has died.
    let script = "trap '' HUP INT TERM
        setsid sh -c 'setsid sh -c \"setsid sh -c \\\"echo \\\\\\$\\\\\\$; sleep 1000; :\\\"; :\"; :' &
        echo $!; sleep 0.2; kill -KILL $PPID; sleep 1000; :";
    let pids = client.start_tree(script_params("p", script), 2).await;
    assert_eq!(exited(&mut client, "p").await["cause"], "lost");
    assert_all_die(pids).await;
    terminate(&mut client, "other").await;
    assert_eq!(client.finish("other").await.code(), 137);
}

async fn killed_spawner_and_supervisor_kill_the_tree(transport: Transport) {
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

/// Returns the spawner processes of a server.
fn spawners_of(server: &Server) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", server.pid());
    let children = std::fs::read_to_string(path).unwrap();
    children
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}
