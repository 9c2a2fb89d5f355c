//! Tests of upgrades of this machine's own server.

use std::{fs, path::PathBuf, process::Stdio};

use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    processes::wait_until_gone,
    test_user::{OutputSoon, TestUser, product, within_timeout},
};

#[tokio::test]
async fn local_server_is_upgraded_to_the_file_that_replaced_its_own() {
    let user = TestUser::new();
    let program = user.home().join("exec-server");
    fs::copy(product(), &program).unwrap();
    let run = |arguments: &[&str]| user.program(&program, arguments);
    let script = "echo $$ > pid; exec sleep 1000";
    let mut detached = run(&[
        "run", "--detach", "--name", "kept", "--", "sh", "-c", script,
    ]);
    detached.output_soon().await.expect_success();
    let old = user.local_server().unwrap();
    let written = async {
        while !fs::read_to_string(user.work().join("pid")).is_ok_and(|pid| pid.ends_with('\n')) {
            tokio::task::yield_now().await;
        }
    };
    within_timeout(written).await;

    // As a package manager does it.
    let new = user.home().join("exec-server.new");
    fs::copy(product(), &new).unwrap();
    fs::rename(&new, &program).unwrap();
    let upgraded = run(&["upgrade"]).output_soon().await.expect_success();
    let pid = super::upgraded_pid(&upgraded);
    assert_ne!(pid, old);
    assert_eq!(user.local_server(), Some(pid));
    let image = fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).unwrap();
    assert_eq!(image, program);

    let pid = fs::read_to_string(user.work().join("pid")).unwrap();
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.trim())).unwrap();
    assert_eq!(name, "sleep\n");
    let listed = run(&["ps"]).output_soon().await.expect_success();
    assert!(listed.contains("kept"), "{listed}");
    run(&["kill", "kept"]).output_soon().await.expect_success();
    wait_until_gone(&user.work().join("pid"));
}

/// Version of [`earlier_program`].
const EARLIER: &str = "0.0.0";

/// Writes a copy of the program that has an earlier version, and returns its path.
async fn earlier_program(user: &TestUser) -> PathBuf {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        EARLIER.len(),
        version.len(),
        "choose one of the same length"
    );
    let path = user.home().join("earlier");
    fs::copy(product(), &path).unwrap();
    let script = "import pathlib, sys\n\
                  path, old, new = pathlib.Path(sys.argv[1]), *map(str.encode, sys.argv[2:])\n\
                  path.write_bytes(path.read_bytes().replace(old, new))";
    let mut python = user.program("python3".as_ref(), ["-c", script]);
    python.arg(&path).args([version, EARLIER]);
    python.output_soon().await.expect_success();
    path
}

#[tokio::test]
async fn idle_local_server_of_an_earlier_version_is_upgraded_by_the_next_command() {
    let user = TestUser::new();
    let earlier = earlier_program(&user).await;
    let version = user.program(&earlier, ["--version"]).output_soon().await;
    assert!(version.expect_success().contains(EARLIER));
    let detached = ["run", "--detach", "--name", "kept", "--", "sleep", "1000"];
    let mut detached = user.program(&earlier, detached);
    detached.output_soon().await.expect_success();
    let old = user.local_server().unwrap();
    let image = |pid: rustix::process::Pid| {
        fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).unwrap()
    };
    assert_eq!(image(old), earlier);

    let listed = user.command(["ps"]).output_soon().await;
    assert_eq!(listed.stderr, "");
    assert!(listed.expect_success().contains("kept"));
    let new = user.local_server().unwrap();
    assert_ne!(new, old);
    assert_eq!(image(new), product());
    user.command(["kill", "kept"])
        .output_soon()
        .await
        .expect_success();
    assert_eq!(user.local_server(), Some(new), "it is not upgraded again");
}

#[tokio::test]
async fn local_server_of_an_earlier_version_in_use_goes_on_with_a_notice() {
    let user = TestUser::new();
    let earlier = earlier_program(&user).await;
    let mut held = user.program(&earlier, ["run", "--", "sh", "-c", "echo up; cat"]);
    held.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut held = held.spawn().unwrap();
    let mut lines = BufReader::new(held.stdout.take().unwrap()).lines();
    let line = within_timeout(lines.next_line()).await.unwrap();
    assert_eq!(line.as_deref(), Some("up"));
    let old = user.local_server().unwrap();

    let ran = user
        .command(["run", "--", "echo", "works"])
        .output_soon()
        .await;
    assert_eq!(ran.stdout, "works\n");
    let notice = format!(
        "exec-server: the running server of this machine has version {EARLIER}, this program {}; \
         `exec-server upgrade --to {}` replaces it, and keeps sessions and durable processes\n",
        env!("CARGO_PKG_VERSION"),
        product().display()
    );
    assert_eq!(ran.stderr, notice);
    let bridged = user.command(["bridge"]).output_soon().await;
    assert_eq!(bridged.stderr, notice);
    assert_eq!(user.local_server(), Some(old));

    drop(held.stdin.take());
    assert!(within_timeout(held.wait()).await.unwrap().success());
    let bridged = user.command(["bridge"]).output_soon().await;
    assert_eq!(bridged.stderr, "");
    assert_ne!(user.local_server(), Some(old), "nobody uses it any more");
}
