//! The Tasks extension of MCP, and commands that outlive the process of `exec-server mcp`.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::mcp_door::{DOORS, DoorKind, McpDoor, StatelessRequest};
use crate::test_user::{TestUser, product, within_timeout};

async fn until_exists(path: &Path) {
    within_timeout(async {
        while !path.exists() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn command_becomes_a_task_and_its_result_can_be_read_repeatedly() {
    let user = TestUser::new();
    for (kind, flags) in [
        (DoorKind::Stdio, &["--in-process"][..]),
        (DoorKind::Stdio, &[]),
        (DoorKind::Http, &["--in-process"]),
        (DoorKind::Http, &[]),
    ] {
        let mut door = McpDoor::open(&user, kind, flags).await;
        let go = user.work().join("go");
        let cmd = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo last; exit 3";
        let task = door.start_task(json!({"cmd": cmd})).await;
        let id = &task["taskId"];
        assert_eq!(task["status"], "working", "{task}");
        assert!(
            task["ttlMs"].is_null() && task["pollIntervalMs"].is_u64(),
            "{task}"
        );
        for member in ["createdAt", "lastUpdatedAt"] {
            assert!(task[member].as_str().unwrap().contains('T'), "{task}");
        }
        let working = door.task("tasks/get", id).await;
        assert_eq!(working.result()["status"], "working", "{working:?}");
        // The task is a command: others write to it and see its output meanwhile.
        let poll = json!({"session_id": id, "wait_for": {"pattern": "first"}});
        assert_eq!(door.call("write_stdin", poll).await["output"], "first\n");
        let listed = door.call("list_processes", json!({})).await;
        assert_eq!(listed["processes"][0]["session_id"], *id, "{listed}");
        let updated = door.task("tasks/update", id).await;
        assert_eq!(updated.result()["resultType"], "complete", "{updated:?}");

        std::fs::write(&go, "").unwrap();
        for _ in 0..2 {
            let task = door.ended_task(id).await;
            assert_eq!(task["status"], "completed", "{task}");
            assert!(task["ttlMs"].as_u64().unwrap() >= 3_600_000, "{task}");
            let result = &task["result"];
            assert_eq!(result["isError"], false, "{task}");
            assert_eq!(result["structuredContent"]["exit_code"], 3, "{task}");
            assert_eq!(result["structuredContent"]["output"], "first\nlast\n");
        }
        // It has ended, so that it is not listed, and a cancellation changes nothing.
        let listed = door.call("list_processes", json!({})).await;
        assert_eq!(listed, json!({"processes": []}));
        door.task("tasks/cancel", id).await.result();
        assert_eq!(door.ended_task(id).await["status"], "completed");
        std::fs::remove_file(go).unwrap();
    }
}

#[tokio::test]
async fn task_that_may_return_early_ends_before_its_command() {
    let user = TestUser::new();
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &[]).await;
    let command = json!({"cmd": "echo ready; exec sleep 600", "wait_for": {"pattern": "ready"}});
    let task = door.start_task(command).await;
    let ended = door.ended_task(&task["taskId"]).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let answer = &ended["result"]["structuredContent"];
    assert_eq!(answer["output"], "ready\n", "{ended}");
    assert!(answer["session_id"].is_string(), "{ended}");
    // The task id names the command as well.
    let id = json!({"session_id": task["taskId"]});
    let answer = door.call("terminate_process", id).await;
    assert_eq!(answer["exit_code"], 143, "{answer}");
    assert_eq!(door.ended_task(&task["taskId"]).await, ended);
}

#[tokio::test]
async fn cancelled_task_ends_its_command() {
    let user = TestUser::new();
    for kind in DOORS {
        let mut door = McpDoor::open(&user, kind, &[]).await;
        let task = door.start_task(json!({"cmd": "sleep 600"})).await;
        let id = &task["taskId"];
        let cancelled = door.task("tasks/cancel", id).await;
        assert_eq!(cancelled.result()["resultType"], "complete");
        let task = door.ended_task(id).await;
        assert_eq!(task["status"], "cancelled", "{task}");
        assert!(task["result"].is_null(), "{task}");
        let listed = door.call("list_processes", json!({})).await;
        assert_eq!(listed, json!({"processes": []}));
    }
}

#[tokio::test]
async fn client_that_does_not_declare_tasks_gets_plain_results() {
    let user = TestUser::new();
    for kind in DOORS {
        let mut door = McpDoor::open(&user, kind, &["--in-process"]).await;
        // An earlier declaration does not count.
        let task = door.start_task(json!({"cmd": "sleep 600"})).await;
        let plain = StatelessRequest::tool("exec_command", json!({"cmd": "echo plain"}));
        let reply = door.ask(plain).await;
        assert_eq!(reply.result()["resultType"], "complete", "{reply:?}");
        assert_eq!(reply.result()["structuredContent"]["output"], "plain\n");
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = json!({"taskId": task["taskId"], "inputResponses": {}});
            let reply = door.ask(StatelessRequest::new(method, params)).await;
            assert_eq!(reply.error(400), -32021, "{reply:?}");
        }
        // Other tools have no tasks.
        let list = StatelessRequest::tool("list_processes", json!({})).with_tasks();
        assert_eq!(door.ask(list).await.result()["resultType"], "complete");
        // What cannot start is an error of the tool.
        let missing = json!({"cmd": "true", "workdir": "missing"});
        let missing = StatelessRequest::tool("exec_command", missing).with_tasks();
        assert_eq!(door.ask(missing).await.result()["isError"], true);
    }
}

#[tokio::test]
async fn unknown_tasks_are_invalid_parameters() {
    let user = TestUser::new();
    for kind in DOORS {
        let mut door = McpDoor::open(&user, kind, &[]).await;
        let command = json!({"cmd": "sleep 600", "yield_time_ms": 250});
        let command = door.call("exec_command", command).await["session_id"].clone();
        let task = door.start_task(json!({"cmd": "sleep 600"})).await["taskId"].clone();
        let guessed = task.as_str().unwrap().replace('7', "8") + "0";
        for wrong in [json!("x"), json!("a.b"), command, json!(guessed)] {
            for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
                let reply = door.task(method, &wrong).await;
                assert_eq!(reply.error(200), -32602, "{wrong} {reply:?}");
            }
        }
    }
}

