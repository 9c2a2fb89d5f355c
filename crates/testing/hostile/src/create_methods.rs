//! Probe of every method that creates a name in a directory.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::symlink,
            net::{UnixDatagram, UnixListener},
        },
    },
    path::{Path, PathBuf},
    ptr,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    thread,
};

use crate::{
    files::{mknod, rename},
    probe::{Probe, ProbeArgs, ProbeFailure, ProbeResult, describe_outcome},
    syscall::{call, open, owned},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[("create-many-ways", create_many_ways)];

/// Name to create: its directory, the name, and an empty directory on the same file system for
/// intermediate files.
#[derive(Debug)]
struct CreateTarget {
    directory: PathBuf,
    name: PathBuf,
    aside: PathBuf,
}

type CreateMethod = fn(&CreateTarget) -> io::Result<()>;

/// `DIRECTORY NAME ASIDE`: prints `METHOD: ok` or `METHOD: refused ERRNO` for each method. Removes
/// the result of a successful method before the next one, but leaves anything that a failed method
/// created, so that the caller sees it.
fn create_many_ways(args: &ProbeArgs<'_>) -> ProbeResult {
    let goal = CreateTarget {
        directory: args.path(0)?.to_owned(),
        name: args.path(1)?.to_owned(),
        aside: args.path(2)?.to_owned(),
    };
    if !goal.directory.is_absolute() || goal.name.components().count() != 1 {
        return Err(ProbeFailure::Usage);
    }
    let mut lines = Vec::new();
    for (way, attempt) in CREATE_METHODS {
        let result = attempt(&goal);
        lines.push(format!("{way}: {}", describe_outcome(&result)));
        if result.is_ok() {
            remove(&goal.path());
        }
    }
    Ok(lines.join("\n"))
}

impl CreateTarget {
    fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    fn text(&self) -> CString {
        text(&self.path())
    }

    /// Returns an unused path in the intermediate directory.
    fn unused_path(&self, name: &str) -> PathBuf {
        let path = self.aside.join(name);
        remove(&path);
        path
    }

    /// Creates a file in the intermediate directory.
    fn file(&self) -> io::Result<PathBuf> {
        let path = self.unused_path("file");
        fs::write(&path, "x")?;
        Ok(path)
    }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

fn remove(path: &Path) {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return;
    };
    let removed = if metadata.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    // A leftover is visible to the caller.
    drop(removed);
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    open(&text(path), libc::O_RDONLY | libc::O_DIRECTORY)
}

const CREATE: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC;

const CREATE_METHODS: &[(&str, CreateMethod)] = &[
    ("open", |goal| {
        let path = goal.text();
        owned(call!(libc::SYS_open, path.as_c_str(), CREATE, 0o644)).map(drop)
    }),
    ("open-excl", |goal| {
        let (path, flags) = (goal.text(), CREATE | libc::O_EXCL);
        owned(call!(libc::SYS_open, path.as_c_str(), flags, 0o644)).map(drop)
    }),
    ("openat", |goal| {
        let at = directory(&goal.directory)?;
        let name = text(&goal.name);
        owned(call!(libc::SYS_openat, &at, name.as_c_str(), CREATE, 0o644)).map(drop)
    }),
    ("openat2", |goal| {
        let path = goal.text();
        let how = [u64::from(CREATE.cast_unsigned()), 0o644, 0]
            .map(u64::to_ne_bytes)
            .concat();
        owned(call!(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_c_str(),
            &how[..],
            how.len()
        ))
        .map(drop)
    }),
    ("openat2-beneath", |goal| {
        let (at, name) = (directory(&goal.directory)?, text(&goal.name));
        let resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS;
        let how = [u64::from(CREATE.cast_unsigned()), 0o644, resolve]
            .map(u64::to_ne_bytes)
            .concat();
        owned(call!(
            libc::SYS_openat2,
            &at,
            name.as_c_str(),
            &how[..],
            how.len()
        ))
        .map(drop)
    }),
    ("creat", |goal| {
        let path = goal.text();
        owned(call!(libc::SYS_creat, path.as_c_str(), 0o644)).map(drop)
    }),
    ("mkdir", |goal| mkdir(&goal.text())),
    ("mkdirat", |goal| {
        let at = directory(&goal.directory)?;
        let name = text(&goal.name);
        call!(libc::SYS_mkdirat, &at, name.as_c_str(), 0o755).map(drop)
    }),
    ("mkdir-slash", |goal| {
        let mut path = goal.text().into_bytes();
        path.extend(b"//");
        mkdir(&CString::new(path).unwrap_or_default())
    }),
    ("mkdir-dots", |goal| {
        let path = goal.directory.join(".").join("").join(&goal.name);
        mkdir(&text(&path))
    }),
    ("mkdir-up", |goal| {
        // Goes through a directory in `aside` and back.
        let sub = goal.unused_path("sub");
        fs::create_dir(&sub)?;
        let mut path = sub.clone();
        for _ in sub.components().skip(1) {
            path.push("..");
        }
        path.push(goal.path().strip_prefix("/").unwrap_or(Path::new("")));
        mkdir(&text(&path))
    }),
    ("mkdir-by-link", |goal| {
        let link = goal.unused_path("link");
        symlink(&goal.directory, &link)?;
        mkdir(&text(&link.join(&goal.name)))
    }),
    ("mkdir-by-cwd", |goal| {
        // Only one thread changes its working directory.
        let work = || {
            call!(libc::SYS_unshare, libc::CLONE_FS)?;
            call!(libc::SYS_chdir, text(&goal.directory).as_c_str())?;
            mkdir(&text(&goal.name))
        };
        thread::scope(|scope| match scope.spawn(work).join() {
            Ok(result) => result,
            Err(_) => Err(io::Error::from_raw_os_error(libc::ECHILD)),
        })
    }),
    ("mkdir-by-proc", |goal| {
        let at = directory(&goal.directory)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", at.as_raw_fd()));
        mkdir(&text(&path.join(&goal.name)))
    }),
    ("mkdir-flipped", create_with_changing_name),
    ("mkdir-page-end", |goal| mkdir_at_page_end(&goal.text())),
    // Only privileged callers may read the `/proc` entry of such a process.
    ("mkdir-undumpable", |goal| {
        call!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0)?;
        let result = mkdir(&goal.text());
        call!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1)?;
        result
    }),
    ("open-by-dangling-link", |goal| {
        let link = goal.unused_path("dangling");
        symlink(goal.path(), &link)?;
        owned(call!(libc::SYS_open, text(&link).as_c_str(), CREATE, 0o644)).map(drop)
    }),
    ("fifo", |goal| {
        mknod(&goal.text(), libc::S_IFIFO, 0).map(drop)
    }),
    ("mknod-file", |goal| {
        mknod(&goal.text(), libc::S_IFREG, 0).map(drop)
    }),
    ("mknod-socket", |goal| {
        mknod(&goal.text(), libc::S_IFSOCK, 0).map(drop)
    }),
    // Whiteout device, which needs no privilege.
    ("mknod-whiteout", |goal| {
        mknod(&goal.text(), libc::S_IFCHR, 0).map(drop)
    }),
    ("symlink", |goal| symlink(&goal.aside, goal.path())),
    ("symlinkat", |goal| {
        let at = directory(&goal.directory)?;
        let (target, name) = (text(&goal.aside), text(&goal.name));
        let result = call!(libc::SYS_symlinkat, target.as_c_str(), &at, name.as_c_str());
        result.map(drop)
    }),
    ("link", |goal| fs::hard_link(goal.file()?, goal.path())),
    ("rename-file", |goal| fs::rename(goal.file()?, goal.path())),
    ("rename-directory", |goal| {
        let from = goal.unused_path("renamed");
        fs::create_dir(&from)?;
        fs::rename(from, goal.path())
    }),
    ("rename-directory-slash", |goal| {
        let from = goal.unused_path("renamed");
        fs::create_dir(&from)?;
        let mut to = goal.text().into_bytes();
        to.push(b'/');
        rename(&text(&from), &CString::new(to).unwrap_or_default(), 0).map(drop)
    }),
    ("rename-no-replace", |goal| {
        let from = text(&goal.file()?);
        rename(&from, &goal.text(), libc::RENAME_NOREPLACE).map(drop)
    }),
    ("rename-link", |goal| {
        let from = goal.unused_path("linked");
        symlink(&goal.aside, &from)?;
        fs::rename(from, goal.path())
    }),
    ("tmpfile-linkat", |goal| {
        let flags = libc::O_TMPFILE | libc::O_WRONLY;
        let file = open(&text(&goal.aside), flags)?;
        let from = text(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
        let to = goal.text();
        let result = call!(
            libc::SYS_linkat,
            libc::AT_FDCWD,
            from.as_c_str(),
            libc::AT_FDCWD,
            to.as_c_str(),
            libc::AT_SYMLINK_FOLLOW
        );
        result.map(drop)
    }),
    // Allowed for the process that opened the file.
    ("tmpfile-linkat-empty", |goal| {
        let flags = libc::O_TMPFILE | libc::O_WRONLY;
        let file = open(&text(&goal.aside), flags)?;
        let to = goal.text();
        let result = call!(
            libc::SYS_linkat,
            &file,
            c"",
            libc::AT_FDCWD,
            to.as_c_str(),
            libc::AT_EMPTY_PATH
        );
        result.map(drop)
    }),
    ("bind-stream", |goal| {
        UnixListener::bind(goal.path()).map(drop)
    }),
    ("bind-dgram", |goal| {
        UnixDatagram::bind(goal.path()).map(drop)
    }),
];

