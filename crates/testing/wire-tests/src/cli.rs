//! The command line: output, and exit status of invalid invocations.

use rustix::process::Signal;
use tempfile::TempDir;

use crate::server::{Server, Transport, proc_line, run, until};

/// Runs a server that must fail to start; its error must contain each of the words.
async fn refused(code: i32, flags: &[&str], words: &[&str]) {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("token"), "token").unwrap();
    std::fs::write(dir.path().join("empty"), " \n").unwrap();
    std::fs::write(dir.path().join("secret"), "x".repeat(32)).unwrap();
    let output = run(dir.path(), flags).await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{flags:?}: {text}");
    assert!(output.stdout.is_empty(), "{flags:?}");
    assert!(code == 2 || text.contains("Error: "), "{flags:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{flags:?}: {text:?} lacks {word:?}");
    }
}

#[tokio::test]
async fn invalid_arguments_exit_with_status_2() {
    for flags in [
        &["--nope"][..],
        &["extra"],
        &["--listen"],
        &["--listen", "ws://localhost:0"],
        &["--listen", "http://127.0.0.1:0"],
        &["--listen", "unix://relative"],
        &["--listen", ""],
        &["--concurrent-requests", "0"],
        &["--concurrent-requests", "-1"],
        &["--session-ttl", "soon"],
        &["--session-ttl", "-1"],
        &["--max-processes", "0"],
        &["--retained-output-bytes", "0"],
        &["--ws-auth", "none"],
        &["--ws-token-sha256", "abc"],
        &["--allow-direct-exec", "perhaps"],
        &["--shutdown-grace", "inf"],
    ] {
        refused(2, flags, &[]).await;
    }
    refused(
        2,
        &["--listen", "ws://localhost:0"],
        &["localhost", "IP:PORT"],
    )
    .await;
}

#[tokio::test]
async fn invalid_flag_combinations_exit_with_status_1() {
    let token = ["--ws-auth", "capability-token"];
    let signed = ["--ws-auth", "signed-bearer-token"];
    let cases: [(Vec<&str>, &[&str]); 12] = [
        (token.to_vec(), &["--ws-token-file", "--ws-token-sha256"]),
        (
            [&token[..], &["--ws-token-file", "missing"]].concat(),
            &["missing", "No such file"],
        ),
        (
            [&token[..], &["--ws-token-file", "empty"]].concat(),
            &["empty"],
        ),
        (
            [
                &token[..],
                &["--ws-token-file", "token", "--ws-issuer", "x"],
            ]
            .concat(),
            &["--ws-issuer"],
        ),
        (signed.to_vec(), &["--ws-shared-secret-file"]),
        (
            [&signed[..], &["--ws-shared-secret-file", "token"]].concat(),
            &["token", "32"],
        ),
        (
            vec!["--ws-token-file", "token"],
            &["--ws-token-file", "--ws-auth"],
        ),
        (vec!["--ws-audience", "x"], &["--ws-audience", "--ws-auth"]),
        (
            [
                &token[..],
                &["--ws-token-file", "token", "--listen", "stdio"],
            ]
            .concat(),
            &["--ws-auth", "stdio"],
        ),
        (vec!["--listen", "wss://127.0.0.1:0"], &["--tls-cert"]),
        (vec!["--tls-key", "token"], &["--tls-key", "wss"]),
        (vec!["--strict-config", "-c", "nope=1"], &["nope"]),
    ];
    for (flags, words) in cases {
        refused(1, &flags, words).await;
    }
}

#[tokio::test]
async fn non_loopback_listener_needs_authentication() {
    for listen in ["ws://0.0.0.0:0", "ws://[::]:0"] {
        refused(
            1,
            &["--listen", listen],
            &[
                "--ws-auth",
                "capability-token",
                "--ws-token-file",
                "--ws-token-sha256",
                "signed-bearer-token",
                "--ws-shared-secret-file",
                "--insecure-no-auth",
            ],
        )
        .await;
    }
    let mut server = Server::start(
        Transport::WebSocket,
        &["--listen", "ws://0.0.0.0:0", "--insecure-no-auth"],
    )
    .await;
    server.ready().await.expect_alive().await;
}

#[tokio::test]
async fn address_in_use_exits_with_status_1() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("ws://{}", listener.local_addr().unwrap());
    refused(1, &["--listen", &listen], &[&listen]).await;
}

#[tokio::test]
async fn stdout_has_one_line() {
    for transport in [Transport::WebSocket, Transport::Unix] {
        let mut server = Server::start(transport, &["--enable", "x"]).await;
        let mut client = server.ready().await;
        client.start("p", "echo out; echo err >&2").await;
        client.finish("p").await;
        client.expect_refused("{bad").await;
        server.signal(Signal::TERM);
        let (status, rest) = server.ended().await;
        assert_eq!((status.code(), rest.as_str()), (Some(0), ""));
    }
}

#[tokio::test]
async fn listen_off_runs_until_stopped() {
    let mut server = Server::start(Transport::Stdio, &["--listen", "off"]).await;
    let pid = server.pid();
    // SIGTERM is caught: bit 14 of the mask.
    until("the server catches SIGTERM", || {
        u64::from_str_radix(&proc_line(pid, "status", "SigCgt"), 16)
            .is_ok_and(|mask| mask & 0x4000 != 0)
    })
    .await;
    server.signal(Signal::TERM);
    let (status, printed) = server.ended().await;
    assert_eq!((status.code(), printed.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn help_and_version_are_printed() {
    let dir = TempDir::new().unwrap();
    for (flag, word) in [("--help", "--listen"), ("--version", "exec-server")] {
        let output = run(dir.path(), &[flag]).await;
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8(output.stdout).unwrap().contains(word));
    }
}