#[tokio::test]
async fn task_survives_the_process_that_started_it() {
    let user = TestUser::new();
    let go = user.work().join("go");
    let cmd = "echo before; touch started; while [ ! -e go ]; do sleep 0.05; done; echo after";
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &[]).await;
    let id = door.start_task(json!({"cmd": cmd})).await["taskId"].clone();
    until_exists(&user.work().join("started")).await;
    door.kill().await;

    // Another door of the same workspace finds it while it runs.
    let mut door = McpDoor::open(&user, DoorKind::Http, &[]).await;
    let task = door.task("tasks/get", &id).await;
    assert_eq!(task.result()["status"], "working", "{task:?}");
    door.kill().await;
    std::fs::write(&go, "").unwrap();

    // And a third one reads its result, which others have not.
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &[]).await;
    let task = door.ended_task(&id).await;
    assert_eq!(task["status"], "completed", "{task}");
    let answer = &task["result"]["structuredContent"];
    assert_eq!(answer["output"], "before\nafter\n", "{task}");
    assert_eq!(answer["exit_code"], 0, "{task}");
    door.leave().await;
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &[]).await;
    let again = &door.ended_task(&id).await["result"]["structuredContent"];
    assert_eq!(again["output"], answer["output"]);
    assert_eq!(again["exit_code"], answer["exit_code"]);
}

#[tokio::test]
async fn cancelled_task_stays_cancelled_after_a_restart() {
    let user = TestUser::new();
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &[]).await;
    let id = door.start_task(json!({"cmd": "exec sleep 600"})).await["taskId"].clone();
    door.task("tasks/cancel", &id).await.result();
    assert_eq!(door.ended_task(&id).await["status"], "cancelled");
    door.kill().await;
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &[]).await;
    assert_eq!(door.ended_task(&id).await["status"], "cancelled");
}

/// Starts a command that echoes a line, and returns its id.
async fn start_echo(door: &mut McpDoor) -> Value {
    let command = json!({
        "cmd": "echo ready; read line; echo got $line",
        "open_stdin": true,
        "wait_for": {"pattern": "ready"},
    });
    let started = door.call("exec_command", command).await;
    assert_eq!(started["output"], "ready\n", "{started}");
    started["session_id"].clone()
}

async fn echo(door: &mut McpDoor, id: &Value) -> Value {
    let write = json!({"session_id": id, "chars": "it\n", "yield_time_ms": 20_000});
    door.call("write_stdin", write).await
}

