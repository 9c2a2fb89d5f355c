//! Tests of `env`: entries are written, listed and checked.

use serde_json::{Value, json};

use crate::test_user::{Hub, TestUser, within_timeout};

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn environment_is_added_listed_checked_used_and_removed() {
    let user = TestUser::new();
    let token = user.keep("token", "s3cret-token");
    let flags = [
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        token.to_str().unwrap(),
    ];
    let server = user.server(&flags).await;
    let path = user.environments();
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "# my machines\ninclude_local = true # yes\n").unwrap();
    let mut add = user.command(["env", "add", "devbox", &server.url]);
    // The path is relative to the working directory, not to the file.
    let add = add.args(["--token-file", "../home/token", "--default"]);
    let added = crate::test_user::OutputSoon::output_soon(add).await;
    assert_eq!(added.expect_success(), "");
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(
        file.contains("# my machines\ninclude_local = true # yes\n"),
        "{file}"
    );
    assert!(!file.contains("s3cret"), "{file}");

    let listed = parsed(&user.run(["env", "list", "--json"]).await.expect_success());
    let local = format!("unix://{}", user.socket().display());
    let expected = json!([
        { "name": "local", "kind": "local", "place": local, "default": false },
        { "name": "devbox", "kind": "url", "place": server.url, "default": true },
    ]);
    assert_eq!(listed, expected);
    let table = user.run(["env", "list"]).await.expect_success();
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.starts_with("NAME"), "{table}");

    let status = parsed(&user.run(["env", "status", "--json"]).await.expect_success());
    assert_eq!(status.as_array().unwrap().len(), 2, "{status}");
    for one in status.as_array().unwrap() {
        assert_eq!(one["reachable"], true, "{status}");
        assert_eq!(one["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(one["os"], "linux");
        assert!(one["roundTripMicros"].as_u64().unwrap() > 0);
    }
    assert_eq!(status[1]["cwd"], user.work().to_str().unwrap());
    let output = user
        .run(["run", "--", "echo", "there"])
        .await
        .expect_success();
    assert_eq!(output, "there\n");

    let twice = user.run(["env", "add", "devbox", "ws://h"]).await;
    twice.failed(1, &["devbox", "env remove devbox"]);
    let default = user.run(["env", "remove", "devbox"]).await;
    default.failed(1, &["default", "env default local"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), file);
    user.run(["env", "default", "local"]).await.expect_success();
    user.run(["env", "remove", "devbox"]).await.expect_success();
    let remaining = std::fs::read_to_string(&path).unwrap();
    let expected = "default = \"local\"\n# my machines\ninclude_local = true # yes\n";
    assert_eq!(remaining.trim_end(), expected.trim_end());
    let missing = user.run(["env", "status", "devbox"]).await;
    missing.failed(78, &["devbox", "env list"]);
}

#[tokio::test]
async fn env_status_reports_unreachable_environments() {
    let user = TestUser::new();
    user.run(["env", "add", "gone", "ws://127.0.0.1:1"])
        .await
        .expect_success();
    let ended = user.run(["env", "status", "--json"]).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (Some(69), ""));
    let status = parsed(&ended.stdout);
    assert_eq!(status[0]["reachable"], true, "{status}");
    assert_eq!(status[1]["reachable"], false, "{status}");
    let error = status[1]["error"].as_str().unwrap();
    assert!(error.contains("exec-server --listen"), "{error}");
    let table = user.run(["env", "status", "gone"]).await;
    assert_eq!(table.status, Some(69));
    assert!(table.stdout.contains("cannot reach `gone`"), "{table:?}");
}

