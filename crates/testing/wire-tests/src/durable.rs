//! Durable processes: what a client finds after its server was killed and another one has started.

use std::{fs, time::Duration};

use rustix::process::Signal;
use serde_json::json;

use crate::{
    client::{TREE, TREE_SIZE, encode, script_params, with},
    durable_server::{
        DurableServer, Random, ReadOutput, assert_same, listed, numbers, os_pid, until_listening,
        watch, write,
    },
    network::proxy,
    server::{Server, Transport, WatchedProcess, until},
};

#[tokio::test]
async fn process_goes_on_after_its_server_is_killed() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    let params = script_params("p", "echo one; read x; echo $x; exit 5");
    client.start_with(params, json!({"pipeStdin": true})).await;
    client.output_until("p", "one\n").await;
    let pid = os_pid(&mut client, "p").await;
    for _ in 0..3 {
        server.kill().await;
        server.restart().await;
        client = server.resume(&session).await;
        assert_eq!(os_pid(&mut client, "p").await, pid);
    }
    write(&mut client, "p", "two\n").await;
    let mut output = ReadOutput::default();
    output.finish(&mut client, "p").await;
    assert_eq!(output.stream("stdout"), b"one\ntwo\n");
    assert_eq!(output.exit_code, Some(5));
}

#[tokio::test]
async fn exit_without_a_server_is_reported_exactly() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    let gate = server.path("gate");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", gate.display());
    client
        .start("code", &format!("{wait}; echo last; exit 77"))
        .await;
    client.start("signal", &format!("{wait}; kill -9 $$")).await;
    let watched = [
        watch(&mut client, "code").await,
        watch(&mut client, "signal").await,
    ];
    server.kill().await;
    fs::write(&gate, "").unwrap();
    for process in watched {
        process.death().await;
    }
    server.restart().await;
    let mut client = server.resume(&session).await;
    let mut output = ReadOutput::default();
    output.finish(&mut client, "code").await;
    assert_eq!(output.stream("stdout"), b"last\n");
    assert_eq!(output.exit_code, Some(77));
    let params = json!({"processId": "signal", "until": "closed"});
    client.call("process/wait", params.clone()).await;
    let ended = client.call("process/read", params).await;
    assert_eq!(
        (&ended["exitCode"], &ended["signal"], &ended["cause"]),
        (&json!(137), &json!("SIGKILL"), &json!("signal"))
    );
}

#[tokio::test]
async fn client_without_acknowledge_reads_all_that_it_missed() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    client
        .start("p", "seq 1 400000; seq 1 400000 >&2; exit 3")
        .await;
    let (mut output, mut random) = (ReadOutput::default(), Random::new());
    for _ in 0..4 {
        output.page(&mut client, "p", json!({"waitMs": 50})).await;
        random.pause(Duration::from_millis(30)).await;
        server.kill().await;
        server.restart().await;
        client = server.resume(&session).await;
    }
    output.finish(&mut client, "p").await;
    let expected = numbers(400_000);
    assert_same(output.stream("stdout"), &expected);
    assert_same(output.stream("stderr"), &expected);
    assert_eq!(output.exit_code, Some(3));
    // All of it is still there for another reader.
    let mut again = ReadOutput::default();
    again.finish(&mut client, "p").await;
    assert_same(again.stream("stdout"), &expected);
}

#[tokio::test]
async fn ordinary_processes_die_with_the_server_beside_durable_ones() {
    let mut server = DurableServer::start(&["--durable", "off"]).await;
    let (mut client, session) = server.ready().await;
    let durable = json!({"durable": true});
    client
        .start_with(script_params("durable", "exec sleep 1000"), durable)
        .await;
    let durable = watch(&mut client, "durable").await;
    let tree = client
        .start_tree(script_params("ordinary", TREE), TREE_SIZE)
        .await;
    let tree: Vec<_> = tree.into_iter().map(WatchedProcess::new).collect();
    assert!(server.keeper().is_some());
    server.kill().await;
    for process in tree {
        process.death().await;
    }
    assert!(durable.is_alive());
    server.restart().await;
    let mut client = server.resume(&session).await;
    assert!(listed(&mut client, "ordinary").await.is_none());
    assert_eq!(os_pid(&mut client, "durable").await, durable.pid());
}

