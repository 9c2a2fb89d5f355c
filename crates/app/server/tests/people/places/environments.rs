//! `env`: what is written down is found again, and answers.

use serde_json::{Value, json};

use crate::cast::{Hub, Person, soon};

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn an_environment_is_added_listed_checked_used_and_removed() {
    let person = Person::new();
    let token = person.keep("token", "s3cret-token");
    let flags = [
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        token.to_str().unwrap(),
    ];
    let server = person.server(&flags).await;
    let path = person.environments();
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "# my machines\ninclude_local = true # yes\n").unwrap();
    let mut add = person.command(["env", "add", "devbox", &server.url]);
    // A path is the person's, not the file's.
    let add = add.args(["--token-file", "../home/token", "--default"]);
    let added = crate::cast::OutputSoon::output_soon(add).await;
    assert_eq!(added.well(), "");
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(
        file.contains("# my machines\ninclude_local = true # yes\n"),
        "{file}"
    );
    assert!(!file.contains("s3cret"), "{file}");

    let listed = parsed(&person.run(["env", "list", "--json"]).await.well());
    let local = format!("unix://{}", person.socket().display());
    let expected = json!([
        { "name": "local", "kind": "local", "place": local, "default": false },
        { "name": "devbox", "kind": "url", "place": server.url, "default": true },
    ]);
    assert_eq!(listed, expected);
    let table = person.run(["env", "list"]).await.well();
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.starts_with("NAME"), "{table}");

    let status = parsed(&person.run(["env", "status", "--json"]).await.well());
    assert_eq!(status.as_array().unwrap().len(), 2, "{status}");
    for one in status.as_array().unwrap() {
        assert_eq!(one["reachable"], true, "{status}");
        assert_eq!(one["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(one["os"], "linux");
        assert!(one["roundTripMicros"].as_u64().unwrap() > 0);
    }
    assert_eq!(status[1]["cwd"], person.work().to_str().unwrap());
    let said = person.run(["run", "--", "echo", "there"]).await.well();
    assert_eq!(said, "there\n");

    let twice = person.run(["env", "add", "devbox", "ws://h"]).await;
    twice.failed(1, &["devbox", "env remove devbox"]);
    let default = person.run(["env", "remove", "devbox"]).await;
    default.failed(1, &["default", "env default local"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), file);
    person.run(["env", "default", "local"]).await.well();
    person.run(["env", "remove", "devbox"]).await.well();
    let left = std::fs::read_to_string(&path).unwrap();
    let expected = "default = \"local\"\n# my machines\ninclude_local = true # yes\n";
    assert_eq!(left.trim_end(), expected.trim_end());
    let gone = person.run(["env", "status", "devbox"]).await;
    gone.failed(78, &["devbox", "env list"]);
}

#[tokio::test]
async fn a_status_tells_who_does_not_answer() {
    let person = Person::new();
    person
        .run(["env", "add", "gone", "ws://127.0.0.1:1"])
        .await
        .well();
    let ended = person.run(["env", "status", "--json"]).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (Some(69), ""));
    let status = parsed(&ended.stdout);
    assert_eq!(status[0]["reachable"], true, "{status}");
    assert_eq!(status[1]["reachable"], false, "{status}");
    let error = status[1]["error"].as_str().unwrap();
    assert!(error.contains("exec-server --listen"), "{error}");
    let table = person.run(["env", "status", "gone"]).await;
    assert_eq!(table.status, Some(69));
    assert!(table.stdout.contains("cannot reach `gone`"), "{table:?}");
}

