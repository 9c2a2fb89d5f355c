//! Durable processes when something else fails: the keeper, the disk, or files of the state
//! directory.

use std::{
    fs::{self, OpenOptions, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::{
    client::{Client, TREE, TREE_SIZE, script_params, with},
    durable_server::{
        DurableServer, ReadOutput, assert_same, listed, numbers, open_descriptors, os_pid, write,
    },
    server::{TIMEOUT, WatchedProcess, to_pid},
};

/// Script that waits for a line, then writes many.
const SCRIPT: &str = "echo begin; read x; seq 1 100000; exit 6";

async fn start_waiting(client: &mut Client, id: &str) {
    let stdin = json!({"pipeStdin": true});
    client.start_with(script_params(id, SCRIPT), stdin).await;
    client.output_until(id, "begin\n").await;
}

async fn finish_waiting(client: &mut Client, id: &str) {
    write(client, id, "\n").await;
    let mut output = ReadOutput::default();
    output.finish(client, id).await;
    let expected = [b"begin\n".as_slice(), &numbers(100_000)].concat();
    assert_same(output.stream("stdout"), &expected);
    assert_eq!(output.exit_code, Some(6));
}

#[tokio::test]
async fn killed_keeper_is_replaced_and_the_next_server_adopts_from_it() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    for id in ["p", "q", "r"] {
        start_waiting(&mut client, id).await;
    }
    let pid = os_pid(&mut client, "p").await;
    for _ in 0..3 {
        let keeper = server.keeper().unwrap();
        let held = open_descriptors(keeper);
        kill_process(to_pid(keeper), Signal::KILL).unwrap();
        server.await_keeper_after(keeper, held - 3).await;
    }
    finish_waiting(&mut client, "p").await;
    server.kill().await;
    server.restart().await;
    let mut client = server.resume(&session).await;
    assert_eq!(os_pid(&mut client, "p").await, pid);
    finish_waiting(&mut client, "q").await;
    // The keeper starts commands, too.
    client.start("s", "echo started").await;
    assert_eq!(client.finish("s").await.stdout(), "started\n");
    let keeper = server.keeper().unwrap();
    let held = open_descriptors(keeper);
    kill_process(to_pid(keeper), Signal::KILL).unwrap();
    server.await_keeper_after(keeper, held - 3).await;
    server.kill().await;
    server.restart().await;
    finish_waiting(&mut server.resume(&session).await, "r").await;
}

#[tokio::test]
async fn stopped_keeper_delays_no_request_for_long() {
    let server = DurableServer::start(&[]).await;
    let (mut client, _) = server.ready().await;
    start_waiting(&mut client, "p").await;
    let (mut other, _) = server.ready().await;
    for number in 0..10 {
        let id = format!("c{number}");
        let stdin = json!({"pipeStdin": true});
        other.start_with(script_params(&id, "cat"), stdin).await;
    }
    let keeper = to_pid(server.keeper().unwrap());
    let path = server.path("stop");
    fs::write(&path, "").unwrap();
    // The server continues its keeper: stop it again and again.
    let stopping = std::thread::spawn(move || {
        while path.exists() {
            kill_process(keeper, Signal::STOP).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
        kill_process(keeper, Signal::CONT).unwrap();
    });
    let begun = Instant::now();
    let params = with(script_params("q", "echo q"), json!({"durable": true}));
    let start = client.request("process/start", params).await;
    // Everything else goes on meanwhile.
    for number in 0..20 {
        let call = Instant::now();
        other.expect_alive().await;
        let id = format!("o{number}");
        let ordinary = json!({"durable": false});
        other
            .start_with(script_params(&id, "echo o"), ordinary)
            .await;
        assert_eq!(other.finish(&id).await.stdout(), "o\n");
        let cat = json!({"processId": format!("c{}", number / 2)});
        other.call("process/closeStdin", cat).await;
        assert!(call.elapsed() < Duration::from_secs(1), "{number}");
    }
    let answer = client.answer(start).await;
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    if let Some(error) = answer.get("error") {
        let text = error["message"].as_str().unwrap();
        assert!(text.contains("keeper"), "{text}");
        assert!(listed(&mut client, "q").await.is_none());
    }
    fs::remove_file(server.path("stop")).unwrap();
    stopping.join().unwrap();
    for number in 0..10 {
        assert_eq!(other.finish(&format!("c{number}")).await.code(), 0);
    }
    finish_waiting(&mut client, "p").await;
    client.start("r", "echo r").await;
    assert_eq!(client.finish("r").await.stdout(), "r\n");
}

#[tokio::test]
async fn process_of_a_killed_keeper_and_server_is_lost_and_stays_readable() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    let script = format!("seq 1 100000; {TREE}");
    client
        .start_with(script_params("p", &script), json!({"detached": true}))
        .await;
    start_waiting(&mut client, "s").await;
    let mut output = ReadOutput::default();
    let tree = loop {
        output.page(&mut client, "p", json!({"waitMs": 1000})).await;
        let text = String::from_utf8_lossy(output.stream("stdout")).into_owned();
        let tree: Vec<_> = text.lines().skip(100_000).map(str::to_owned).collect();
        if tree.len() == TREE_SIZE && text.ends_with('\n') {
            break tree;
        }
    };
    let tree: Vec<_> = tree
        .iter()
        .map(|pid| WatchedProcess::new(pid.parse().unwrap()))
        .collect();
    let keeper = to_pid(server.keeper().unwrap());
    // Stopped first, so that it does not start another keeper.
    kill_process(to_pid(server.pid()), Signal::STOP).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    server.kill().await;
    for process in tree {
        process.death().await;
    }
    server.restart().await;
    let mut client = server.resume(&session).await;
    for id in ["p", "s"] {
        let process = listed(&mut client, id).await.expect("still listed");
        assert_eq!(
            (&process["state"], &process["running"]),
            (&json!("lost"), &json!(false)),
            "{process}"
        );
    }
    let mut again = ReadOutput::default();
    again.finish(&mut client, "p").await;
    assert_same(again.stream("stdout"), output.stream("stdout"));
    let ended = client.call("process/read", json!({"processId": "p"})).await;
    assert_eq!(ended["cause"], "lost", "{ended}");
    assert_eq!(ended["exitCode"], -1, "no code is invented: {ended}");
    // The id is free again for a new process.
    client.start("t", "echo t").await;
    assert_eq!(client.finish("t").await.stdout(), "t\n");
}

#[tokio::test]
async fn readable_state_directory_is_refused() {
    let mut server = DurableServer::prepare("exec \"$0\" \"$@\"", &[]);
    fs::create_dir(server.state()).unwrap();
    fs::set_permissions(server.state(), Permissions::from_mode(0o755)).unwrap();
    let mut command = server.command("s");
    command.stderr(std::process::Stdio::piped());
    let output = tokio::time::timeout(TIMEOUT, command.output());
    let output = output.await.expect("server goes on").unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("state directory"), "{text}");
    assert!(text.contains("700"), "{text}");
    fs::set_permissions(server.state(), Permissions::from_mode(0o700)).unwrap();
    server.restart().await;
}

