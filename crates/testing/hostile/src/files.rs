//! Probes that read and change files.

use std::{
    ffi::CString,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, symlink},
    },
    path::Path,
};

use crate::{
    probe::{Probe, ProbeArgs, ProbeResult, ok},
    syscall::{call, open, owned},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    ("append", |args| {
        let mut file = OpenOptions::new().append(true).open(args.path(0)?)?;
        Ok(ok(file.write_all(b"probe")?))
    }),
    ("create", |args| {
        Ok(ok(OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(args.path(0)?)?))
    }),
    ("exchange", |args| {
        let (from, to) = (args.text(0)?, args.text(1)?);
        Ok(ok(rename(&from, &to, libc::RENAME_EXCHANGE)?))
    }),
    ("fifo", |args| {
        Ok(ok(mknod(&args.text(0)?, libc::S_IFIFO, 0)?))
    }),
    ("link", |args| {
        Ok(ok(fs::hard_link(args.path(0)?, args.path(1)?)?))
    }),
    ("list", list),
    ("mkdir", |args| {
        Ok(ok(DirBuilder::new().mode(0o755).create(args.path(0)?)?))
    }),
    // The null device: harmless, but a device.
    ("mknod", |args| {
        Ok(ok(mknod(
            &args.text(0)?,
            libc::S_IFCHR,
            libc::makedev(1, 3),
        )?))
    }),
    // Opens for writing without writing anything, for devices.
    ("open-for-write", |args| {
        let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
        Ok(ok(open(&args.text(0)?, flags)?))
    }),
    ("open-by-handle", open_by_handle),
    ("read", read),
    ("rename", |args| {
        Ok(ok(fs::rename(args.path(0)?, args.path(1)?)?))
    }),
    ("rewrite", rewrite),
    ("rmdir", |args| Ok(ok(fs::remove_dir(args.path(0)?)?))),
    ("stat", |args| Ok(ok(fs::symlink_metadata(args.path(0)?)?))),
    ("symlink", |args| {
        Ok(ok(symlink(args.path(0)?, args.path(1)?)?))
    }),
    ("truncate", |args| {
        let path = args.text(0)?;
        Ok(ok(call!(libc::SYS_truncate, path.as_c_str(), 0)?))
    }),
    ("unlink", |args| Ok(ok(fs::remove_file(args.path(0)?)?))),
    ("write", |args| Ok(ok(write(args.path(0)?)?))),
    ("write-via-cwd-of", |args| via_proc(args, "cwd")),
    ("write-via-fds-of", write_via_fds),
    ("write-via-root-of", |args| via_proc(args, "root")),
];

/// Renames with flags.
pub(crate) fn rename(from: &CString, to: &CString, flags: u32) -> io::Result<i64> {
    call!(
        libc::SYS_renameat2,
        libc::AT_FDCWD,
        from.as_c_str(),
        libc::AT_FDCWD,
        to.as_c_str(),
        flags
    )
}

/// Creates a special file.
pub(crate) fn mknod(path: &CString, kind: u32, device: u64) -> io::Result<i64> {
    call!(
        libc::SYS_mknodat,
        libc::AT_FDCWD,
        path.as_c_str(),
        kind | 0o644,
        device
    )
}

/// Overwrites the beginning of a file, and creates it if it is missing.
fn write(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.write_all(b"probe")
}

/// Prints the first line of a file.
fn read(args: &ProbeArgs<'_>) -> ProbeResult {
    let mut bytes = Vec::new();
    File::open(args.path(0)?)?
        .take(64)
        .read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().unwrap_or_default();
    Ok(format!("ok {line}").trim_end().to_owned())
}

fn list(args: &ProbeArgs<'_>) -> ProbeResult {
    let mut names = Vec::new();
    for entry in fs::read_dir(args.path(0)?)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(format!("ok {}", names.join(" ")).trim_end().to_owned())
}

/// Writes the current content of a settings file back to it.
fn rewrite(args: &ProbeArgs<'_>) -> ProbeResult {
    let path = args.path(0)?;
    let text = fs::read(path)?;
    let mut file = OpenOptions::new().write(true).open(path)?;
    Ok(ok(file.write_all(&text)?))
}

/// Opens a file for writing by its handle, which bypasses the directories above it.
fn open_by_handle(args: &ProbeArgs<'_>) -> ProbeResult {
    let path = args.text(0)?;
    // A `struct file_handle`: the size of the handle, its type, and the handle.
    const SIZE: u32 = 128;
    let mut handle = [0; 8 + SIZE as usize];
    handle[..4].copy_from_slice(&SIZE.to_ne_bytes());
    let mut mount = [0; 4];
    call!(
        libc::SYS_name_to_handle_at,
        libc::AT_FDCWD,
        path.as_c_str(),
        &mut handle[..],
        &mut mount[..],
        0
    )?;
    let root = open(c"/", libc::O_RDONLY | libc::O_DIRECTORY)?;
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    Ok(ok(owned(call!(
        libc::SYS_open_by_handle_at,
        &root,
        &handle[..],
        flags
    ))?))
}

/// Writes to a path through another process's `/proc` entry: `PID PATH`, or `every PATH` for each
/// visible process.
fn via_proc(args: &ProbeArgs<'_>, link: &str) -> ProbeResult {
    let (pid, path) = (args.word(0)?, args.path(1)?);
    let path = path.strip_prefix("/").unwrap_or(path);
    let attempt = |pid: &Path| write(&Path::new("/proc").join(pid).join(link).join(path));
    if pid != "every" {
        return Ok(ok(attempt(Path::new(pid))?));
    }
    let mut last = io::Error::from_raw_os_error(libc::ESRCH);
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if !name.as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        match attempt(Path::new(&name)) {
            Ok(()) => return Ok(format!("ok {}", name.to_string_lossy())),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// Reopens for writing the files that another process has open.
fn write_via_fds(args: &ProbeArgs<'_>) -> ProbeResult {
    let directory = Path::new("/proc").join(args.word(0)?).join("fd");
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    for entry in fs::read_dir(&directory)? {
        let path = CString::new(entry?.path().as_os_str().as_bytes()).unwrap_or_default();
        match open(&path, libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY) {
            Ok(_) => return Ok("ok".to_owned()),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}
