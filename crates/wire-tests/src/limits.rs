//! Limits of a process: kept, and named as the cause of its end.

use serde_json::{Value, json};

use crate::{
    client::{argv_params, script_params},
    over_every_transport,
    server::{Server, Transport},
};

over_every_transport!(
    wall_time_ends_a_process,
    idle_time_ends_a_silent_process_only,
    memory_of_the_whole_tree_ends_a_process,
    processor_time_ends_a_process,
    kernel_limits_are_those_that_were_asked_for,
    limits_without_end_are_no_limits,
);

async fn exited(transport: Transport, script: &str, change: Value) -> Value {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start_with(script_params("p", script), change).await;
    client.finish("p").await.exited
}

async fn wall_time_ends_a_process(transport: Transport) {
    let script = "trap '' TERM; setsid sleep 1000 & while :; do echo x; sleep 0.01; done";
    let exited = exited(transport, script, json!({"limits": {"wallMs": 200}})).await;
    assert_eq!(
        (&exited["cause"], &exited["exitCode"]),
        (&json!("wallLimit"), &json!(137))
    );
    let wall = exited["usage"]["wallMs"].as_u64().unwrap();
    assert!((200..3000).contains(&wall), "{wall} ms");
}

async fn idle_time_ends_a_silent_process_only(transport: Transport) {
    let script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.15; done; exec sleep 1000";
    let exited = exited(transport, script, json!({"limits": {"idleMs": 500}})).await;
    assert_eq!(
        (&exited["cause"], &exited["exitCode"]),
        (&json!("idleLimit"), &json!(137))
    );
    let wall = exited["usage"]["wallMs"].as_u64().unwrap();
    assert!((1200..5000).contains(&wall), "{wall} ms");
}

async fn memory_of_the_whole_tree_ends_a_process(transport: Transport) {
    // No process alone exceeds the limit; all have left the group.
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

async fn processor_time_ends_a_process(transport: Transport) {
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

async fn kernel_limits_are_those_that_were_asked_for(transport: Transport) {
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

async fn limits_without_end_are_no_limits(transport: Transport) {
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
