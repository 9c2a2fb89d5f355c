//! Calls on unguarded names behave as they do without a sandbox.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::{OpenOptionsExt, PermissionsExt, symlink},
    },
    path::Path,
};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags};

use super::{
    open_directory, {call, compare, text},
};
use crate::raw;

#[test]
fn creating_and_opening_files_behaves_as_without_sandbox() {
    compare(|log| {
        log.note("write", fs::write("a", "one"));
        log.note("write again", fs::write("a", "2"));
        let append = OpenOptions::new().append(true).create(true).open("a");
        log.note("append", append.and_then(|mut file| file.write_all(b"3")));
        let append = OpenOptions::new().append(true).create(true).open("b");
        if let Some(mut file) = log.note("append to a new one", append) {
            log.note("one", file.write_all(b"one"));
            log.note("two", fs::write("b", "t"));
            log.note("three", file.write_all(b"three"));
        }
        log.note("new", File::create_new("c"));
        log.note("not new", File::create_new("c"));
        log.note("not new, a directory", File::create_new("."));
        let both = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open("d");
        if let Some(mut file) = log.note("read and write", both) {
            log.note("write", file.write_all(b"x"));
            let mut read = String::new();
            log.note("read", file.read_to_string(&mut read));
            let flags = rustix::fs::fcntl_getfl(&file).unwrap();
            log.fact("flags", flags.difference(OFlags::NOFOLLOW));
        }
        let options = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::APPEND;
        let plain = rustix::fs::open("e", options, Mode::RUSR | Mode::WUSR);
        if let Some(file) = log.note("inherited", plain.map_err(Into::into)) {
            log.fact("on exec", rustix::io::fcntl_getfd(&file).unwrap());
            let flags = rustix::fs::fcntl_getfl(&file).unwrap();
            log.fact("flags", flags.difference(OFlags::NOFOLLOW));
        }
        let read_only = rustix::fs::open("f", OFlags::CREATE | OFlags::CLOEXEC, Mode::all());
        if let Some(file) = log.note("to be read only", read_only.map_err(Into::into)) {
            log.fact("on exec", rustix::io::fcntl_getfd(&file).unwrap());
            log.note("write", File::from(file).write_all(b"x"));
        }
        let locked = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open("g");
        log.note(
            "with few permissions",
            locked.and_then(|mut file| file.write_all(b"g")),
        );
        log.note(
            "which then hold",
            OpenOptions::new().append(true).create(true).open("g"),
        );
        let nameless = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(".");
        log.note("without a name", nameless);
    });
}

