//! Guarded names are not created, by any call or spelling of the path.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{OpenOptionsExt, symlink},
    },
    path::Path,
};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags};

use super::{open_directory, run_sandboxed};

/// Runs `inside` in a directory where `.git` and `.agents` are guarded, and which contains only
/// `sub`, `file` and `up`, a link to the directory. Checks that neither name was created.
fn guarded(inside: impl FnOnce(&Path) + Send) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    fs::create_dir(path.join("sub")).unwrap();
    fs::write(path.join("file"), "text").unwrap();
    symlink(".", path.join("up")).unwrap();
    run_sandboxed(path, &[".git", ".agents"], || {
        std::env::set_current_dir(path).unwrap();
        inside(path);
    });
    for entry in fs::read_dir(path).unwrap() {
        let name = entry.unwrap().file_name();
        let name = name.to_str().unwrap().to_lowercase();
        assert!(
            !name.starts_with(".git") && !name.starts_with(".agents"),
            "{name}"
        );
    }
}

#[track_caller]
fn refused<T>(result: io::Result<T>) {
    assert_eq!(
        result.err().map(|error| error.kind()),
        Some(ErrorKind::ReadOnlyFilesystem)
    );
}

/// Tries every call that creates something on `path`.
#[track_caller]
fn every_call_refuses(path: &str) {
    let slash = path.ends_with('/');
    let open = |flags| {
        let flags = OFlags::CREATE | OFlags::WRONLY | flags;
        rustix::fs::open(path, flags, Mode::from(0o666)).map_err(io::Error::from)
    };
    if !slash {
        refused(fs::write(path, "text"));
        refused(File::create_new(path));
        refused(open(OFlags::NOFOLLOW));
        refused(open(OFlags::TRUNC | OFlags::APPEND));
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let none = ResolveFlags::empty();
        let opened = rustix::fs::openat2(CWD, path, flags, Mode::from(0o666), none);
        refused(opened.map_err(Into::into));
        refused(symlink("target", path));
        refused(fs::hard_link("file", path));
        refused(fs::rename("file", path));
        for kind in [FileType::RegularFile, FileType::Fifo, FileType::Socket] {
            let created = rustix::fs::mknodat(CWD, path, kind, Mode::from(0o666), 0);
            refused(created.map_err(Into::into));
        }
    }
    refused(fs::create_dir(path));
    refused(fs::rename("sub", path));
    for flags in [
        RenameFlags::NOREPLACE,
        RenameFlags::EXCHANGE,
        RenameFlags::WHITEOUT,
    ] {
        let renamed = rustix::fs::renameat_with(CWD, "sub", CWD, path, flags);
        refused(renamed.map_err(Into::into));
    }
    let exchanged = rustix::fs::renameat_with(CWD, path, CWD, "sub", RenameFlags::EXCHANGE);
    refused(exchanged.map_err(Into::into));
}

#[test]
fn no_call_creates_a_guarded_name() {
    guarded(|_| every_call_refuses(".git"));
}

#[test]
fn no_spelling_of_the_path_creates_a_guarded_name() {
    guarded(|root| {
        for path in [
            "./.git",
            ".agents",
            ".GIT",
            ".g\u{200c}it",
            ".git/",
            ".git//",
            "sub/../.git",
            "sub/..//.agents",
            "up/.git",
            "up/up/sub/../.git/",
        ] {
            every_call_refuses(path);
        }
        every_call_refuses(root.join(".git").to_str().unwrap());
        let around = format!("/proc/../{}/.git", root.display());
        every_call_refuses(&around);
        std::env::set_current_dir("sub").unwrap();
        fs::create_dir("sub").unwrap();
        fs::write("file", "").unwrap();
        every_call_refuses("../.git");
        // The name is guarded in one directory only.
        fs::create_dir_all(".git/refs").unwrap();
    });
}

#[test]
fn guarded_name_cannot_be_created_relative_to_a_descriptor() {
    guarded(|root| {
        let directory = open_directory(root);
        let below = open_directory(Path::new("sub"));
        std::env::set_current_dir("/").unwrap();
        for (at, path) in [
            (&directory, ".git"),
            (&below, "../.git"),
            (&below, "../up/.git"),
        ] {
            let mode = Mode::from(0o777);
            refused(rustix::fs::mkdirat(at, path, mode).map_err(Into::into));
            refused(rustix::fs::symlinkat("x", at, path).map_err(Into::into));
            let opened = rustix::fs::openat(at, path, OFlags::CREATE, mode);
            refused(opened.map_err(Into::into));
            let linked = rustix::fs::linkat(&directory, "file", at, path, AtFlags::empty());
            refused(linked.map_err(Into::into));
            refused(rustix::fs::renameat(&directory, "file", at, path).map_err(Into::into));
            for resolve in [ResolveFlags::IN_ROOT, ResolveFlags::BENEATH] {
                let opened = rustix::fs::openat2(&directory, ".git", OFlags::CREATE, mode, resolve);
                refused(opened.map_err(Into::into));
            }
        }
    });
}

