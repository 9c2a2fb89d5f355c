//! Tests of upgrades that fail: the old server goes on as if nothing had happened.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use exec_server::{
    BackpressureMode, ExecProcess, ExecProcessEvent, ExecServerClient, FollowFrom, FollowOptions,
    StartedProcess, protocol::server::ReadServerStatus,
};
use futures_util::StreamExt;

use super::{BEFORE_FIRST, UpgradableServer, copy_of_product, script, start};
use crate::test_user::{Hub, OutputSoon, TestUser, product, within_timeout};

/// A durable `cat` and the session that it belongs to.
struct Witness {
    client: ExecServerClient,
    cat: StartedProcess,
}

impl Witness {
    async fn of(server: &UpgradableServer) -> Self {
        let client = server.connect().await;
        let cat = start(&client, "cat", &["cat"]).await;
        let witness = Self { client, cat };
        witness.sees_that_all_goes_on(server).await;
        witness
    }

    /// Asserts that the same server has the same session, process and children, and accepts
    /// connections.
    async fn sees_that_all_goes_on(&self, server: &UpgradableServer) {
        echoes(&self.cat.process).await;
        let status = within_timeout(self.client.call(ReadServerStatus {}))
            .await
            .unwrap();
        let pid = server.pid.as_raw_nonzero().get();
        assert_eq!(i64::from(status.os_pid), i64::from(pid));
        assert_eq!(i64::from(server.status().await.os_pid), i64::from(pid));
    }
}

/// Asserts that `cat` returns what it is sent.
async fn echoes(process: &Arc<dyn ExecProcess>) {
    let mut events = process.follow(FollowOptions {
        start: FollowFrom::Now,
        backpressure: BackpressureMode::Pause,
    });
    within_timeout(process.write(None, "echo\n".into()))
        .await
        .unwrap();
    match within_timeout(events.next()).await.unwrap() {
        ExecProcessEvent::Output(chunk) => assert_eq!(&*chunk.data, b"echo\n"),
        other @ (ExecProcessEvent::Exited(..)
        | ExecProcessEvent::Closed(_)
        | ExecProcessEvent::Failed(_)) => panic!("{other:?}"),
    }
}

/// Returns an executable of another architecture.
fn foreign_program(user: &TestUser) -> PathBuf {
    let mut image = fs::read(product()).unwrap();
    image.truncate(4096);
    // The machine of the ELF header: none that exists.
    image[18..20].copy_from_slice(&[0xfe, 0xca]);
    let path = user.home().join("foreign");
    fs::write(&path, image).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[tokio::test]
async fn program_that_does_not_become_ready_leaves_the_old_server_in_charge() {
    let user = TestUser::new();
    let server = UpgradableServer::start(&user).await;
    let witness = Witness::of(&server).await;
    let not_executable = user.keep("not-executable", "");
    let directory = user.work();
    let other_program = script(&user, "other", "#!/bin/sh\nexit 3\n");
    let hangs = script(&user, "hangs", "#!/bin/sh\nexec sleep 1000\n");
    let wrong_flags = script(
        &user,
        "wrong",
        "#!/bin/sh\nexec \"$0-binary\" --no-such-flag\n",
    );
    fs::hard_link(product(), user.home().join("wrong-binary")).ok();
    for (program, says) in [
        (Path::new("/nonexistent/program"), "No such file"),
        (&not_executable, "Permission denied"),
        (&directory, "Permission denied"),
        (&foreign_program(&user), "Exec format error"),
        (&other_program, "exit status: 3"),
        (&wrong_flags, "exit status: "),
        (&hangs, "ready in 10s"),
    ] {
        let upgraded = server
            .try_upgrade(&user, &["--to", program.to_str().unwrap()])
            .await;
        upgraded.failed(1, &[program.to_str().unwrap(), says]);
        witness.sees_that_all_goes_on(&server).await;
        server.has_no_other_child().await;
    }
    let relative = server
        .try_upgrade(&user, &["--to", "new/exec-server"])
        .await;
    relative.failed(1, &["absolute path"]);
}

#[tokio::test]
async fn client_that_leaves_during_an_upgrade_leaves_no_program_behind() {
    let user = TestUser::new();
    let server = UpgradableServer::start(&user).await;
    let witness = Witness::of(&server).await;
    let started = user.work().join("started");
    let text = format!(
        "#!/bin/sh\necho $$ > {0}.new; mv {0}.new {0}; exec sleep 1000\n",
        started.display()
    );
    let hangs = script(&user, "hangs", &text);
    let mut upgrade = user.command(["upgrade", "-E", &server.url, "--to"]);
    let mut upgrade = upgrade.arg(&hangs).spawn().unwrap();
    let begun = async {
        while !started.exists() {
            tokio::task::yield_now().await;
        }
    };
    within_timeout(begun).await;
    // Another one has to wait for it.
    let other = server
        .try_upgrade(&user, &["--to", product().to_str().unwrap()])
        .await;
    other.failed(1, &["another upgrade is in progress"]);
    within_timeout(upgrade.kill()).await.unwrap();
    server.has_no_other_child().await;
    crate::processes::wait_until_gone(&started);
    witness.sees_that_all_goes_on(&server).await;
}

#[tokio::test]
async fn new_server_that_dies_before_it_serves_leaves_the_old_one_in_charge() {
    let user = TestUser::new();
    let mut server = UpgradableServer::start(&user).await;
    let witness = Witness::of(&server).await;
    // It stops at its first write into the state directory, as it adopts the processes there.
    let crashing = crashing_program(&user);
    for _ in 0..3 {
        let upgraded = server
            .try_upgrade(&user, &["--to", crashing.to_str().unwrap()])
            .await;
        upgraded.failed(1, &["the old server goes on", "signal: 9"]);
        witness.sees_that_all_goes_on(&server).await;
        server.has_no_other_child().await;
    }
    // The failure does not prevent a later upgrade, nor is it reported again.
    server
        .upgrade_to(&user, &copy_of_product(&user, "new"))
        .await;
    witness.sees_that_all_goes_on(&server).await;
}

/// Returns a wrapper that runs the binary under test and kills it once it holds the state lock.
fn crashing_program(user: &TestUser) -> PathBuf {
    // Says ready, receives the descriptors, and dies with them.
    let text = "#!/usr/bin/env python3\n\
        import os, signal, socket\n\
        s = socket.socket(fileno=0)\n\
        s.send(b'ready 1 9.9.9')\n\
        s.recvmsg(4096, 1024)\n\
        os.kill(os.getpid(), signal.SIGKILL)\n";
    script(user, "crashing", text)
}

#[tokio::test]
async fn new_server_that_cannot_serve_says_why() {
    let user = TestUser::new();
    let mut server = UpgradableServer::start(&user).await;
    let witness = Witness::of(&server).await;
    // A state that a newer server has written.
    let schema = server.state.join("schema");
    let known = fs::read(&schema).unwrap();
    fs::write(&schema, "2\n").unwrap();
    let program = copy_of_product(&user, "new");
    let upgraded = server
        .try_upgrade(&user, &["--to", program.to_str().unwrap()])
        .await;
    upgraded.failed(1, &["cannot upgrade", "has format 2", "up to 1"]);
    fs::write(&schema, known).unwrap();
    witness.sees_that_all_goes_on(&server).await;
    server.has_no_other_child().await;
    server.upgrade_to(&user, &program).await;
    witness.sees_that_all_goes_on(&server).await;
}

#[tokio::test]
async fn new_server_that_fails_after_the_handover_returns_everything() {
    let user = TestUser::new();
    let url = format!("unix://{}", user.home().join("own.sock").display());
    let mut server = UpgradableServer::listening(&user, &url, &["--durable", "all"]).await;
    let witness = Witness::of(&server).await;
    // It binds the port after it has received listener and locks.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "#!/bin/sh\nexec {} \"$@\" --metrics-listen {}\n",
        product().display(),
        taken.local_addr().unwrap()
    );
    let failing = script(&user, "failing", &text);
    for _ in 0..3 {
        let upgraded = server
            .try_upgrade(&user, &["--to", failing.to_str().unwrap()])
            .await;
        upgraded.failed(1, &["the old server goes on", "cannot listen on"]);
        witness.sees_that_all_goes_on(&server).await;
        server.has_no_other_child().await;
    }
    drop(taken);
    server
        .upgrade_to(&user, &copy_of_product(&user, "new"))
        .await;
    witness.sees_that_all_goes_on(&server).await;
}

