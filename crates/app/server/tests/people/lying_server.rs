//! Tests with a server that lies or never answers: the client must not trust it.

use std::{fs, path::Path, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::test_user::{CommandResult, OutputSoon, TestUser, product, within_timeout};

/// A user, and an environment `liar` whose server lies.
struct LyingServerFixture {
    user: TestUser,
    remote_dir: tempfile::TempDir,
}

impl LyingServerFixture {
    async fn new(mut lies: Value) -> Self {
        let (user, remote_dir) = (TestUser::new(), tempfile::tempdir().unwrap());
        let hold_file = user.home().join("held");
        lies["held"] = json!(hold_file);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &hold_file,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/people/lying_server.py");
        let add = ["env", "add", "liar", "--command", "python3"];
        let mut add = user.command(add);
        add.arg(script).arg(lies.to_string()).arg(product());
        add.output_soon().await.expect_success();
        Self { user, remote_dir }
    }

    fn remote(&self, name: &str) -> String {
        format!("liar:{}", self.remote_dir.path().join(name).display())
    }

    /// Starts a command, waits until the server withholds a response, and presses Ctrl-C.
    async fn interrupt(&self, line: &[&str], variables: &[(&str, &str)]) -> CommandResult {
        let mut command = self.user.command(line);
        command.envs(variables.iter().copied());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        within_timeout(tokio::fs::read(self.user.home().join("held")))
            .await
            .unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        within_timeout(child.wait_with_output())
            .await
            .unwrap()
            .into()
    }
}

#[tokio::test]
async fn invalid_names_from_a_server_do_not_redirect_a_copy() {
    let entry = |name: &str| json!({"fileName": name, "isDirectory": true, "isFile": false});
    let names = ["../evil", "..", ".", "", "/etc"].map(entry);
    let fixture = LyingServerFixture::new(json!({"names": names})).await;
    for name in ["logs/one", "evil/file"] {
        let path = fixture.remote_dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let copied = fixture
        .user
        .run(["cp", "-r", &fixture.remote("logs"), "."])
        .await;
    assert_eq!(copied.status, Some(1), "{copied:?}");
    assert!(
        copied.stderr.contains("which is not a file name"),
        "{copied:?}"
    );
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.collect::<Vec<_>>()
    };
    let work = fixture.user.work();
    assert_eq!(names(&work), ["logs"]);
    assert_eq!(names(&work.join("logs")), ["one"]);
}

#[tokio::test]
async fn server_messages_cannot_control_the_terminal() {
    let message = "no \u{1b}]52;c;eA==\u{7}\u{9b}2J\nsuch";
    let lies = json!({"errors": {"fs/readFile": message, "fs/getMetadata": message}});
    let fixture = LyingServerFixture::new(lies).await;
    let ended = fixture
        .user
        .run(["cat", "-E", "liar", "/etc/hostname"])
        .await;
    assert_eq!(ended.status, Some(1), "{ended:?}");
    let is_plain = |line: &str| !line.contains(char::is_control);
    assert!(ended.stderr.lines().all(is_plain), "{ended:?}");
    assert!(ended.stderr.contains("such"), "{ended:?}");
}

#[tokio::test]
async fn command_that_never_starts_can_be_interrupted() {
    let fixture = LyingServerFixture::new(json!({"hold": ["process/start"]})).await;
    let ended = fixture
        .interrupt(&["run", "-E", "liar", "--", "true"], &[])
        .await;
    assert_eq!(ended.status, Some(130), "{ended:?}");
}

#[tokio::test]
async fn watch_that_never_starts_can_be_interrupted() {
    let fixture = LyingServerFixture::new(json!({"hold": ["fs/watch"]})).await;
    let directory = fixture.remote_dir.path().to_str().unwrap();
    let line = ["watch", "-E", "liar", "-C", directory, "--", "true"];
    let ended = fixture.interrupt(&line, &[]).await;
    assert_eq!(ended.status, Some(130), "{ended:?}");
}

#[tokio::test]
async fn unwritten_edit_can_be_interrupted_and_is_kept() {
    let fixture = LyingServerFixture::new(json!({"hold": ["fs/writeFile"]})).await;
    let file = fixture.remote_dir.path().join("file");
    fs::write(&file, "old").unwrap();
    let line = ["edit", "-E", "liar", file.to_str().unwrap()];
    let editor = [("EDITOR", "sh -c 'echo new >\"$0\"'"), ("VISUAL", "")];
    let ended = fixture.interrupt(&line, &editor).await;
    ended.failed(130, &["may not have been written", "are kept in"]);
    assert_eq!(fs::read(&file).unwrap(), b"old");
}
