use std::{
    fs,
    os::unix::{fs::MetadataExt, net},
    path::{Path, PathBuf},
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::time::advance;

use super::*;

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.sock");
    (directory, path)
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn refusal(bound: io::Result<UnixSocket>) -> io::ErrorKind {
    bound.unwrap_err().kind()
}

#[tokio::test]
async fn socket_with_a_full_backlog_is_not_replaced() {
    let (_directory, path) = directory();
    let first = net::UnixListener::bind(&path).unwrap();
    rustix::net::listen(&first, 0).unwrap();
    let address = SocketAddrUnix::new(&path).unwrap();
    let mut waiting = Vec::new();
    loop {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        match connect(&socket, &address) {
            Ok(()) => waiting.push(socket),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN);
                break;
            }
        }
    }
    let before = inode(&path);
    assert_eq!(refusal(UnixSocket::bind(&path)), io::ErrorKind::AddrInUse);
    assert_eq!(inode(&path), before);
}

#[tokio::test]
async fn stale_socket_is_replaced() {
    let (_directory, path) = directory();
    drop(net::UnixListener::bind(&path).unwrap());
    let socket = UnixSocket::bind(&path).unwrap();
    assert!(net::UnixStream::connect(&path).is_ok());
    drop(socket);
    assert!(!path.exists());
}

#[tokio::test]
async fn lock_keeps_a_second_server_out_after_the_socket_is_removed() {
    let (_directory, path) = directory();
    let first = UnixSocket::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(refusal(UnixSocket::bind(&path)), io::ErrorKind::AddrInUse);
    assert!(!path.exists());
    drop(first);
    UnixSocket::bind(&path).unwrap();
}

#[tokio::test]
async fn regular_file_is_not_replaced() {
    let (_directory, path) = directory();
    fs::write(&path, "text").unwrap();
    assert!(UnixSocket::bind(&path).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "text");
}

#[tokio::test]
async fn socket_that_cannot_be_probed_is_not_replaced() {
    let (_directory, path) = directory();
    // A datagram socket refuses streams with EPROTOTYPE, as a sandbox may with EPERM.
    let _other = net::UnixDatagram::bind(&path).unwrap();
    let before = inode(&path);
    assert!(UnixSocket::bind(&path).is_err());
    assert_eq!(inode(&path), before);
}

#[tokio::test]
async fn drop_keeps_the_socket_of_another_server() {
    let (_directory, path) = directory();
    let first = UnixSocket::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _second = net::UnixListener::bind(&path).unwrap();
    let before = inode(&path);
    drop(first);
    assert_eq!(inode(&path), before);
}

/// Disturbs the file system while a server waits for connections, and expects it to accept one at
/// its path again.
async fn expect_rebind(path: &Path, disturb: impl FnOnce()) {
    let mut socket = UnixSocket::bind(path).unwrap();
    disturb();
    let disturbed = FileIdentity::of(path);
    let waiting = async {
        advance(CHECK_INTERVAL).await;
        while FileIdentity::of(path).is_none_or(|found| Some(found) == disturbed) {
            tokio::task::yield_now().await;
        }
        UnixStream::connect(path).await.unwrap()
    };
    let (accepted, _stream) = tokio::join!(socket.accept(), waiting);
    accepted.unwrap();
    let mode = fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[tokio::test(start_paused = true)]
async fn removed_socket_is_bound_again() {
    let (_directory, path) = directory();
    expect_rebind(&path, || fs::remove_file(&path).unwrap()).await;
    assert!(!path.exists());
}

#[tokio::test(start_paused = true)]
async fn removed_directory_is_created_again() {
    let (_directory, path) = directory();
    let parent = path.with_file_name("run");
    fs::create_dir(&parent).unwrap();
    expect_rebind(&parent.join("server.sock"), || {
        fs::remove_dir_all(&parent).unwrap();
    })
    .await;
    assert_eq!(fs::metadata(&parent).unwrap().mode() & 0o777, 0o700);
}

#[tokio::test(start_paused = true)]
async fn replaced_socket_is_bound_again() {
    let (_directory, path) = directory();
    let mut other = None;
    expect_rebind(&path, || {
        fs::remove_file(&path).unwrap();
        other = Some(net::UnixListener::bind(&path).unwrap());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn socket_locked_by_another_server_is_not_replaced() {
    let (_directory, path) = directory();
    let mut first = UnixSocket::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::remove_file(lock_path(&path)).unwrap();
    let _second = UnixSocket::bind(&path).unwrap();
    let before = inode(&path);
    tokio::select! {
        _accepted = first.accept() => panic!("unexpected connection"),
        () = tokio::time::sleep(CHECK_INTERVAL * 3) => {}
    }
    assert_eq!(inode(&path), before);
    drop(first);
    assert_eq!(inode(&path), before);
    assert!(lock_path(&path).exists());
}

#[tokio::test]
async fn path_longer_than_an_address_is_served_and_cleaned_up() {
    let (_directory, path) = directory();
    let long = path.with_file_name("d".repeat(120));
    fs::create_dir(&long).unwrap();
    let path = long.join("server.sock");
    let address = SocketPath::open(&path).unwrap();
    drop(net::UnixListener::bind(address.as_path()).unwrap());
    let mut socket = UnixSocket::bind(&path).unwrap();
    let connected = UnixStream::connect(address.as_path());
    let (connected, accepted) = tokio::join!(connected, socket.accept());
    drop((connected.unwrap(), accepted.unwrap()));
    assert_eq!(refusal(UnixSocket::bind(&path)), io::ErrorKind::AddrInUse);
    drop(socket);
    assert_eq!(fs::read_dir(&long).unwrap().count(), 0);
}
