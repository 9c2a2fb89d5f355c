//! Signals and termination: processes end as requested, and nothing survives the server.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::{
    client::{TREE, TREE_SIZE, script_params, with},
    over_every_transport,
    server::{Server, Transport, WatchedProcess, until},
};

over_every_transport!(
    sigkill_of_the_server_kills_every_process,
    terminate_kills_the_whole_tree,
    descendants_of_an_exited_process_live_until_the_session_ends,
    death_by_signal_is_128_plus_its_number,
    terminate_kills_immediately_and_reports_whether_it_was_running,
    terminate_delivers_output_already_written,
    graceful_termination_lets_a_trap_run,
    graceful_termination_kills_after_the_grace_period,
    every_signal_reaches_the_process_group,
    signals_to_an_exited_process_succeed,
    pending_start_can_be_cancelled_by_terminate,
);

async fn death_by_signal_is_128_plus_its_number(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (name, number) in [
        ("INT", 2),
        ("ABRT", 6),
        ("KILL", 9),
        ("SEGV", 11),
        ("TERM", 15),
    ] {
        for tty in [false, true] {
            let id = format!("{name}-{tty}");
            let script = script_params(&id, &format!("kill -{name} $$; sleep 9"));
            client.start_with(script, json!({"tty": tty})).await;
            let exited = client.finish(&id).await.exited;
            assert_eq!(exited["exitCode"], 128 + number, "{id}");
            assert_eq!(
                (&exited["signal"], &exited["cause"]),
                (&json!(format!("SIG{name}")), &json!("signal"))
            );
        }
    }
}

async fn terminate_kills_immediately_and_reports_whether_it_was_running(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for tty in [false, true] {
        let id = format!("p-{tty}");
        let script = "trap '' INT TERM HUP; echo up; while :; do sleep 1; done";
        client
            .start_with(script_params(&id, script), json!({"tty": tty}))
            .await;
        client.output_until(&id, "\n").await;
        let target = json!({"processId": id});
        assert_eq!(
            client.call("process/terminate", target.clone()).await,
            json!({"running": true})
        );
        let exited = client.note("process/exited").await;
        assert_eq!(
            (&exited["exitCode"], &exited["cause"]),
            (&json!(137), &json!("terminated"))
        );
        client.note("process/closed").await;
        assert_eq!(
            client.call("process/terminate", target).await,
            json!({"running": false})
        );
    }
    let unknown = json!({"processId": "zz"});
    assert_eq!(
        client.call("process/terminate", unknown).await,
        json!({"running": false})
    );
}

async fn terminate_delivers_output_already_written(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let flag = server.path("written");
    let script = format!(
        "head -c 50000 /dev/zero; (setsid sleep 1000 &); touch {}; exec sleep 1000",
        flag.display()
    );
    client.start("p", &script).await;
    until("the child has written", || flag.exists()).await;
    let started_at = Instant::now();
    client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    let events = client.finish("p").await;
    assert_eq!(events.stdout().len(), 50_000);
    assert!(
        started_at.elapsed() < Duration::from_secs(2),
        "escaped descendant delays the close"
    );
}

async fn graceful_termination_lets_a_trap_run(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let script = "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.02; done";
    client.start("p", script).await;
    client.output_until("p", "up\n").await;
    let mode = json!({"type": "graceful", "timeoutMs": 9000});
    let answer = client
        .call("process/terminate", json!({"processId": "p", "mode": mode}))
        .await;
    assert_eq!(answer, json!({"running": true}));
    assert_eq!(client.output_until("p", "\n").await, "bye\n");
    let exited = client.note("process/exited").await;
    assert_eq!(
        (&exited["exitCode"], &exited["cause"]),
        (&json!(7), &json!("terminated"))
    );
}

async fn graceful_termination_kills_after_the_grace_period(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client
        .start("p", "trap '' TERM; echo up; while :; do sleep 0.05; done")
        .await;
    client.output_until("p", "up\n").await;
    let mode = json!({"type": "graceful", "timeoutMs": 100});
    client
        .call("process/terminate", json!({"processId": "p", "mode": mode}))
        .await;
    assert_eq!(client.note("process/exited").await["exitCode"], 137);
}

