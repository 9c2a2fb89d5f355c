//! Sockets that are bound to paths.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    mem::size_of,
    net::{TcpListener, UdpSocket},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream},
    },
    path::Path,
};

use super::{
    call, compare,
    racing_callers::{ROUNDS, run_concurrently, with_flipping_byte},
    run_sandboxed,
};
use crate::raw;

/// Binds a new socket to an address with these bytes.
fn bind(family: libc::c_int, address: &[u8], length: usize) -> io::Result<OwnedFd> {
    bind_at(family, address.as_ptr() as usize, length)
}

/// Binds a new socket to the address at this memory location.
fn bind_at(family: libc::c_int, address: usize, length: usize) -> io::Result<OwnedFd> {
    let socket = socket(family)?;
    let fd = raw::int_arg(socket.as_raw_fd());
    call(libc::SYS_bind, [fd, address, length, 0, 0, 0])?;
    Ok(socket)
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    let kind = raw::int_arg(libc::SOCK_STREAM | libc::SOCK_CLOEXEC);
    let fd = call(libc::SYS_socket, [raw::int_arg(family), kind, 0, 0, 0, 0])?;
    // SAFETY: the kernel has just created it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw::to_i32(fd)) })
}

/// Builds the address of a path, without a terminating zero.
fn address(path: &[u8]) -> Vec<u8> {
    let mut address = u16::try_from(libc::AF_UNIX).unwrap().to_ne_bytes().to_vec();
    address.extend_from_slice(path);
    address
}

#[test]
fn binding_sockets_behaves_as_without_sandbox() {
    compare(|log| {
        fs::create_dir("dir").unwrap();
        fs::write("file", "").unwrap();
        for (mask, path) in [
            (0o022, "a"),
            (0o077, "dir/b"),
            (0, "./dir/../c"),
            (0o027, "dir//d"),
            (0, "dir/.git"),
        ] {
            call(libc::SYS_umask, [mask, 0, 0, 0, 0, 0]).unwrap();
            let Some(listener) = log.note(path, UnixListener::bind(path)) else {
                continue;
            };
            // For a name that is guarded elsewhere, the broker binds the last component only.
            if path != "dir/.git" {
                log.fact("address", listener.local_addr().unwrap());
            }
            log.note("connect", UnixStream::connect(path));
            log.note("accept", listener.accept());
            log.note("again", UnixListener::bind(path));
        }
        for path in [
            "", "/", ".", "dir", "file", "none/a", "file/a", "a/", "new/",
        ] {
            log.note(path, UnixListener::bind(path));
        }
        let absolute = std::env::current_dir().unwrap().join("dir/absolute");
        let listener = log.note("absolute", UnixListener::bind(&absolute));
        let own = listener.unwrap().local_addr().unwrap();
        log.fact("address", own.as_pathname() == Some(&absolute));
        let bound = bind(libc::AF_UNIX, &address(b"dir/whole"), 2 + 9);
        log.note("without a zero", bound);
        log.note("cut", bind(libc::AF_UNIX, &address(b"dir/cutoff"), 2 + 7));
        let long = [b'l'; 108];
        log.note("long", bind(libc::AF_UNIX, &address(&long), 110));
        log.note("longer", bind(libc::AF_UNIX, &address(&[b'l'; 109]), 111));
        log.note("nowhere", bind(libc::AF_UNIX, &[], usize::MAX));
        log.note(
            "of another family",
            bind(libc::AF_INET, &address(b"inet"), 6),
        );
        let file = File::open("file").unwrap();
        let known = address(b"new");
        let args = [
            raw::int_arg(file.as_raw_fd()),
            known.as_ptr() as usize,
            known.len(),
            0,
            0,
            0,
        ];
        log.note("no socket", call(libc::SYS_bind, args));
        let args = [77_777, known.as_ptr() as usize, known.len(), 0, 0, 0];
        log.note("no descriptor", call(libc::SYS_bind, args));
        let twice = bind(libc::AF_UNIX, &address(b"once"), 6).unwrap();
        let fd = raw::int_arg(twice.as_raw_fd());
        let args = [fd, known.as_ptr() as usize, known.len(), 0, 0, 0];
        log.note("twice", call(libc::SYS_bind, args));
    });
}