fn mkdir(path: &CStr) -> io::Result<()> {
    call!(libc::SYS_mkdir, path, 0o755).map(drop)
}

/// Creates a directory by a name that ends at a page boundary, followed by unmapped memory.
fn mkdir_at_page_end(path: &CStr) -> io::Result<()> {
    const PAGE: usize = 4096;
    let bytes = path.to_bytes_with_nul();
    if bytes.len() > PAGE {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: creates a new mapping at an address that the kernel chooses.
    let pages = unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE, access, kind, -1, 0) };
    if pages == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this is the second of the two mapped pages.
    let second = unsafe { pages.cast::<u8>().add(PAGE) };
    // SAFETY: nothing uses this page.
    if unsafe { libc::mprotect(second.cast(), PAGE, libc::PROT_NONE) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the name fits into the first page.
    let start = unsafe { second.sub(bytes.len()) };
    // SAFETY: this is the end of the first page, which nothing else uses.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    call!(libc::SYS_mkdir, start.expose_provenance(), 0o755).map(drop)
}

/// Creates directories while another thread changes the last letter of the name: a checker that
/// reads the name twice sees two names.
fn create_with_changing_name(goal: &CreateTarget) -> io::Result<()> {
    const ROUNDS: usize = 500;
    let path = goal.text().into_bytes_with_nul();
    let last = path.len() - 2;
    let (expected, other) = (path[last], b'~');
    let shared: Vec<AtomicU8> = path.iter().copied().map(AtomicU8::new).collect();
    let mut harmless = path.clone();
    harmless[last] = other;
    let harmless = CString::from_vec_with_nul(harmless).unwrap_or_default();
    let stop = AtomicBool::new(false);
    let mut refusal = io::Error::from_raw_os_error(libc::EEXIST);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                shared[last].store(expected, Ordering::Relaxed);
                shared[last].store(other, Ordering::Relaxed);
            }
        });
        for _ in 0..ROUNDS {
            match call!(libc::SYS_mkdir, &shared[..], 0o755) {
                Err(error) if error.raw_os_error() != Some(libc::EEXIST) => refusal = error,
                Ok(_) | Err(_) => {}
            }
            // It may not exist.
            let _removed = call!(libc::SYS_rmdir, harmless.as_c_str());
        }
        stop.store(true, Ordering::Relaxed);
    });
    fs::symlink_metadata(goal.path())
        .map(drop)
        .map_err(|_| refusal)
}
