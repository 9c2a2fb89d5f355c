//! Resource limits of a process: enforced and reported as the cause of its exit.

use serde_json::{Value, json};

use crate::{
    client::{argv_params, script_params},
    over_every_transport, over_one_transport,
    server::{Server, Transport},
};

over_every_transport!(
    wall_time_limit_kills_a_process,
    idle_limit_kills_only_a_silent_process,
    memory_limit_counts_the_whole_tree,
    cpu_time_limit_kills_a_process,
    kernel_limits_match_the_request,
    huge_limits_are_unlimited,
);

over_one_transport!(
    process_limit_kills_a_tree_of_root,
    process_limit_makes_fork_fail_for_other_users,
    processes_within_the_limit_keep_running,
    command_cannot_raise_its_own_limits,
    file_size_limit_applies_to_every_user,
);

/// User id that runs nothing else.
const OTHER_ACCOUNT: u32 = 54_321;

/// Starts a server as root or as a user that runs nothing else.
async fn server_of(transport: Transport, user: u32) -> Option<Server> {
    // Tests that do not run as root cannot switch users.
    match rustix::process::geteuid().is_root() {
        true => Some(Server::start_as(user, transport, &[]).await),
        false => None,
    }
}

async fn process_limit_kills_a_tree_of_root(transport: Transport) {
    let Some(mut server) = server_of(transport, 0).await else {
        return;
    };
    let mut client = server.ready().await;
    let script = "for i in $(seq 60); do setsid sleep 1000 & done; wait";
    let limits = json!({"limits": {"processes": 12}});
    client.start_with(script_params("p", script), limits).await;
    let exited = client.finish("p").await.exited;
    assert_eq!(exited["cause"], "processLimit", "{exited}");
    assert_eq!(exited["exitCode"], 137, "{exited}");
}

async fn process_limit_makes_fork_fail_for_other_users(transport: Transport) {
    let Some(mut server) = server_of(transport, OTHER_ACCOUNT).await else {
        return;
    };
    let mut client = server.ready().await;
    let script = "for i in $(seq 60); do sleep 1000 >/dev/null 2>&1 & done; wait";
    let limits = json!({"limits": {"processes": 20}});
    client.start_with(script_params("p", script), limits).await;
    let events = client.finish("p").await;
    assert_eq!(events.exited["cause"], "exit", "{}", events.exited);
    assert_ne!(events.code(), 0, "the shell cannot fork");
}

async fn processes_within_the_limit_keep_running(transport: Transport) {
    let script = "for i in $(seq 5); do sleep 0.3 & done; wait; exit 3";
    let exited = exited(transport, script, json!({"limits": {"processes": 500}})).await;
    assert_eq!(
        (&exited["cause"], &exited["exitCode"]),
        (&json!("exit"), &json!(3))
    );
}

async fn command_cannot_raise_its_own_limits(transport: Transport) {
    for user in [0, OTHER_ACCOUNT] {
        let Some(mut server) = server_of(transport, user).await else {
            return;
        };
        let mut client = server.ready().await;
        let limits = json!({"limits": {"openFiles": 33, "cpuMs": 5000, "fileBytes": 4096}});
        let script = "ulimit -n 64; ulimit -t 60; ulimit -f unlimited; \
            grep -E '^Max (open files|cpu time|file size)' /proc/self/limits";
        client.start_with(script_params("p", script), limits).await;
        let text = client.finish("p").await.stdout();
        let values: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3))
            .collect();
        assert_eq!(values, ["5", "4096", "33"], "account {user}: {text}");
    }
}

async fn file_size_limit_applies_to_every_user(transport: Transport) {
    for user in [0, OTHER_ACCOUNT] {
        let Some(mut server) = server_of(transport, user).await else {
            return;
        };
        let mut client = server.ready().await;
        let limits = json!({"limits": {"fileBytes": 4096}});
        let file = server.path("large");
        let script = format!("exec head -c 10000 /dev/zero > {}", file.display());
        client.start_with(script_params("p", &script), limits).await;
        let exited = client.finish("p").await.exited;
        assert_ne!(exited["exitCode"], 0, "account {user}: {exited}");
        assert_eq!(std::fs::metadata(file).unwrap().len(), 4096);
    }
}

async fn exited(transport: Transport, script: &str, change: Value) -> Value {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start_with(script_params("p", script), change).await;
    client.finish("p").await.exited
}

async fn wall_time_limit_kills_a_process(transport: Transport) {
    let script = "trap '' TERM; setsid sleep 1000 & while :; do echo x; sleep 0.01; done";
    let exited = exited(transport, script, json!({"limits": {"wallMs": 200}})).await;
    assert_eq!(
        (&exited["cause"], &exited["exitCode"]),
        (&json!("wallLimit"), &json!(137))
    );
    let wall = exited["usage"]["wallMs"].as_u64().unwrap();
    assert!((200..3000).contains(&wall), "{wall} ms");
}

async fn idle_limit_kills_only_a_silent_process(transport: Transport) {
    let script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.15; done; exec sleep 1000";
    let exited = exited(transport, script, json!({"limits": {"idleMs": 500}})).await;
    assert_eq!(
        (&exited["cause"], &exited["exitCode"]),
        (&json!("idleLimit"), &json!(137))
    );
    let wall = exited["usage"]["wallMs"].as_u64().unwrap();
    assert!((1200..5000).contains(&wall), "{wall} ms");
}

async fn memory_limit_counts_the_whole_tree(transport: Transport) {
    // No single process exceeds the limit, and all have left the process group.
    let script = "for i in 1 2 3 4 5 6; do setsid sh -c \
        'x=$(head -c 12000000 /dev/zero | tr \"\\0\" x); sleep 1000' & done; wait";
    let exited = exited(
        transport,
        script,
        json!({"limits": {"memoryBytes": 40_000_000}}),
    )
    .await;
    assert_eq!(
        (&exited["cause"], &exited["exitCode"]),
        (&json!("memoryLimit"), &json!(137))
    );
}

async fn cpu_time_limit_kills_a_process(transport: Transport) {
    let exited = exited(
        transport,
        "while :; do :; done",
        json!({"limits": {"cpuMs": 500}}),
    )
    .await;
    let code = exited["exitCode"].as_i64().unwrap();
    assert!(code == 128 + 24 || code == 137, "{exited}");
    assert!(
        exited["usage"]["userMs"].as_u64().unwrap() >= 400,
        "{exited}"
    );
}

async fn kernel_limits_match_the_request(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let limits =
        json!({"limits": {"openFiles": 33, "fileBytes": 4096, "processes": 5000, "cpuMs": 1500}});
    client
        .start_with(argv_params("p", &["cat", "/proc/self/limits"]), limits)
        .await;
    let text = client.finish("p").await.stdout();
    let row = |name: &str| -> Vec<String> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect(name);
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row("Max open files")[0], "33");
    assert_eq!(row("Max file size")[0], "4096");
    assert_eq!(row("Max processes")[0], "5000");
    assert_eq!(row("Max cpu time")[0], "2", "rounded up to a second");
}

async fn huge_limits_are_unlimited(transport: Transport) {
    let huge = u64::MAX;
    let exited = exited(
        transport,
        "echo x; exit 3",
        json!({"limits": {
            "wallMs": huge, "idleMs": huge, "memoryBytes": huge,
        }}),
    )
    .await;
    assert_eq!(
        (&exited["cause"], &exited["exitCode"]),
        (&json!("exit"), &json!(3))
    );
}