#[test]
fn datagram_reply_reaches_the_sender_path() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    run_sandboxed(path, &[".git"], || {
        let [one, two] = ["one", "two"].map(|name| UnixDatagram::bind(path.join(name)).unwrap());
        one.send_to(b"hello", path.join("two")).unwrap();
        let (_, from) = two.recv_from(&mut [0; 8]).unwrap();
        two.send_to_addr(b"there", &from).unwrap();
        assert_eq!(one.recv(&mut [0; 8]).unwrap(), 5);
    });
}

#[test]
fn abstract_names_and_other_address_families_are_left_to_the_kernel() {
    let root = tempfile::tempdir().unwrap();
    run_sandboxed(root.path(), &[".git"], || {
        std::env::set_current_dir(root.path()).unwrap();
        let name = format!("exec-process-{}", std::process::id());
        let hidden = SocketAddr::from_abstract_name(name).unwrap();
        UnixListener::bind_addr(&hidden).unwrap();
        bind(libc::AF_UNIX, &address(b""), size_of::<u16>()).unwrap();
        TcpListener::bind("127.0.0.1:0").unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap();
    });
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn socket_cannot_be_bound_to_guarded_name() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    fs::create_dir(path.join("sub")).unwrap();
    std::os::unix::fs::symlink(".", path.join("up")).unwrap();
    run_sandboxed(path, &[".git"], || {
        std::env::set_current_dir(path).unwrap();
        let absolute = path.join(".git");
        let absolute = absolute.to_str().unwrap();
        for name in [".git", "./.GIT", "sub/../.git", "up/.git", absolute] {
            let bound = UnixListener::bind(name);
            assert_eq!(bound.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        }
        // Through `/proc/self`, which would resolve to the broker: the kernel refuses.
        let bound = UnixListener::bind("/proc/self/cwd/new");
        assert_eq!(bound.unwrap_err().kind(), ErrorKind::PermissionDenied);
    });
    assert_eq!(fs::read_dir(path).unwrap().count(), 2);
}

#[test]
fn devices_cannot_be_created() {
    use rustix::fs::{CWD, FileType, Mode};
    let root = tempfile::tempdir().unwrap();
    run_sandboxed(root.path(), &[".git"], || {
        for kind in [FileType::CharacterDevice, FileType::BlockDevice] {
            let path = root.path().join("device");
            rustix::fs::mknodat(CWD, path, kind, Mode::from(0o666), 0).unwrap_err();
        }
    });
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn address_that_changes_while_read_never_creates_guarded_name() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    let created = run_sandboxed(path, &[".git"], || {
        let harmless = path.join(".gi_");
        let bytes = address(harmless.to_str().unwrap().as_bytes());
        let length = bytes.len();
        with_flipping_byte(bytes, length - 1, |address| {
            count_bound(&harmless, || bind_at(libc::AF_UNIX, address, length))
        })
    });
    assert!(!path.join(".git").exists());
    assert!(
        created.is_none_or(|created| created > 0),
        "nothing was created"
    );
}

#[test]
fn directory_that_changes_during_bind_never_gets_guarded_name() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    for name in ["guarded", "free"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    let created = run_sandboxed(&path.join("guarded"), &[".git"], || {
        std::os::unix::fs::symlink("free", path.join("link")).unwrap();
        std::os::unix::fs::symlink("guarded", path.join("other")).unwrap();
        let (one, two) = (path.join("link"), path.join("other"));
        let exchange = || {
            let (at, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
            rustix::fs::renameat_with(at, &one, at, &two, flags).unwrap();
        };
        run_concurrently(exchange, || {
            count_bound(&path.join("free/.git"), || {
                UnixListener::bind(path.join("link/.git")).map(Into::into)
            })
        })
    });
    assert!(!path.join("guarded/.git").exists());
    assert!(
        created.is_none_or(|created| created > 0),
        "nothing was created"
    );
}

/// Binds many times, and removes what was created.
fn count_bound(made_at: &Path, bind: impl Fn() -> io::Result<OwnedFd>) -> usize {
    let mut created = 0;
    for _ in 0..ROUNDS {
        created += usize::from(bind().is_ok());
        // Missing if it was the other one.
        drop(fs::remove_file(made_at));
    }
    created
}
