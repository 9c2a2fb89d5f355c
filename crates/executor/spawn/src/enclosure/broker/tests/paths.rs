//! Paths lead where they lead without an enclosure.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::{OpenOptionsExt, symlink},
    },
    path::Path,
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};

use super::{
    compare::{call, compare},
    enclosed::place,
};
use crate::raw;

#[test]
fn links_are_followed_as_everywhere() {
    compare(|log| {
        fs::create_dir("sub").unwrap();
        symlink("sub/new", "dangling").unwrap();
        log.note("made through a link", fs::write("dangling", "one"));
        symlink("first", "second").unwrap();
        symlink("../third", "sub/second").unwrap();
        symlink("sub/second", "first").unwrap();
        log.note("through three", fs::write("second", "two"));
        log.note("which is there now", fs::write("second", "three"));
        symlink("sub", "directory").unwrap();
        log.note("below a link", fs::write("directory/file", ""));
        log.note("above a link", fs::write("directory/../above", ""));
        symlink("loop", "loop").unwrap();
        log.note("in circles", fs::write("loop", ""));
        symlink("sub/", "slash").unwrap();
        log.note("to a directory", fs::write("slash", ""));
        symlink("nowhere/", "slash2").unwrap();
        log.note("to a directory that is not there", fs::write("slash2", ""));
        symlink("not/there", "deep").unwrap();
        log.note("to nowhere", fs::write("deep", ""));
        symlink("new", "link").unwrap();
        log.note("insisting on a new one", File::create_new("link"));
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .custom_flags(libc::O_NOFOLLOW);
        log.note("not following", options.open("link"));
        symlink(std::env::current_dir().unwrap().join("new2"), "absolute").unwrap();
        log.note(
            "absolute",
            fs::write("absolute", "").and_then(|()| fs::remove_file("absolute")),
        );
        log.note(
            "linked",
            rustix::fs::linkat(CWD, "dangling", CWD, "sub/a", AtFlags::SYMLINK_FOLLOW)
                .map_err(Into::into),
        );
        log.note(
            "linked by itself",
            rustix::fs::linkat(CWD, "dangling", CWD, "sub/b", AtFlags::empty()).map_err(Into::into),
        );
        log.note(
            "standard output",
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open("/dev/stderr"),
        );
    });
}

#[test]
fn a_path_may_end_at_the_end_of_memory() {
    compare(|log| {
        let page = 4096;
        let flags = rustix::mm::MapFlags::PRIVATE;
        let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping, which nobody else knows.
        let memory = unsafe { rustix::mm::mmap_anonymous(anywhere, 2 * page, access, flags) };
        let memory = memory.unwrap().cast::<[u8; 4096]>();
        let beyond = memory.wrapping_add(1);
        // SAFETY: the second page of the mapping; nothing refers to it.
        unsafe { rustix::mm::munmap(beyond.cast(), page) }.unwrap();
        // SAFETY: the first page is left, and zero.
        let memory = unsafe { &mut *memory };
        let path = beyond as usize - 2;
        let directory = raw::int(libc::AT_FDCWD);
        let make = || call(libc::SYS_mkdirat, [directory, path, 0o755, 0, 0, 0]);
        memory[page - 2] = b'a';
        log.note("to the end", make());
        memory[page - 1] = b'b';
        log.note("beyond", make());
    });
}

#[test]
fn paths_are_relative_to_what_the_caller_says() {
    compare(|log| {
        fs::create_dir_all("a/b").unwrap();
        std::env::set_current_dir("a").unwrap();
        log.note("below", fs::write("one", ""));
        fs::rename("../a", "../moved").unwrap();
        log.note("moved", fs::write("two", ""));
        log.note("and below", fs::create_dir("b/three"));
        let directory = place(Path::new("b"));
        let at = directory.as_fd();
        let make = |at: BorrowedFd<'_>, name: &str| {
            rustix::fs::mkdirat(at, name, Mode::from(0o755)).map_err(io::Error::from)
        };
        log.note("by a descriptor", make(at, "four"));
        log.note("above it", make(at, "../five"));
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let opened = rustix::fs::openat(at, "six", flags, Mode::from(0o644));
        log.note("opened", opened.map_err(Into::into));
        log.note(
            "moved to",
            rustix::fs::renameat(CWD, "one", at, "one").map_err(Into::into),
        );
        fs::remove_dir_all("b").unwrap();
        log.note("gone", make(at, "seven"));
        std::env::set_current_dir("..").unwrap();
    });
}

#[test]
fn a_file_without_a_name_gets_one() {
    compare(|log| {
        let nameless = |content: &str| {
            let mut options = OpenOptions::new();
            let options = options.write(true).custom_flags(libc::O_TMPFILE);
            let mut file = options.open(".").unwrap();
            file.write_all(content.as_bytes()).unwrap();
            file
        };
        let follow = AtFlags::SYMLINK_FOLLOW;
        let file = nameless("one");
        for (place, name) in [
            ("/proc/self/fd", "a"),
            ("/proc/thread-self/fd", "b"),
            ("/dev/fd", "c"),
        ] {
            let path = format!("{place}/{}", file.as_raw_fd());
            let linked = rustix::fs::linkat(CWD, path.as_str(), CWD, name, follow);
            log.note(name, linked.map_err(Into::into));
            let linked = rustix::fs::linkat(CWD, path, CWD, "x", AtFlags::empty());
            log.note("the link itself", linked.map_err(Into::into));
        }
        let linked = rustix::fs::linkat(CWD, "/proc/self/fd/77777", CWD, "x", follow);
        log.note("no descriptor", linked.map_err(Into::into));
    });
}

#[test]
fn ways_of_resolving_are_kept() {
    compare(|log| {
        fs::create_dir_all("root/sub").unwrap();
        symlink("/sub/new", "root/rooted").unwrap();
        symlink("sub", "root/link").unwrap();
        let root = place(Path::new("root"));
        let ways = [
            ResolveFlags::empty(),
            ResolveFlags::BENEATH,
            ResolveFlags::IN_ROOT,
            ResolveFlags::NO_SYMLINKS,
            ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS,
        ];
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        for (index, way) in ways.into_iter().enumerate() {
            for path in [
                "a",
                "sub/b",
                "link/c",
                "../d",
                "/sub/e",
                "sub/../../f",
                "sub/../g",
            ] {
                if path == "/sub/e"
                    && !way.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT)
                {
                    continue;
                }
                let path = format!("{path}{index}");
                let open = || rustix::fs::openat2(&root, &*path, flags, Mode::from(0o640), way);
                // The kernel gives up if anything is renamed meanwhile, as other tests do.
                let busy = rustix::io::Errno::AGAIN;
                let opened = std::iter::repeat_with(open)
                    .find(|opened| opened.as_ref().err() != Some(&busy));
                let opened = opened.unwrap();
                log.note(&format!("{path} {way:?}"), opened.map_err(Into::into));
            }
        }
        let mode = Mode::from_bits_retain(0o10_644);
        let bad = rustix::fs::openat2(&root, "x", flags, mode, ResolveFlags::empty());
        log.note("bad mode", bad.map_err(Into::into));
    });
}
