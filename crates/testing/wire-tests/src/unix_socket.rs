//! Unix socket specifics: the socket file.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::server::{Server, Transport, run, until};

#[tokio::test]
async fn only_the_owner_may_connect() {
    let server = Server::start_by("umask 0; exec \"$0\" \"$@\"", Transport::Unix, &[]).await;
    let metadata = fs::metadata(server.path("s")).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn live_socket_is_not_taken_over() {
    let mut server = Server::start(Transport::Unix, &[]).await;
    let inode = fs::metadata(server.path("s")).unwrap().ino();
    let listen = format!("unix://{}", server.path("s").display());
    let output = run(server.dir.path(), &["--listen", &listen]).await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("Error: ") && text.contains(&listen),
        "{text}"
    );
    assert!(output.stdout.is_empty());
    assert_eq!(fs::metadata(server.path("s")).unwrap().ino(), inode);
    server.ready().await.expect_alive().await;
}

#[tokio::test]
async fn stale_socket_is_replaced() {
    let mut first = Server::start(Transport::Unix, &[]).await;
    let path = first.path("s");
    first.signal(Signal::KILL);
    first.ended().await;
    assert!(path.exists(), "a killed server leaves its socket");
    let listen = format!("unix://{}", path.display());
    let mut second = Server::start(Transport::Unix, &["--listen", &listen]).await;
    second.ready().await.expect_alive().await;
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[tokio::test]
async fn non_socket_file_is_left_unchanged() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("precious");
    fs::write(&path, "data").unwrap();
    let listen = format!("unix://{}", path.display());
    let output = run(dir.path(), &["--listen", &listen]).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&path).unwrap(), "data");
}

#[tokio::test]
async fn server_recreates_its_removed_socket() {
    let mut server = Server::start(Transport::Unix, &[]).await;
    let mut before = server.ready().await;
    fs::remove_file(server.path("s")).unwrap();
    until("the socket is back", || {
        std::os::unix::net::UnixStream::connect(server.path("s")).is_ok()
    })
    .await;
    server.ready().await.expect_alive().await;
    before.expect_alive().await;
}

#[tokio::test]
async fn stopped_server_leaves_no_socket() {
    let mut server = Server::start(Transport::Unix, &[]).await;
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.0.code(), Some(0));
    assert!(!server.path("s").exists());
    assert!(!server.path("s.lock").exists());
}
