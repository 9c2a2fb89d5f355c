//! Tests of the listeners that a new server takes over.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use rustix::process::{PidfdFlags, pidfd_open};
use tokio::process::Command;

use super::{UpgradableServer, copy_of_product, ended, script, upgraded_pid};
use crate::{
    telemetry::http_client::Samples,
    test_user::{OutputSoon, TestUser, within_timeout},
};

/// Upgrades twice with these flags of the client, and runs a command after each.
async fn upgrades_twice(user: &TestUser, server: &mut UpgradableServer, flags: &[&str]) {
    for name in ["one", "two"] {
        let earlier = pidfd_open(server.pid, PidfdFlags::empty()).unwrap();
        let program = copy_of_product(user, name);
        let arguments = [flags, &["--to", program.to_str().unwrap()]].concat();
        let upgraded = server.try_upgrade(user, &arguments).await;
        server.pid = upgraded_pid(&upgraded.expect_success());
        ended(earlier).await;
        let mut run = user.command(["run", "-E", &server.url]);
        let ran = run
            .args(flags)
            .args(["--", "echo", "hello"])
            .output_soon()
            .await;
        assert_eq!(ran.expect_success(), "hello\n");
    }
}

#[tokio::test]
async fn unix_socket_and_its_lock_survive_upgrades() {
    let user = TestUser::new();
    let socket = user.home().join("own.sock");
    let url = format!("unix://{}", socket.display());
    let mut server = UpgradableServer::listening(&user, &url, &["--durable", "all"]).await;
    let lock = exec_server_lock(&socket);
    let files = || [&socket, &lock].map(|path| fs::symlink_metadata(path).unwrap().ino());
    let before = files();
    upgrades_twice(&user, &mut server, &[]).await;
    assert_eq!(files(), before);
    // The lock is still held.
    let mut second = user.command(["--listen", &url]);
    let second = second.output_soon().await;
    assert_eq!(second.status, Some(1), "{second:?}");
    assert!(second.stderr.contains("another server"), "{second:?}");
    // The last server removes its files.
    let last = pidfd_open(server.pid, PidfdFlags::empty()).unwrap();
    rustix::process::kill_process(server.pid, rustix::process::Signal::TERM).unwrap();
    ended(last).await;
    assert!(!socket.exists() && !lock.exists());
}

/// Returns the only other file beside a socket whose name starts like it.
fn exec_server_lock(socket: &Path) -> std::path::PathBuf {
    let name = socket.file_name().unwrap().to_str().unwrap();
    let entries = fs::read_dir(socket.parent().unwrap()).unwrap();
    let mut beside = entries.map(|entry| entry.unwrap().path()).filter(|path| {
        let other = path.file_name().unwrap().to_str().unwrap();
        path != socket && other.contains(name.trim_end_matches(".sock"))
    });
    beside.next().unwrap()
}

#[tokio::test]
async fn token_authentication_survives_upgrades() {
    let user = TestUser::new();
    let token = user.keep("token", "a-token-that-is-long-enough-0123456789");
    let token = token.to_str().unwrap();
    let flags = [
        "--durable",
        "all",
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        token,
    ];
    let mut server = UpgradableServer::listening(&user, "ws://127.0.0.1:0", &flags).await;
    upgrades_twice(&user, &mut server, &["--token-file", token]).await;
    let refused = user.run(["run", "-E", &server.url, "--", "true"]).await;
    assert_eq!(refused.status, Some(77), "{refused:?}");
}

#[tokio::test]
async fn tls_listener_survives_upgrades() {
    let user = TestUser::new();
    let (cert, key) = (user.home().join("cert.pem"), user.home().join("key.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]);
    openssl.args(["-nodes", "-days", "2", "-subj", "/CN=test"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&cert);
    let made = openssl.output_soon().await;
    assert_eq!(made.status, Some(0), "{made:?}");
    let token = user.keep("token", "a-token-that-is-long-enough-0123456789");
    let user = user.with("SSL_CERT_FILE", cert.to_str().unwrap());
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let token = token.to_str().unwrap();
    let flags = [
        "--durable",
        "all",
        "--tls-cert",
        cert,
        "--tls-key",
        key,
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        token,
    ];
    let mut server = UpgradableServer::listening(&user, "wss://127.0.0.1:0", &flags).await;
    upgrades_twice(&user, &mut server, &["--token-file", token]).await;
}

#[tokio::test]
async fn metrics_port_passes_to_the_new_server_or_back() {
    let user = TestUser::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let address = port.to_string();
    let flags = ["--durable", "all", "--metrics-listen", &address];
    let mut server = UpgradableServer::listening(&user, "ws://127.0.0.1:0", &flags).await;
    let has_metrics = async || {
        let samples = within_timeout(Samples::of(&address)).await;
        assert!(samples.value("exec_server_requests_in_flight") >= 0.0);
    };
    has_metrics().await;
    server
        .upgrade_to(&user, &copy_of_product(&user, "new"))
        .await;
    has_metrics().await;
    let text = "#!/usr/bin/env python3\n\
        import socket\n\
        s = socket.socket(fileno=0)\n\
        s.send(b'ready 1 9.9.9')\n\
        s.recvmsg(4096, 1024)\n\
        s.send(b'failed for a reason')\n";
    let failing = script(&user, "failing", text);
    let failed = server
        .try_upgrade(&user, &["--to", failing.to_str().unwrap()])
        .await;
    failed.failed(1, &["the old server goes on", "for a reason"]);
    has_metrics().await;
    // A port that another program takes meanwhile costs the metrics, not the server.
    let taking = script(
        &user,
        "taking",
        &format!(
            "#!/usr/bin/env python3\n\
             import os, socket, time\n\
             s = socket.socket(fileno=0)\n\
             s.send(b'ready 1 9.9.9')\n\
             s.recvmsg(4096, 1024)\n\
             p = socket.create_server(('127.0.0.1', {}))\n\
             if os.fork() == 0:\n\
             \x20   os.close(0); s.detach()\n\
             \x20   open('taken', 'w').write(str(os.getpid()))\n\
             \x20   time.sleep(30)\n\
             while not os.path.exists('taken'): time.sleep(0.01)\n",
            port.port()
        ),
    );
    let failed = server
        .try_upgrade(&user, &["--to", taking.to_str().unwrap()])
        .await;
    failed.failed(1, &["the old server goes on"]);
    let ran = user
        .run(["run", "-E", &server.url, "--", "echo", "hello"])
        .await;
    assert_eq!(ran.expect_success(), "hello\n");
    let taker = fs::read_to_string(user.work().join("taken")).unwrap();
    let taker = rustix::process::Pid::from_raw(taker.parse().unwrap()).unwrap();
    rustix::process::kill_process(taker, rustix::process::Signal::KILL).unwrap();
}