#[test]
fn creating_other_entries_behaves_as_without_sandbox() {
    compare(|log| {
        log.note("directory", fs::create_dir("a"));
        log.note("with a slash", fs::create_dir("b/"));
        log.note("with slashes", fs::create_dir("a//c//"));
        log.note("below", fs::create_dir_all("d/e/f"));
        log.note("there", fs::create_dir("a"));
        log.note("itself", fs::create_dir("."));
        log.note("above", fs::create_dir("a/.."));
        log.note("link", symlink("nowhere", "a/link"));
        log.note("link with a slash", symlink("nowhere", "a/link2/"));
        log.note("link to nothing", symlink("", "a/link3"));
        fs::write("file", "text").unwrap();
        log.note("hard link", fs::hard_link("file", "a/hard"));
        log.note("hard link there", fs::hard_link("file", "a/hard"));
        log.note("hard link of a link", fs::hard_link("a/link", "a/link4"));
        log.note("hard link of a directory", fs::hard_link("a", "h"));
        log.note("hard link with slashes", fs::hard_link("file/", "h"));
        for (name, kind) in [
            ("node", FileType::RegularFile),
            ("pipe", FileType::Fifo),
            ("socket", FileType::Socket),
        ] {
            let created = rustix::fs::mknodat(CWD, name, kind, Mode::from(0o666), 0);
            log.note(name, created.map_err(Into::into));
        }
        log.note("rename", fs::rename("node", "a/node"));
        log.note("rename onto", fs::rename("a/node", "file"));
        log.note("rename a directory", fs::rename("d/", "a/d/"));
        log.note("rename into itself", fs::rename("a", "a/d/g"));
        log.note("rename onto a full one", fs::rename("b", "a"));
        log.note("rename a file as a directory", fs::rename("file/", "file2"));
        let rename = |from, to, flags| {
            rustix::fs::renameat_with(CWD, from, CWD, to, flags).map_err(io::Error::from)
        };
        fs::write("other", "text").unwrap();
        log.note("keep", rename("file", "other", RenameFlags::NOREPLACE));
        log.note("exchange", rename("b", "other", RenameFlags::EXCHANGE));
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn legacy_system_calls_behave_as_without_sandbox() {
    compare(|log| {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(text);
        let [a, b, c, d] = [&a, &b, &c, &d].map(|name| name.as_ptr() as usize);
        let open = raw::int_arg(libc::O_CREAT | libc::O_RDWR);
        log.note("open", call(libc::SYS_open, [a, open, 0o640, 0, 0, 0]));
        log.note("creat", call(libc::SYS_creat, [b, 0o606, 0, 0, 0, 0]));
        log.note("link", call(libc::SYS_link, [a, c, 0, 0, 0, 0]));
        log.note("symlink", call(libc::SYS_symlink, [a, d, 0, 0, 0, 0]));
        log.note("rename", call(libc::SYS_rename, [b, c, 0, 0, 0, 0]));
        log.note("mkdir", call(libc::SYS_mkdir, [b, 0o710, 0, 0, 0, 0]));
        log.note("unlink", fs::remove_file("d"));
        log.note("mknod", call(libc::SYS_mknod, [d, 0o600, 0, 0, 0, 0]));
    });
}

#[test]
fn umask_of_the_caller_is_applied() {
    compare(|log| {
        for (mask, name) in [(0, "a"), (0o077, "b"), (0o027, "c")] {
            call(libc::SYS_umask, [mask, 0, 0, 0, 0, 0]).unwrap();
            log.note("directory", fs::create_dir(name));
            log.note("file", fs::write(format!("{name}/file"), ""));
            let pipe = format!("{name}/pipe");
            let created = rustix::fs::mknodat(CWD, pipe, FileType::Fifo, Mode::from(0o666), 0);
            log.note("pipe", created.map_err(Into::into));
        }
    });
}

#[test]
fn errors_are_those_of_the_kernel() {
    compare(|log| {
        fs::write("file", "").unwrap();
        fs::create_dir("closed").unwrap();
        fs::write("closed/file", "").unwrap();
        fs::set_permissions("closed", Permissions::from_mode(0o555)).unwrap();
        let long = "n".repeat(256);
        let longer = "n/".repeat(2048);
        let paths = [
            "none/a",
            "file/a",
            "file/",
            "closed/a",
            "closed/file",
            "",
            "/",
        ];
        for path in paths.into_iter().chain([long.as_str(), longer.as_str()]) {
            log.note("write", fs::write(path, ""));
            log.note("new", File::create_new(path));
            log.note("directory", fs::create_dir(path));
            log.note("link", symlink("x", path));
            log.note("hard link", fs::hard_link("file", path));
            log.note("hard link of", fs::hard_link(path, "hard"));
            log.note("rename", fs::rename("file", path));
            fs::write("file", "").unwrap();
            log.note("rename from", fs::rename(path, "renamed"));
            let created = rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from(0o666), 0);
            log.note("pipe", created.map_err(Into::into));
        }
        let bad = [raw::int_arg(libc::AT_FDCWD), 1, 0, 0, 0, 0];
        log.note("no memory", call(libc::SYS_mkdirat, bad));
        let name = text("x");
        let name = name.as_ptr() as usize;
        log.note(
            "no descriptor",
            call(libc::SYS_mkdirat, [77_777, name, 0, 0, 0, 0]),
        );
        log.note(
            "negative",
            call(libc::SYS_mkdirat, [raw::int_arg(-7), name, 0, 0, 0, 0]),
        );
        let file = File::open("file").unwrap();
        let fd = raw::int_arg(file.as_raw_fd());
        log.note(
            "no directory",
            call(libc::SYS_mkdirat, [fd, name, 0, 0, 0, 0]),
        );
        fs::set_permissions("closed", Permissions::from_mode(0o755)).unwrap();
    });
}

#[test]
fn symlinks_are_followed_as_without_sandbox() {
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
fn path_may_end_at_an_unmapped_page() {
    compare(|log| {
        let page = 4096;
        let flags = rustix::mm::MapFlags::PRIVATE;
        let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping that nothing else uses.
        let memory = unsafe { rustix::mm::mmap_anonymous(anywhere, 2 * page, access, flags) };
        let memory = memory.unwrap().cast::<[u8; 4096]>();
        let beyond = memory.wrapping_add(1);
        // SAFETY: the second page of the mapping; nothing refers to it.
        unsafe { rustix::mm::munmap(beyond.cast(), page) }.unwrap();
        // SAFETY: the first page is still mapped, and zero.
        let memory = unsafe { &mut *memory };
        let path = beyond as usize - 2;
        let directory = raw::int_arg(libc::AT_FDCWD);
        let make = || call(libc::SYS_mkdirat, [directory, path, 0o755, 0, 0, 0]);
        memory[page - 2] = b'a';
        log.note("to the end", make());
        memory[page - 1] = b'b';
        log.note("beyond", make());
    });
}

#[test]
fn relative_paths_start_at_the_callers_directory() {
    compare(|log| {
        fs::create_dir_all("a/b").unwrap();
        std::env::set_current_dir("a").unwrap();
        log.note("below", fs::write("one", ""));
        fs::rename("../a", "../moved").unwrap();
        log.note("moved", fs::write("two", ""));
        log.note("and below", fs::create_dir("b/three"));
        let directory = open_directory(Path::new("b"));
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
fn unnamed_file_can_be_linked() {
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
        for (directory, name) in [
            ("/proc/self/fd", "a"),
            ("/proc/thread-self/fd", "b"),
            ("/dev/fd", "c"),
        ] {
            let path = format!("{directory}/{}", file.as_raw_fd());
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
fn resolve_flags_of_openat2_are_respected() {
    compare(|log| {
        fs::create_dir_all("root/sub").unwrap();
        symlink("/sub/new", "root/rooted").unwrap();
        symlink("sub", "root/link").unwrap();
        let root = open_directory(Path::new("root"));
        let resolve_flags = [
            ResolveFlags::empty(),
            ResolveFlags::BENEATH,
            ResolveFlags::IN_ROOT,
            ResolveFlags::NO_SYMLINKS,
            ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS,
        ];
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        for (index, resolve) in resolve_flags.into_iter().enumerate() {
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
                    && !resolve.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT)
                {
                    continue;
                }
                let path = format!("{path}{index}");
                let open = || rustix::fs::openat2(&root, &*path, flags, Mode::from(0o640), resolve);
                // The kernel returns EAGAIN during concurrent renames, which other tests make.
                let busy = rustix::io::Errno::AGAIN;
                let opened = std::iter::repeat_with(open)
                    .find(|opened| opened.as_ref().err() != Some(&busy));
                let opened = opened.unwrap();
                log.note(&format!("{path} {resolve:?}"), opened.map_err(Into::into));
            }
        }
        let mode = Mode::from_bits_retain(0o10_644);
        let bad = rustix::fs::openat2(&root, "x", flags, mode, ResolveFlags::empty());
        log.note("bad mode", bad.map_err(Into::into));
    });
}
