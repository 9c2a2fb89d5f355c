//! Tests of the messages to a service manager.

use std::{os::unix::net::UnixDatagram, path::Path, time::Duration};

use tokio::task::spawn_blocking;

use super::{UpgradableServer, copy_of_product};
use crate::test_user::{OutputSoon, TIMEOUT, TestUser};

/// A socket that receives states, as systemd's does.
struct Manager(UnixDatagram);

impl Manager {
    fn listening(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(socket)
    }

    /// Returns the next state other than that of the watchdog, unless the latter is wanted.
    async fn next(&self, watchdog: bool) -> String {
        let socket = self.0.try_clone().unwrap();
        let received = spawn_blocking(move || {
            loop {
                let mut message = [0; 256];
                let length = socket.recv(&mut message).unwrap();
                let state = str::from_utf8(&message[..length]).unwrap().to_owned();
                if watchdog == (state == "WATCHDOG=1") {
                    return state;
                }
            }
        });
        received.await.unwrap()
    }
}

#[tokio::test]
async fn service_manager_learns_of_start_upgrade_watchdog_and_stop() {
    let user = TestUser::new();
    let path = user.home().join("notify");
    let manager = Manager::listening(&path);
    let mut command = user.command(["--listen", "ws://127.0.0.1:0", "--durable", "all"]);
    let period = Duration::from_millis(200);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", period.as_micros().to_string())
        .env("WATCHDOG_PID", "1");
    let mut server = UpgradableServer::of(&user, &mut command).await;
    assert_eq!(manager.next(false).await, "READY=1");
    assert_eq!(manager.next(true).await, "WATCHDOG=1");

    let script = "env | grep -c -e NOTIFY_SOCKET -e WATCHDOG";
    let line = ["run", "-E", &server.url, "--", "sh", "-c", script];
    let seen = user.run(line).await;
    assert_eq!(
        (seen.stdout.as_str(), seen.status),
        ("0\n", Some(1)),
        "{seen:?}"
    );

    server
        .upgrade_to(&user, &copy_of_product(&user, "new"))
        .await;
    // The new server and the old one are not ordered.
    let mut states = [manager.next(false).await, manager.next(false).await];
    states.sort();
    let pid = server.pid.as_raw_nonzero();
    assert_eq!(states, [format!("MAINPID={pid}"), "READY=1".to_owned()]);
    assert_eq!(manager.next(true).await, "WATCHDOG=1");
    let line = ["run", "-E", &server.url, "--", "sh", "-c", script];
    let seen = user.command(line).output_soon().await;
    assert_eq!(
        (seen.stdout.as_str(), seen.status),
        ("0\n", Some(1)),
        "{seen:?}"
    );

    rustix::process::kill_process(server.pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(manager.next(false).await, "STOPPING=1");
}