#[test]
fn guarded_name_cannot_be_created_through_a_symlink() {
    guarded(|root| {
        symlink(".git", "x").unwrap();
        symlink("../x", "sub/y").unwrap();
        symlink(root.join(".git"), "z").unwrap();
        for link in ["x", "sub/y", "z", "up/x"] {
            refused(fs::write(link, "text"));
            refused(OpenOptions::new().append(true).create(true).open(link));
        }
    });
}

#[test]
fn unnamed_file_cannot_be_linked_to_guarded_name() {
    guarded(|_| {
        let mut options = OpenOptions::new();
        let options = options.write(true).custom_flags(libc::O_TMPFILE);
        let mut file = options.open("sub").unwrap();
        file.write_all(b"text").unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let linked = rustix::fs::linkat(CWD, path, CWD, ".git", AtFlags::SYMLINK_FOLLOW);
        refused(linked.map_err(Into::into));
        let linked = rustix::fs::linkat(&file, "", CWD, ".git", AtFlags::EMPTY_PATH);
        refused(linked.map_err(Into::into));
        let linked = rustix::fs::linkat(&file, "", CWD, "harmless", AtFlags::EMPTY_PATH);
        linked.unwrap();
        assert_eq!(fs::read("harmless").unwrap(), b"text");
    });
}

#[test]
fn paths_through_proc_self_never_resolve_to_the_broker() {
    guarded(|root| {
        let directory = open_directory(root);
        let own = format!("/proc/self/fd/{}", directory.as_raw_fd());
        symlink(&own, "own").unwrap();
        for path in [
            format!("{own}/new"),
            format!("{own}/.git"),
            "own/new".to_owned(),
        ] {
            // The kernel refuses, because of the Landlock domain.
            for result in [fs::write(&path, ""), fs::create_dir(&path)] {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
        }
        // A link that would resolve to the broker's program.
        symlink("/proc/self/exe", "exe").unwrap();
        let linked = rustix::fs::linkat(CWD, "exe", CWD, "program", AtFlags::SYMLINK_FOLLOW);
        linked.unwrap_err();
        assert!(!fs::exists("program").unwrap());
    });
}

#[test]
fn existing_guarded_name_behaves_as_without_sandbox() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    fs::create_dir(path.join(".git")).unwrap();
    fs::write(path.join(".agents"), "text").unwrap();
    run_sandboxed(path, &[".git", ".agents"], || {
        std::env::set_current_dir(path).unwrap();
        let exists = |result: io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::AlreadyExists);
        };
        exists(fs::create_dir(".git"));
        exists(symlink("x", ".agents"));
        exists(File::create_new(".agents").map(drop));
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(".agents")
            .unwrap();
        file.write_all(b"!").unwrap();
        fs::write(".git/config", "").unwrap();
    });
}

#[test]
fn guard_table_has_a_fixed_capacity() {
    let root = tempfile::tempdir().unwrap();
    let mut guards = super::super::GuardTable::new(-1);
    for index in 0..64 {
        let path = root.path().join(format!("{index}"));
        fs::create_dir(&path).unwrap();
        let opened = open_directory(&path);
        for name in [c".git", c".agents", c".codex", c"more"] {
            guards.add(opened.as_raw_fd(), name.as_ptr()).unwrap();
        }
    }
    let full = guards.add(open_directory(root.path()).as_raw_fd(), c".git".as_ptr());
    assert_eq!(full, Err(libc::ENOSPC));
    let full = guards.add(
        open_directory(&root.path().join("0")).as_raw_fd(),
        c"x".as_ptr(),
    );
    assert_eq!(full, Err(libc::ENOSPC));
    let mut guards = super::super::GuardTable::new(-1);
    for name in [c"", c".", c"..", c"a/b"] {
        let bad = guards.add(open_directory(root.path()).as_raw_fd(), name.as_ptr());
        assert_eq!(bad, Err(libc::EINVAL));
    }
    assert_eq!(guards.add(-1, c"a".as_ptr()), Err(libc::EBADF));
}