#[tokio::test]
async fn state_directory_of_a_later_version_is_refused() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    start_waiting(&mut client, "p").await;
    server.kill().await;
    let schema = server.state().join("schema");
    let own = fs::read(&schema).unwrap();
    fs::write(&schema, "999\n").unwrap();
    let mut command = server.command("s");
    command.stderr(std::process::Stdio::piped());
    let output = tokio::time::timeout(TIMEOUT, command.output());
    let output = output.await.expect("server goes on").unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("999"), "{text}");
    fs::write(&schema, own).unwrap();
    server.restart().await;
    finish_waiting(&mut server.resume(&session).await, "p").await;
}

#[tokio::test]
async fn damaged_record_of_an_ended_process_affects_no_other() {
    for file in ["0.index", "0.stdout", "events", "head.json", "*"] {
        for damage in [Damage::Empty, Damage::Half, Damage::Overwritten] {
            damaged_record(file, damage).await;
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Empty,
    Half,
    Overwritten,
}

impl Damage {
    fn apply(self, file: &Path) {
        let length = fs::metadata(file).unwrap().len();
        match self {
            Self::Empty => fs::write(file, "").unwrap(),
            Self::Half => {
                let file = OpenOptions::new().write(true).open(file).unwrap();
                file.set_len(length / 2).unwrap();
            }
            Self::Overwritten => {
                let length = usize::try_from(length).unwrap();
                fs::write(file, vec![0xa5; length]).unwrap();
            }
        }
    }
}

async fn damaged_record(file: &str, damage: Damage) {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    client.start("ended", "seq 1 1000; exit 3").await;
    assert_eq!(client.finish("ended").await.code(), 3);
    let ended = server.records();
    assert_eq!(ended.len(), 1);
    start_waiting(&mut client, "live").await;
    client.start("other", "seq 1 1000; exit 2").await;
    assert_eq!(client.finish("other").await.code(), 2);
    server.kill().await;
    for entry in fs::read_dir(&ended[0]).unwrap() {
        let path = entry.unwrap().path();
        if file == "*" || path.ends_with(file) {
            damage.apply(&path);
        }
    }
    server.restart().await;
    let mut client = server.resume(&session).await;
    finish_waiting(&mut client, "live").await;
    let mut other = ReadOutput::default();
    other.finish(&mut client, "other").await;
    assert_same(other.stream("stdout"), &numbers(1000));
    assert_eq!(other.exit_code, Some(2));
    // What is left of the damaged one can be asked for, and the history can be listed.
    if let Some(process) = listed(&mut client, "ended").await {
        assert_eq!(process["running"], false, "{file} {damage:?} {process}");
        let params = json!({"processId": "ended", "maxBytes": 65_536});
        client.call("process/read", params).await;
    }
    client.call("history/list", json!({})).await;
}

#[tokio::test]
async fn full_disk_pauses_a_process_and_loses_nothing() {
    const SPACE: usize = 48 << 20;
    const LAST: u64 = 4_000_000;
    let mount = format!(
        "mkdir -m 700 state && mount -t tmpfs -o mode=700,size={SPACE} tmpfs state && \
         exec \"$0\" \"$@\""
    );
    // The mount is private to the server and what it starts.
    let script = format!("exec unshare -m sh -c '{mount}' \"$0\" \"$@\"");
    let server = DurableServer::start_by(&script, &[]).await;
    let (mut client, _) = server.ready().await;
    let inside = format!("/proc/{}/root{}", server.pid(), server.state().display());
    let filler = Path::new(&inside).join("filler");
    start_waiting(&mut client, "quiet").await;
    let script = format!("seq 1 {LAST}; exit 8");
    client
        .start_with(script_params("p", "read x"), json!({"pipeStdin": true}))
        .await;
    fs::write(&filler, vec![0; SPACE - (8 << 20)]).unwrap();
    client.start("full", &script).await;
    // It stops although its client reads.
    let mut output = ReadOutput::default();
    while output
        .page(&mut client, "full", json!({"waitMs": 1500}))
        .await
    {}
    let written = output.stream("stdout").len();
    assert!((4 << 20..10 << 20).contains(&written), "{written}");
    assert_eq!(output.exit_code, None);
    // Others are not affected.
    let ordinary = json!({"durable": false});
    client
        .start_with(script_params("o", "echo o"), ordinary)
        .await;
    assert_eq!(client.finish("o").await.stdout(), "o\n");
    // Input and starts that cannot be recorded are refused, and can be repeated.
    let line = json!({"processId": "p", "chunk": "eAo=", "writeId": "w"});
    let text = client
        .expect_error(-32603, "process/write", line.clone())
        .await;
    assert!(text.contains("no space"), "{text}");
    let durable = with(script_params("q", "echo q"), json!({"durable": true}));
    let text = client
        .expect_error(-32603, "process/start", durable.clone())
        .await;
    assert!(text.contains("no space"), "{text}");
    fs::remove_file(&filler).unwrap();
    output.finish(&mut client, "full").await;
    assert_same(output.stream("stdout"), &numbers(LAST));
    assert_eq!(output.exit_code, Some(8));
    finish_waiting(&mut client, "quiet").await;
    client.call("process/write", line).await;
    assert_eq!(client.finish("p").await.code(), 0);
    client.start_with(durable, json!({})).await;
    assert_eq!(client.finish("q").await.stdout(), "q\n");
}
