//! Tests of `use`: the environment of a directory.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::test_user::{CommandResult, OutputSoon, TestUser};

/// Runs the program in a directory.
async fn run_in(user: &TestUser, directory: &Path, arguments: &[&str]) -> CommandResult {
    let mut command = user.command(arguments);
    command.current_dir(directory).output_soon().await
}

#[tokio::test]
async fn commands_below_a_directory_work_in_its_environment() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let add = ["env", "add", "box", &server.url];
    user.run(add).await.expect_success();
    let below = user.work().join("src/deep");
    fs::create_dir_all(&below).unwrap();
    assert_eq!(
        user.run(["use"]).await.expect_success(),
        "local (the default)\n"
    );
    let directory = fs::canonicalize(user.work()).unwrap();
    assert_eq!(
        user.run(["use", "box"]).await.expect_success(),
        format!("box is the environment of {}\n", directory.display())
    );

    // The server of this machine is not even started.
    let command = ["run", "--", "sh", "-c", "echo $PPID"];
    let there = run_in(&user, &below, &command).await.expect_success();
    assert!(!there.is_empty());
    let listed = run_in(&user, &below, &["ls", "--", "/"]).await;
    listed.expect_success();
    assert_eq!(user.local_server(), None);
    let file = directory.join(".exec-server/env");
    assert_eq!(
        run_in(&user, &below, &["use"]).await.expect_success(),
        format!("box ({})\n", file.display())
    );
    let listed = run_in(&user, &below, &["env", "list", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed.expect_success()).unwrap();
    let row = json!({
        "name": "box", "kind": "url", "place": server.url, "default": false,
        "directory": directory,
    });
    assert_eq!(listed[1], row, "{listed}");
    let table = user.run(["env", "list"]).await.expect_success();
    let row = table.lines().find(|line| line.starts_with("box"));
    assert!(row.unwrap().ends_with("this directory"), "{table}");

    // The flag and the variable take precedence.
    let flag = user.run(["run", "-E", "gone", "--", "true"]).await;
    flag.failed(78, &["unknown environment `gone`"]);
    let mut variable = user.command(["run", "--", "true"]);
    let variable = variable.env("EXEC_SERVER_ENV", "gone").output_soon().await;
    variable.failed(78, &["unknown environment `gone`"]);
    let mut variable = user.command(["use"]);
    let variable = variable.env("EXEC_SERVER_ENV", "local").output_soon().await;
    assert_eq!(variable.expect_success(), "local (EXEC_SERVER_ENV)\n");

    // An environment that is gone is an error, not a reason to run elsewhere.
    user.run(["env", "remove", "box"]).await.expect_success();
    let gone = run_in(&user, &below, &["run", "--", "true"]).await;
    gone.failed(78, &[".exec-server/env", "unknown environment `box`"]);
    assert_eq!(user.local_server(), None);
    let unknown = user.run(["env", "list"]).await.expect_success();
    assert!(unknown.contains("unknown environment `box`"), "{unknown}");

    assert_eq!(
        run_in(&user, &below, &["use", "--clear"])
            .await
            .expect_success(),
        format!("removed {}\n", file.display())
    );
    assert!(!directory.join(".exec-server").exists());
    let cleared = run_in(&user, &below, &["use", "--clear"]).await;
    cleared.failed(66, &[".exec-server/env", "exec-server use NAME"]);
}

#[tokio::test]
async fn environment_of_a_checkout_is_ignored_until_the_user_allows_it() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let add = ["env", "add", "box", &server.url];
    user.run(add).await.expect_success();
    let file = user.work().join(".exec-server/env");
    fs::create_dir(file.parent().unwrap()).unwrap();
    let where_it_runs = async || {
        let copied = ["cp", "-r", ".exec-server", ":copied"];
        let result = user.run(copied).await;
        assert_eq!(result.status, Some(0), "{result:?}");
        match user.local_server() {
            Some(_) => {
                user.kill_local_server();
                ("local", result.stderr)
            }
            None => ("box", result.stderr),
        }
    };
    for (content, why) in [
        ("box\n", "not allowed"),
        ("# changed\nbox\n", "has changed"),
    ] {
        fs::write(&file, content).unwrap();
        let (place, stderr) = where_it_runs().await;
        assert_eq!(place, "local");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        for text in ["exec-server: ignoring", "`box`", why, "use --allow"] {
            assert!(stderr.contains(text), "{text:?} in {stderr}");
        }
        user.run(["use", "--allow"]).await.expect_success();
        assert_eq!(where_it_runs().await, ("box", String::new()));
    }
    user.run(["use", "--forget"]).await.expect_success();
    assert_eq!(where_it_runs().await.0, "local");

    // Nothing that is not an environment here can be allowed or set.
    fs::write(&file, "elsewhere\n").unwrap();
    let unknown = user.run(["use", "--allow"]).await;
    unknown.failed(78, &["unknown environment `elsewhere`", "env add"]);
    fs::write(&file, "one\ntwo\n").unwrap();
    let several = user.run(["use", "--allow"]).await;
    several.failed(1, &["one line", "exec-server use NAME"]);
    user.run(["use", "gone"])
        .await
        .failed(78, &["unknown environment `gone`"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\ntwo\n");
    assert_eq!(user.run(["use", "box", "--clear"]).await.status, Some(2));
}

#[tokio::test]
async fn sandboxed_command_cannot_allow_a_directory() {
    let user = TestUser::new();
    user.run(["use", "local"]).await.expect_success();
    // The home is writable, the settings in it are not.
    let script = "echo box > .exec-server/env; echo mine > home/new; \
                  echo forged > home/no-settings/allowed/forged";
    let base = fs::canonicalize(user.work()).unwrap();
    let home = user.home();
    let sandboxed = [
        "run",
        "--sandbox",
        "workspace-write",
        "--writable",
        home.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        &script.replace("home/", &format!("{}/", home.display())),
    ];
    let result = run_in(&user, &base, &sandboxed).await;
    assert_ne!(result.status, Some(0), "{result:?}");
    assert!(home.join("new").exists(), "{result:?}");
    assert!(!home.join("no-settings/allowed/forged").exists());
    let used = user.run(["use"]).await;
    assert!(used.stderr.contains("has changed"), "{used:?}");
}