#[tokio::test]
async fn running_command_is_found_and_written_to_after_a_restart() {
    let user = TestUser::new();
    let server = user.unix_server(&[]).await;
    let on_server = ["--env", server.url.as_str(), "--workspace", "."];
    let workspace = user.work();
    let on_server = [
        on_server[0],
        on_server[1],
        on_server[2],
        workspace.to_str().unwrap(),
    ];
    for flags in [&[][..], &on_server[..]] {
        let mut door = McpDoor::open(&user, DoorKind::Stdio, flags).await;
        let id = start_echo(&mut door).await;
        door.leave().await;
        let mut door = McpDoor::open(&user, DoorKind::Http, flags).await;
        let listed = door.call("list_processes", json!({})).await;
        assert_eq!(listed["processes"][0]["session_id"], id, "{listed}");
        assert_eq!(listed["processes"][0]["running"], true, "{listed}");
        let answer = echo(&mut door, &id).await;
        // The output is read from the start of what is retained.
        assert_eq!(answer["output"], "ready\ngot it\n", "{answer}");
        assert_eq!(answer["exit_code"], 0, "{answer}");
        // Its exit was shown, so that no later process lists it.
        let listed = door.call("list_processes", json!({})).await;
        assert_eq!(listed, json!({"processes": []}));
        door.kill().await;
        let mut door = McpDoor::open(&user, DoorKind::Stdio, flags).await;
        within_timeout(async {
            while door.call("list_processes", json!({})).await != json!({"processes": []}) {}
        })
        .await;
    }
}

#[tokio::test]
async fn commands_end_with_the_process_that_runs_them_itself() {
    let user = TestUser::new();
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &["--in-process"]).await;
    let id = start_echo(&mut door).await;
    door.leave().await;
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &["--in-process"]).await;
    let write = StatelessRequest::tool("write_stdin", json!({"session_id": id}));
    assert_eq!(door.ask(write).await.result()["isError"], true);
    assert!(user.local_server().is_none());
}

#[tokio::test]
async fn commands_of_another_policy_are_out_of_reach() {
    let user = TestUser::new();
    let free = ["--sandbox", "none"];
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &free).await;
    let id = start_echo(&mut door).await;
    let task = door.start_task(json!({"cmd": "sleep 600"})).await["taskId"].clone();
    for flags in [
        &[][..],
        &["--sandbox", "read-only"],
        &["--network"],
        &["--allow-git"],
        &["--sandbox", "none", "--workspace", "/"],
    ] {
        let mut confined = McpDoor::open(&user, DoorKind::Stdio, flags).await;
        let listed = confined.call("list_processes", json!({})).await;
        assert_eq!(listed, json!({"processes": []}), "{flags:?}");
        for tool in ["write_stdin", "terminate_process"] {
            let call = StatelessRequest::tool(tool, json!({"session_id": id}));
            assert_eq!(confined.ask(call).await.result()["isError"], true);
        }
        let reply = confined.task("tasks/cancel", &task).await;
        assert_eq!(reply.error(200), -32602, "{reply:?}");
    }
    assert_eq!(echo(&mut door, &id).await["output"], "got it\n");
}

#[tokio::test]
async fn commands_have_the_variables_of_the_process_not_of_the_server() {
    let user = TestUser::new();
    // The server of this machine is started in another environment.
    assert_eq!(user.run(["run", "true"]).await.expect_success(), "");
    let user = user.with("OWN_SETTING", "own").with("SOME_TOKEN", "secret");
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &[]).await;
    let command = json!({"cmd": "echo $OWN_SETTING,$SOME_TOKEN; pwd"});
    let answer = door.call("exec_command", command).await;
    let work = user.work();
    assert_eq!(answer["output"], format!("own,\n{}\n", work.display()));
}

#[tokio::test]
async fn sandboxed_commands_cannot_use_the_server_that_runs_them() {
    let user = TestUser::new();
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let created = outside.path().join("created");
    let run = format!("{} run touch {}", product().display(), created.display());
    for flags in [&[][..], &["--network"], &["--sandbox", "read-only"]] {
        let mut door = McpDoor::open(&user, DoorKind::Stdio, flags).await;
        for cmd in [run.clone(), format!("touch {}", created.display())] {
            let answer = door.call("exec_command", json!({"cmd": cmd})).await;
            assert_ne!(answer["exit_code"], 0, "{answer}");
        }
    }
    assert!(!created.exists());
}

#[tokio::test]
async fn server_of_this_machine_is_started_again() {
    let user = TestUser::new();
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &[]).await;
    let answer = door.call("exec_command", json!({"cmd": "echo one"})).await;
    assert_eq!(answer["output"], "one\n");
    let killed = user.local_server().unwrap();
    rustix::process::kill_process(killed, rustix::process::Signal::KILL).unwrap();
    let again = async {
        loop {
            let call = StatelessRequest::tool("exec_command", json!({"cmd": "echo two"}));
            let reply = door.ask(call).await;
            if reply.result()["isError"] == false {
                return reply.result()["structuredContent"]["output"].clone();
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    assert_eq!(within_timeout(again).await, "two\n");
    assert_ne!(user.local_server().unwrap(), killed);
}