#[tokio::test]
async fn ordinary_processes_prevent_an_upgrade_unless_forced() {
    let user = TestUser::new();
    let mut server =
        UpgradableServer::listening(&user, "ws://127.0.0.1:0", &["--durable", "off"]).await;
    let client = server.connect().await;
    let cat = start(&client, "my-cat", &["cat"]).await;
    let program = copy_of_product(&user, "new");
    let program = program.to_str().unwrap();
    let refused = server.try_upgrade(&user, &["--to", program]).await;
    refused.failed(1, &["1 processes are not durable", "my-cat", "--force"]);
    echoes(&cat.process).await;
    // A program that cannot take over ends nothing.
    let failed = server
        .try_upgrade(&user, &["--to", "/nonexistent", "--force"])
        .await;
    failed.failed(1, &["No such file"]);
    echoes(&cat.process).await;
    let forced = server
        .try_upgrade(&user, &["--to", program, "--force"])
        .await;
    server.pid = super::upgraded_pid(&forced.expect_success());
    let mut events = cat.process.follow(FollowOptions {
        start: FollowFrom::After(BEFORE_FIRST),
        backpressure: BackpressureMode::Pause,
    });
    let lost = async {
        loop {
            match events.next().await {
                Some(ExecProcessEvent::Failed(error)) => return error.to_string(),
                Some(_) => {}
                None => panic!("the process has not failed"),
            }
        }
    };
    within_timeout(lost).await;
}

#[tokio::test]
async fn servers_that_cannot_be_replaced_say_why() {
    let user = TestUser::new();
    let without_state = user.server(&[]).await;
    let upgrade = ["upgrade", "-E", &without_state.url];
    user.run(upgrade)
        .await
        .failed(1, &["no state directory", "--state-dir"]);

    let mut hub = Hub::start(&user).await;
    let _executor = hub.executor(&user, "box");
    let token = hub.token_file.to_str().unwrap();
    let add = [
        "env",
        "add",
        "box",
        "--hub",
        &hub.server.url,
        "--token-file",
        token,
    ];
    user.run(add).await.expect_success();
    user.run(["run", "-E", "box", "--", "true"])
        .await
        .expect_success();
    user.run(["upgrade", "-E", "box"])
        .await
        .failed(1, &["hub", "restart"]);
    hub.server.kill().await;

    let mut takeover = user.command(["--takeover", "--listen", "ws://127.0.0.1:0"]);
    let alone = takeover.output_soon().await;
    assert_eq!(alone.status, Some(1), "{alone:?}");
}
