//! Tests of `exec-server connect`, as a program that a client starts and speaks to.

use std::process::Stdio;

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
};

use super::ssh_host::SshHost;
use crate::{
    processes::cuttable_link::CuttableLink,
    test_user::{TestUser, within_timeout},
};

/// A client that knows nothing but lines of JSON, like the stock CLI.
struct StdioClient {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl StdioClient {
    fn start(user: &TestUser, target: &str) -> Self {
        let mut command = user.command(["connect", target]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            stdin: child.stdin.take().unwrap(),
            lines,
            child,
        }
    }

    async fn says(&mut self, message: &str) {
        let line = format!("{message}\n");
        within_timeout(self.stdin.write_all(line.as_bytes()))
            .await
            .unwrap();
    }

    /// Returns the next line that contains all of `texts`.
    async fn hears(&mut self, texts: &[&str]) -> String {
        loop {
            let line = within_timeout(self.lines.next_line()).await.unwrap();
            let line = line.unwrap_or_else(|| panic!("it ended before {texts:?}"));
            if texts.iter().all(|text| line.contains(text)) {
                return line;
            }
        }
    }
}

#[tokio::test]
async fn connect_serves_a_client_on_stdio_across_cuts() {
    let host = SshHost::start().await;
    host.install();
    let user = host.user();
    let link = CuttableLink::to_address(host.address()).await;
    host.reach_through(link.url.strip_prefix("ws://").unwrap().parse().unwrap());
    let mut client = StdioClient::start(&user, "ssh:box");
    client
        .says(r#"{"id":1,"method":"initialize","params":{"clientName":"codex"}}"#)
        .await;
    client
        .hears(&[r#""id":1"#, r#""platformOs":"linux""#])
        .await;
    client.says(r#"{"method":"initialized","params":{}}"#).await;
    client
        .says(
            r#"{"id":2,"method":"process/start","params":{"processId":"p","argv":["sh","-c","echo ready; while read line; do echo got $line; done"],"cwd":"file:///","env":{},"tty":false,"pipeStdin":true}}"#,
        )
        .await;
    client.hears(&[r#""id":2"#, r#""processId":"p""#]).await;
    // The text is "ready\n", then "got one\n", and so on.
    client.hears(&["process/output", "cmVhZHkK"]).await;
    for (id, (typed, heard)) in [("b25lCg==", "Z290IG9uZQo="), ("dHdvCg==", "Z290IHR3bwo=")]
        .into_iter()
        .enumerate()
    {
        link.cut();
        let write = format!(
            r#"{{"id":{},"method":"process/write","params":{{"processId":"p","writeId":"{id}","chunk":"{typed}"}}}}"#,
            id + 3
        );
        client.says(&write).await;
        client.hears(&["process/output", heard]).await;
    }
    let StdioClient { child, stdin, .. } = client;
    drop(stdin);
    let ended = within_timeout(child.wait_with_output()).await.unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

#[tokio::test]
async fn unreachable_place_ends_the_program_with_the_reason() {
    let user = TestUser::new();
    let result = user.run(["connect", "exec:echo gone >&2; false"]).await;
    result.failed(69, &["exec:echo gone", "exited with status 1: gone"]);
}

#[tokio::test]
async fn dist_lists_the_programs_that_can_be_pushed() {
    let user = TestUser::new();
    let listed = user.run(["dist", "--json"]).await.expect_success();
    assert!(listed.contains(std::env::consts::ARCH), "{listed}");
    assert!(listed.contains("\"sha256\": \""), "{listed}");
    let user = user.with("EXEC_SERVER_DIST", "/nonexistent");
    user.run(["dist"])
        .await
        .failed(66, &["/nonexistent", "cargo xtask dist"]);
}
