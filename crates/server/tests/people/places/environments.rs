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
    let path = person.codex().join("environments.toml");
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
    let path = person.codex().join("environments.toml");
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