#[tokio::test]
async fn killed_start_runs_the_command_at_most_once_and_listed() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    // The session is saved with its first durable process.
    client.start("first", "exec sleep 1000").await;
    let mut random = Random::new();
    let rounds = rounds(15);
    let (mut found, mut lost) = (0, 0);
    for round in 0..rounds {
        let (id, marker) = (format!("p{round}"), server.path(&format!("m{round}")));
        let script = format!("echo $$ >> {}; exec sleep 1000", marker.display());
        client
            .request("process/start", script_params(&id, &script))
            .await;
        random.pause(Duration::from_millis(4)).await;
        server.kill().await;
        server.restart().await;
        client = server.resume(&session).await;
        let starts = || fs::read_to_string(&marker).unwrap_or_default();
        match listed(&mut client, &id).await {
            Some(process) => {
                found += 1;
                assert_eq!(process["running"], true, "{process}");
                until("the command has started", || starts().ends_with('\n')).await;
                assert_eq!(starts().trim(), process["osPid"].to_string());
                let target = json!({"processId": id});
                client.call("process/terminate", target.clone()).await;
                let target = with(target, json!({"until": "closed"}));
                client.call("process/wait", target).await;
            }
            None => {
                lost += 1;
                // A command that has started meanwhile dies.
                until("an unlisted command is not running", || {
                    starts()
                        .lines()
                        .all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
                })
                .await;
            }
        }
        assert!(starts().lines().count() <= 1, "{}", starts());
    }
    eprintln!("{found} starts were adopted, {lost} had not begun");
}

#[tokio::test]
async fn server_killed_during_adoption_loses_nothing() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    let script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done; read x; exit 9";
    for number in 0..8 {
        let params = with(
            script_params(&format!("p{number}"), script),
            json!({"pipeStdin": true, "tty": number % 2 == 1}),
        );
        client.start_with(params, json!({})).await;
    }
    let pids = pids(&mut client).await;
    server.kill().await;
    let mut random = Random::new();
    for _ in 0..rounds(10) {
        server.spawn();
        random.pause(Duration::from_millis(80)).await;
        server.kill().await;
    }
    server.restart().await;
    let mut client = server.resume(&session).await;
    assert_eq!(self::pids(&mut client).await, pids);
    for number in 0..8 {
        let id = format!("p{number}");
        let terminal = number % 2 == 1;
        write(&mut client, &id, "\n").await;
        let mut output = ReadOutput::default();
        output.finish(&mut client, &id).await;
        assert_eq!(output.exit_code, Some(9));
        let mut expected = String::from_utf8(numbers(3000)).unwrap();
        if terminal {
            // The echo of the input follows.
            expected = expected.replace('\n', "\r\n") + "\r\n";
        }
        let stream = if terminal { "pty" } else { "stdout" };
        assert_same(output.stream(stream), expected.as_bytes());
    }
}

async fn pids(client: &mut crate::client::Client) -> Vec<serde_json::Value> {
    let list = client.call("process/list", json!({})).await;
    let mut pids: Vec<_> = list["processes"].as_array().unwrap().clone();
    pids.sort_by_key(|process| process["processId"].to_string());
    let pids = pids.into_iter().map(|mut process| process["osPid"].take());
    pids.collect()
}

#[tokio::test]
async fn repeated_write_after_a_kill_is_not_written_again() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    let stdin = json!({"pipeStdin": true});
    client.start_with(script_params("p", "cat"), stdin).await;
    let (mut expected, mut random) = (String::new(), Random::new());
    for round in 0..rounds(15) {
        let params = |number: u64| {
            let line = format!("{round}.{number}\n");
            json!({"processId": "p", "chunk": encode(line.as_bytes()), "writeId": line})
        };
        for number in 0..20 {
            client.request("process/write", params(number)).await;
        }
        random.pause(Duration::from_millis(5)).await;
        server.kill().await;
        server.restart().await;
        client = server.resume(&session).await;
        for number in 0..20 {
            let written = client.call("process/write", params(number)).await;
            assert_eq!(written, json!({"status": "accepted"}));
            expected += &format!("{round}.{number}\n");
        }
    }
    let target = json!({"processId": "p"});
    client.call("process/closeStdin", target).await;
    let mut output = ReadOutput::default();
    output.finish(&mut client, "p").await;
    assert_same(output.stream("stdout"), expected.as_bytes());
    assert_eq!(output.exit_code, Some(0));
}

#[tokio::test]
async fn waiting_write_that_is_repeated_is_written_once() {
    let server = DurableServer::start(&[]).await;
    let (mut client, _) = server.ready().await;
    let go = server.state().with_extension("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.01; done; wc -c",
        go.display()
    );
    let stdin = json!({"pipeStdin": true});
    client.start_with(script_params("p", &script), stdin).await;
    let chunk = "eHh4".repeat(1 << 18);
    let write = |number: usize| {
        let write_id = format!("w{number}");
        json!({"processId": "p", "chunk": chunk, "writeId": write_id})
    };
    // The limit is 8 MiB; each write has 768 KiB.
    let mut waiting = Vec::new();
    for number in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 13, 12] {
        waiting.push(client.request("process/write", write(number)).await);
    }
    let close = json!({"processId": "p"});
    waiting.push(client.request("process/closeStdin", close).await);
    fs::write(&go, "").unwrap();
    for id in waiting {
        let answer = client.answer(id).await;
        assert_eq!(answer["result"]["status"], "accepted", "{answer}");
    }
    let counted = client.finish("p").await.stdout().trim().to_owned();
    assert_eq!(counted, (14 * 3 * (1 << 18)).to_string());
}

