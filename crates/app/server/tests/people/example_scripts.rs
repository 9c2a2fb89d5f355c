//! Tests of the scripts in `examples`.

use std::{fs, path::Path};

use crate::test_user::{CommandResult, OutputSoon, TestUser, product};

/// Runs a script of `examples` as the user would.
async fn example(user: &TestUser, name: &str) -> CommandResult {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples");
    let mut script = user.program(&examples.join(name), [user.work()]);
    script.env("EXEC_SERVER", product()).output_soon().await
}

#[tokio::test]
async fn one_server_serves_many_steps() {
    let user = TestUser::new();
    let printed = example(&user, "one-server-many-steps")
        .await
        .expect_success();
    let expected = "\
== prepare
== lint
lint: ok
== build
build: ok
== package
package: ok
tests: ok
== done
";
    assert_eq!(printed, expected);
    let artifact = fs::read_to_string(user.work().join("artifact")).unwrap();
    assert!(artifact.starts_with("PREPARED\nBUILT\n"), "{artifact}");
}

#[tokio::test]
async fn agent_and_user_share_an_environment() {
    let user = TestUser::new();
    let printed = example(&user, "shared-environment").await.expect_success();
    for text in ["1 test passed\n", "fn main() {}\n", "reviewed()"] {
        assert!(printed.contains(text), "{text:?} in {printed}");
    }
    let listed = printed.lines().find(|line| line.starts_with("tests"));
    assert!(listed.is_some(), "{printed}");
}

#[tokio::test]
async fn reconnected_laptop_shows_missed_output() {
    let user = TestUser::new();
    let ended = example(&user, "sleeping-laptop").await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let followed: Vec<&str> = lines
        .iter()
        .filter(|line| line.contains(": line "))
        .copied()
        .collect();
    let expected = [
        "before: line 1",
        "before: line 2",
        "before: line 3",
        "after: line 4",
        "after: line 5",
        "after: line 6",
    ];
    assert_eq!(followed, expected, "{ended:?}");
}