async fn every_signal_reaches_the_process_group(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (name, number) in [
        ("interrupt", 2),
        ("terminate", 15),
        ("kill", 9),
        ("hangup", 1),
        ("quit", 3),
        ("user1", 10),
        ("user2", 12),
    ] {
        client.start(name, "sleep 1000 & echo up; wait").await;
        client.output_until(name, "up\n").await;
        let params = json!({"processId": name, "signal": name});
        assert_eq!(client.call("process/signal", params).await, json!({}));
        let exited = client.note("process/exited").await;
        assert_eq!(
            (&exited["exitCode"], &exited["cause"]),
            (&json!(128 + number), &json!("signal"))
        );
        // It closes only if the background sleep got the signal as well, or closed its output.
        if name != "interrupt" && name != "quit" {
            client.note("process/closed").await;
        }
    }
    client.start("s", "echo up; sleep 0.2; echo on").await;
    client.output_until("s", "up\n").await;
    client
        .call(
            "process/signal",
            json!({"processId": "s", "signal": "stop"}),
        )
        .await;
    let wait = json!({"processId": "s", "timeoutMs": 500});
    assert_eq!(client.call("process/wait", wait).await["timedOut"], true);
    client
        .call(
            "process/signal",
            json!({"processId": "s", "signal": "continue"}),
        )
        .await;
    assert_eq!(client.output_until("s", "\n").await, "on\n");
}

async fn signals_to_an_exited_process_succeed(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    client.start("p", "true").await;
    client.finish("p").await;
    for id in ["p", "zz"] {
        let params = json!({"processId": id, "signal": "interrupt"});
        assert_eq!(client.call("process/signal", params).await, json!({}));
    }
}

async fn pending_start_can_be_cancelled_by_terminate(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for round in 0..20 {
        let id = format!("p{round}");
        let start = client
            .request("process/start", script_params(&id, "sleep 1000"))
            .await;
        let terminate = client
            .request("process/terminate", json!({"processId": id}))
            .await;
        let running = client.answer(terminate).await["result"]["running"].clone();
        assert_eq!(running, true, "a process that starts, or runs, is ended");
        let started = client.answer(start).await;
        if started.get("error").is_some() {
            assert_eq!(started["error"]["code"], -32600, "{started}");
        } else {
            assert_eq!(client.finish(&id).await.code(), 137);
        }
    }
}

async fn sigkill_of_the_server_kills_every_process(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    let mut watched = Vec::new();
    for (id, change) in [
        ("pipes", json!({})),
        ("stdin", json!({"pipeStdin": true})),
        ("tty", json!({"tty": true})),
        ("detached", json!({"detached": true})),
    ] {
        let pids = client
            .start_tree(with(script_params(id, TREE), change), TREE_SIZE)
            .await;
        watched.extend(pids.into_iter().map(WatchedProcess::new));
    }
    server.signal(Signal::KILL);
    for process in watched {
        process.death().await;
    }
    client.expect_closed().await;
    assert_eq!(server.ended().await.0.code(), None);
}

async fn terminate_kills_the_whole_tree(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.ready().await;
    for (id, tty) in [("p", false), ("t", true)] {
        let params = with(script_params(id, TREE), json!({"tty": tty}));
        let pids = client.start_tree(params, TREE_SIZE).await;
        let watched: Vec<WatchedProcess> = pids.into_iter().map(WatchedProcess::new).collect();
        client
            .call("process/terminate", json!({"processId": id}))
            .await;
        for process in watched {
            process.death().await;
        }
        client.note("process/closed").await;
    }
}

async fn descendants_of_an_exited_process_live_until_the_session_ends(transport: Transport) {
    let mut server = Server::start(transport, &["--session-ttl", "0"]).await;
    let mut client = server.ready().await;
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!; exit 0";
    let pid = client.start_tree(script_params("p", script), 1).await[0];
    let daemon = WatchedProcess::new(pid);
    client.note("process/closed").await;
    // Terminate does not signal an exited process or its descendants.
    let terminated = client
        .call("process/terminate", json!({"processId": "p"}))
        .await;
    assert_eq!(terminated, json!({"running": false}));
    client.start("q", "true").await;
    client.finish("q").await;
    assert!(daemon.is_alive());
    drop(client);
    daemon.death().await;
}