#[tokio::test]
async fn graceful_stop_leaves_durable_processes_to_the_next_server() {
    let mut server = DurableServer::start(&["--shutdown-grace", "1"]).await;
    let (mut client, session) = server.ready().await;
    let params = script_params("p", "seq 1 200000; read x; exit 4");
    client.start_with(params, json!({"pipeStdin": true})).await;
    let ordinary = json!({"durable": false});
    client
        .start_with(script_params("o", "exec sleep 1000"), ordinary)
        .await;
    let ordinary = watch(&mut client, "o").await;
    let process = watch(&mut client, "p").await;
    server.stop(Signal::TERM).await;
    ordinary.death().await;
    assert!(process.is_alive());
    server.restart().await;
    let mut client = server.resume(&session).await;
    assert_eq!(os_pid(&mut client, "p").await, process.pid());
    write(&mut client, "p", "\n").await;
    let mut output = ReadOutput::default();
    output.finish(&mut client, "p").await;
    assert_same(output.stream("stdout"), &numbers(200_000));
    assert_eq!(output.exit_code, Some(4));
}

#[tokio::test]
async fn expired_session_kills_its_durable_processes() {
    let mut server = DurableServer::start(&["--session-ttl", "0.3"]).await;
    let sessions = server.state().join("sessions");
    let saved = || fs::read_dir(&sessions).unwrap().count();
    for killed in [false, true] {
        let (mut client, session) = server.ready().await;
        let tree = client.start_tree(script_params("p", TREE), TREE_SIZE).await;
        let tree: Vec<_> = tree.into_iter().map(WatchedProcess::new).collect();
        assert_eq!(saved(), 1);
        drop(client);
        if killed {
            server.kill().await;
            assert_eq!(saved(), 1);
            server.restart().await;
        }
        for process in tree {
            process.death().await;
        }
        until("the saved session is removed", || saved() == 0).await;
        let mut client = server.connect().await;
        let params = json!({"clientName": "c", "resumeSessionId": session});
        let message = client.expect_error(-32600, "initialize", params).await;
        assert_eq!(message, format!("unknown session id {session}"));
        let empty = || super::durable_server::open_descriptors(server.keeper().unwrap_or(0));
        let before = empty();
        until("the keeper closes the descriptors", || empty() <= before).await;
    }
}

#[tokio::test]
async fn durable_start_without_a_state_directory_is_refused() {
    let mut server = Server::start(Transport::Unix, &[]).await;
    let mut client = server.ready().await;
    let params = with(script_params("p", "exit"), json!({"durable": true}));
    let message = client.expect_error(-32602, "process/start", params).await;
    assert!(message.starts_with("durable: "), "{message}");
    assert!(message.contains("--state-dir"), "{message}");
    // Without the wish, it is an ordinary process.
    let params = script_params("p", "exit");
    client.start_with(params, json!({"durable": false})).await;
}

#[tokio::test]
async fn durable_start_with_a_managed_network_is_refused() {
    let server = DurableServer::start(&[]).await;
    let (mut client, _) = server.ready().await;
    let network = json!({
        "durable": true, "networkProxy": proxy(json!({"127.0.0.1": "allow"})),
    });
    let params = with(script_params("p", "exit"), network);
    let id = client.request("process/start", params).await;
    let answer = client.answer(id).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.starts_with("durable: "), "{text}");
    assert!(listed(&mut client, "p").await.is_none());
}

#[tokio::test]
async fn server_killed_while_it_starts_programs_leaves_nothing_locked() {
    let mut server = DurableServer::start(&[]).await;
    let mut random = Random::new();
    for _ in 0..rounds(50) {
        // It starts its helpers after the announcement.
        random.pause(Duration::from_millis(12)).await;
        server.kill().await;
        server.restart().await;
    }
}

#[tokio::test]
async fn second_server_on_a_state_directory_is_refused() {
    let mut server = DurableServer::start(&[]).await;
    let (mut client, session) = server.ready().await;
    client.start("p", "exec sleep 1000").await;
    let mut second = server.command("other");
    second.stderr(std::process::Stdio::piped());
    let output = tokio::time::timeout(crate::server::TIMEOUT, second.output());
    let output = output.await.expect("second server goes on").unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot use the state directory"), "{text}");
    assert!(text.contains("another server"), "{text}");
    // The first one is not affected.
    assert!(listed(&mut client, "p").await.is_some());
    server.kill().await;
    server.spawn();
    until_listening(&server.path("s")).await;
    let mut client = server.resume(&session).await;
    assert!(listed(&mut client, "p").await.is_some());
}

/// Returns the number of rounds of a test with random kills: a setting, or a default.
pub(crate) fn rounds(default: u64) -> u64 {
    let rounds = std::env::var("EXEC_KILL_ROUNDS").ok();
    rounds.map_or(default, |rounds| rounds.parse().expect("EXEC_KILL_ROUNDS"))
}