#[tokio::test]
async fn invalid_entries_are_not_written() {
    let user = TestUser::new();
    let path = user.environments();
    for (line, status, says) in [
        (&["env", "add", "a b", "ws://h"][..], 2, "letters"),
        (&["env", "add", "local", "ws://h"], 2, "reserved"),
        (&["env", "add", "x", "http://h"], 2, "ws://HOST:PORT"),
        (
            &["env", "add", "x", "ws://h", "--token-env", "HOME"],
            2,
            "wss://",
        ),
        (
            &["env", "add", "x", "ws://127.0.0.1", "--token-file", "none"],
            2,
            "none",
        ),
        (&["env", "add", "x", "--hub", "http://h"], 2, "--token-file"),
        (&["env", "default", "x"], 78, "no environment has the id"),
        (&["env", "remove", "x"], 78, "no environment `x`"),
    ] {
        let ended = user.run(line).await;
        ended.failed(status, &[says]);
        assert!(!path.exists(), "{line:?}");
    }
    for line in [
        &["env", "add", "x"][..],
        &["env", "add", "x", "ws://h", "--hub", "http://h"],
    ] {
        assert_eq!(user.run(line).await.status, Some(2), "{line:?}");
    }
    // An inline table cannot be extended, and stays unchanged.
    let text = "environments = [{ id = 'a', url = 'ws://h' }]\n";
    std::fs::write(&path, text).unwrap();
    let ended = user.run(["env", "add", "x", "ws://h"]).await;
    assert_eq!(ended.status, Some(78), "{ended:?}");
    let ended = user.run(["env", "remove", "a"]).await;
    ended.failed(1, &["by hand"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn concurrent_additions_are_both_kept() {
    let user = TestUser::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    let add = |name| user.run(["env", "add", name, "ws://127.0.0.1:1"]);
    let added = futures_util::future::join_all(names.map(add)).await;
    for ended in added {
        ended.expect_success();
    }
    let listed = parsed(&user.run(["env", "list", "--json"]).await.expect_success());
    assert_eq!(
        listed.as_array().unwrap().len(),
        1 + names.len(),
        "{listed}"
    );
}

#[tokio::test]
async fn environment_by_command_works() {
    let user = TestUser::new();
    let program = crate::test_user::product().to_str().unwrap();
    let line = [
        "env",
        "add",
        "near",
        "--command",
        program,
        "--listen",
        "stdio",
    ];
    user.run(line).await.expect_success();
    let output = user.run(["run", "-E", "near", "--", "echo", "near"]).await;
    assert_eq!(output.expect_success(), "near\n");
    user.run(["env", "add", "broken", "--command", "/no/such/program"])
        .await
        .expect_success();
    let ended = user.run(["run", "-E", "broken", "--", "true"]).await;
    ended.failed(69, &["/no/such/program", "environments.toml"]);
}

#[tokio::test]
async fn environment_behind_a_hub_works() {
    let user = TestUser::new();
    let hub = Hub::start(&user).await;
    let _executor = hub.executor(&user, "far-box");
    let token = hub.token_file.to_str().unwrap();
    let add = [
        "env",
        "add",
        "box",
        "--hub",
        &hub.server.url,
        "--environment-id",
        "far-box",
        "--token-file",
        token,
    ];
    user.run(add).await.expect_success();
    let status = within_timeout(user.run(["env", "status", "box", "--json"]))
        .await
        .expect_success();
    let status = parsed(&status);
    assert_eq!(status[0]["reachable"], true, "{status}");
    assert_eq!(status[0]["cwd"], user.work().to_str().unwrap());
    let output = user
        .run(["run", "-E", "box", "--", "echo", "far"])
        .await
        .expect_success();
    assert_eq!(output, "far\n");
}

/// Keys of an `[[environments]]` table that stock releases 0.166 and 0.169 accept.
const STOCK_KEYS: [&str; 10] = [
    "id",
    "skills",
    "url",
    "auth_bearer_token",
    "program",
    "args",
    "env",
    "cwd",
    "connect_timeout_sec",
    "initialize_timeout_sec",
];

#[tokio::test]
async fn codex_file_stays_valid_after_every_form_of_add() {
    let user = TestUser::new().with("TOKEN", "t0ken");
    let token = user.keep("token", "t0ken");
    let token = token.to_str().unwrap();
    let codex = user.codex().join("environments.toml");
    let text = "[[environments]]\nid = \"theirs\"\nurl = \"ws://127.0.0.1:1\"\n";
    for before in [None, Some(text)] {
        if let Some(text) = before {
            std::fs::write(&codex, text).unwrap();
        }
        for form in [
            &["ws://127.0.0.1:1"][..],
            &["ws://127.0.0.1:1", "--token-file", token],
            &["ws://127.0.0.1:1", "--token-env", "TOKEN", "--default"],
            &["--hub", "http://127.0.0.1:1", "--token-file", token],
            &["--hub", "http://127.0.0.1:1", "--token-env", "TOKEN"],
            &["--command", "ssh", "box", "exec-server --listen stdio"],
        ] {
            let mut line = vec!["env", "add", "box"];
            line.extend(form);
            user.run(&line).await.expect_success();
            let stock = std::fs::read_to_string(&codex).unwrap_or_default();
            let parsed: toml::Table = stock.parse().unwrap();
            let tables = parsed.get("environments").and_then(|all| all.as_array());
            for table in tables.into_iter().flatten() {
                let table = table.as_table().unwrap();
                let unknown = table.keys().find(|key| !STOCK_KEYS.contains(&key.as_str()));
                assert_eq!(unknown, None, "{form:?}: {stock}");
            }
            assert_eq!(stock, before.unwrap_or_default(), "{form:?}");
            user.run(["env", "default", "local"]).await.expect_success();
            user.run(["env", "rm", "box"]).await.expect_success();
        }
    }
}

#[tokio::test]
async fn codex_environments_are_listed_after_ours_and_unchanged() {
    let user = TestUser::new();
    let codex = user.codex().join("environments.toml");
    let text = "default = \"theirs\"\n[[environments]]\nid = \"theirs\"\nurl = \"ws://127.0.0.1:1\"\n\
                [[environments]]\nid = \"both\"\nurl = \"ws://127.0.0.1:1\"\n";
    std::fs::write(&codex, text).unwrap();
    user.run(["env", "add", "mine", "ws://127.0.0.1:2"])
        .await
        .expect_success();
    let hiding = user.run(["env", "add", "both", "ws://127.0.0.1:3"]).await;
    assert!(hiding.stderr.contains("overrides `both`"), "{hiding:?}");
    let listed = async || {
        let listed = parsed(&user.run(["env", "list", "--json"]).await.expect_success());
        let row = |row: &Value| format!("{} {} {}", row["name"], row["place"], row["default"]);
        listed.as_array().unwrap()[1..]
            .iter()
            .map(row)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        listed().await,
        [
            r#""mine" "ws://127.0.0.1:2" false"#,
            r#""both" "ws://127.0.0.1:3" false"#,
            r#""theirs" "ws://127.0.0.1:1" true"#,
        ]
    );
    user.run(["env", "default", "mine"]).await.expect_success();
    user.run(["env", "default", "theirs"])
        .await
        .expect_success();
    let foreign = user.run(["env", "remove", "theirs"]).await;
    foreign.failed(1, &["`theirs`", "settings of Codex", "by hand"]);
    user.run(["env", "remove", "both"]).await.expect_success();
    assert_eq!(listed().await[2], r#""both" "ws://127.0.0.1:1" false"#);
    assert_eq!(std::fs::read_to_string(&codex).unwrap(), text);
}

#[tokio::test]
async fn foreign_keys_in_the_codex_file_are_reported_with_the_fix() {
    let user = TestUser::new();
    let token = user.keep("token", "t0ken");
    let codex = user.codex().join("environments.toml");
    let text = format!(
        "default = \"box\"\n[[environments]]\nid = \"box\"\nurl = \"ws://127.0.0.1:1\"\n\
         auth_token_file = \"{}\"\n",
        token.display()
    );
    std::fs::write(&codex, &text).unwrap();
    let own = user.environments();
    let (own, at) = (own.to_str().unwrap(), format!("{}:5", codex.display()));
    let says = [
        "warning: Codex refuses to start",
        "`auth_token_file`",
        &at,
        "`default`",
        "`box`",
        own,
    ];
    for line in [&["env", "list"][..], &["doctor"]] {
        let ended = user.run(line).await;
        for text in says {
            assert!(ended.stderr.contains(text), "{text:?} in {ended:?}");
        }
    }
    // It still works, and also in the file it is moved to.
    let listed = user.run(["env", "list"]).await;
    assert!(listed.stdout.contains("box"), "{listed:?}");
    std::fs::create_dir_all(user.environments().parent().unwrap()).unwrap();
    std::fs::rename(&codex, user.environments()).unwrap();
    let moved = user.run(["env", "list"]).await.expect_success();
    assert_eq!(moved, listed.stdout);
}