#[tokio::test]
async fn what_makes_no_sense_is_not_written_down() {
    let person = Person::new();
    let path = person.environments();
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
        (&["env", "remove", "x"], 78, "unknown environment `x`"),
    ] {
        let ended = person.run(line).await;
        ended.failed(status, &[says]);
        assert!(!path.exists(), "{line:?}");
    }
    for line in [
        &["env", "add", "x"][..],
        &["env", "add", "x", "ws://h", "--hub", "http://h"],
    ] {
        assert_eq!(person.run(line).await.status, Some(2), "{line:?}");
    }
    // What cannot be added to by a line stays as it is.
    let text = "environments = [{ id = 'a', url = 'ws://h' }]\n";
    std::fs::write(&path, text).unwrap();
    let ended = person.run(["env", "add", "x", "ws://h"]).await;
    assert_eq!(ended.status, Some(78), "{ended:?}");
    let ended = person.run(["env", "remove", "a"]).await;
    ended.failed(1, &["by hand"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn two_who_add_at_once_both_are_in_the_file() {
    let person = Person::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    let add = |name| person.run(["env", "add", name, "ws://127.0.0.1:1"]);
    let added = futures_util::future::join_all(names.map(add)).await;
    for ended in added {
        ended.well();
    }
    let listed = parsed(&person.run(["env", "list", "--json"]).await.well());
    assert_eq!(
        listed.as_array().unwrap().len(),
        1 + names.len(),
        "{listed}"
    );
}

#[tokio::test]
async fn a_command_leads_to_an_environment() {
    let person = Person::new();
    let program = crate::cast::product().to_str().unwrap();
    let line = [
        "env",
        "add",
        "near",
        "--command",
        program,
        "--listen",
        "stdio",
    ];
    person.run(line).await.well();
    let said = person
        .run(["run", "-E", "near", "--", "echo", "near"])
        .await;
    assert_eq!(said.well(), "near\n");
    person
        .run(["env", "add", "broken", "--command", "/no/such/program"])
        .await
        .well();
    let ended = person.run(["run", "-E", "broken", "--", "true"]).await;
    ended.failed(69, &["/no/such/program", "environments.toml"]);
}

#[tokio::test]
async fn a_hub_leads_to_an_environment() {
    let person = Person::new();
    let hub = Hub::start(&person).await;
    let _executor = hub.executor(&person, "far-box");
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
    person.run(add).await.well();
    let status = soon(person.run(["env", "status", "box", "--json"]))
        .await
        .well();
    let status = parsed(&status);
    assert_eq!(status[0]["reachable"], true, "{status}");
    assert_eq!(status[0]["cwd"], person.work().to_str().unwrap());
    let said = person
        .run(["run", "-E", "box", "--", "echo", "far"])
        .await
        .well();
    assert_eq!(said, "far\n");
}

/// The keys of an `[[environments]]` table that stock releases 0.166 and 0.169 accept.
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
async fn codex_can_read_its_own_file_after_every_form_of_add() {
    let person = Person::new().with("TOKEN", "t0ken");
    let token = person.keep("token", "t0ken");
    let token = token.to_str().unwrap();
    let codex = person.codex().join("environments.toml");
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
            person.run(&line).await.well();
            let stock = std::fs::read_to_string(&codex).unwrap_or_default();
            let parsed: toml::Table = stock.parse().unwrap();
            let tables = parsed.get("environments").and_then(|all| all.as_array());
            for table in tables.into_iter().flatten() {
                let table = table.as_table().unwrap();
                let unknown = table.keys().find(|key| !STOCK_KEYS.contains(&key.as_str()));
                assert_eq!(unknown, None, "{form:?}: {stock}");
            }
            assert_eq!(stock, before.unwrap_or_default(), "{form:?}");
            person.run(["env", "default", "local"]).await.well();
            person.run(["env", "rm", "box"]).await.well();
        }
    }
}

#[tokio::test]
async fn the_environments_of_codex_are_listed_behind_ours_and_not_changed() {
    let person = Person::new();
    let codex = person.codex().join("environments.toml");
    let text = "default = \"theirs\"\n[[environments]]\nid = \"theirs\"\nurl = \"ws://127.0.0.1:1\"\n\
                [[environments]]\nid = \"both\"\nurl = \"ws://127.0.0.1:1\"\n";
    std::fs::write(&codex, text).unwrap();
    person
        .run(["env", "add", "mine", "ws://127.0.0.1:2"])
        .await
        .well();
    let hiding = person.run(["env", "add", "both", "ws://127.0.0.1:3"]).await;
    assert!(hiding.stderr.contains("overrides `both`"), "{hiding:?}");
    let listed = async || {
        let listed = parsed(&person.run(["env", "list", "--json"]).await.well());
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
    person.run(["env", "default", "mine"]).await.well();
    person.run(["env", "default", "theirs"]).await.well();
    let theirs = person.run(["env", "remove", "theirs"]).await;
    theirs.failed(1, &["`theirs`", "settings of Codex", "by hand"]);
    person.run(["env", "remove", "both"]).await.well();
    assert_eq!(listed().await[2], r#""both" "ws://127.0.0.1:1" false"#);
    assert_eq!(std::fs::read_to_string(&codex).unwrap(), text);
}

#[tokio::test]
async fn a_file_of_codex_that_an_earlier_version_broke_is_reported_with_the_fix() {
    let person = Person::new();
    let token = person.keep("token", "t0ken");
    let codex = person.codex().join("environments.toml");
    let text = format!(
        "default = \"box\"\n[[environments]]\nid = \"box\"\nurl = \"ws://127.0.0.1:1\"\n\
         auth_token_file = \"{}\"\n",
        token.display()
    );
    std::fs::write(&codex, &text).unwrap();
    let own = person.environments();
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
        let ended = person.run(line).await;
        for text in says {
            assert!(ended.stderr.contains(text), "{text:?} in {ended:?}");
        }
    }
    // It still works, and works on where it is moved to.
    let listed = person.run(["env", "list"]).await;
    assert!(listed.stdout.contains("box"), "{listed:?}");
    std::fs::create_dir_all(person.environments().parent().unwrap()).unwrap();
    std::fs::rename(&codex, person.environments()).unwrap();
    let moved = person.run(["env", "list"]).await.well();
    assert_eq!(moved, listed.stdout);
}
