//! Tests of upgrades of this machine's own server.

use std::fs;

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
