//! Probes that change file attributes: modes, owners, times, extended attributes and flags. None of
//! them needs a file that is open for writing.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, lchown},
};

use crate::{
    probe::{Probe, ProbeArgs, ProbeResult, ok},
    syscall::{call, open},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    ("chmod", |args| {
        let (path, mode) = (args.text(0)?, mode(args)?);
        Ok(ok(call!(libc::SYS_chmod, path.as_c_str(), mode)?))
    }),
    ("fchmod", |args| {
        let file = open(&args.text(0)?, libc::O_RDONLY)?;
        Ok(ok(call!(libc::SYS_fchmod, &file, mode(args)?)?))
    }),
    ("fchmodat", |args| {
        let (path, mode) = (args.text(0)?, mode(args)?);
        let at = libc::AT_FDCWD;
        Ok(ok(call!(libc::SYS_fchmodat, at, path.as_c_str(), mode)?))
    }),
    ("fchmodat2", |args| {
        const FCHMODAT2: i64 = 452;
        let (path, mode) = (args.text(0)?, mode(args)?);
        let at = libc::AT_FDCWD;
        Ok(ok(call!(FCHMODAT2, at, path.as_c_str(), mode, 0)?))
    }),
    ("chown", |args| {
        let path = args.path(0)?;
        let own = fs::symlink_metadata(path)?;
        Ok(ok(lchown(path, Some(own.uid()), Some(own.gid()))?))
    }),
    ("fchown", |args| {
        let own = fs::metadata(args.path(0)?)?;
        let file = open(&args.text(0)?, libc::O_RDONLY)?;
        Ok(ok(call!(libc::SYS_fchown, &file, own.uid(), own.gid())?))
    }),
    ("setxattr", |args| {
        let (path, value) = (args.text(0)?, &b"1"[..]);
        let length = value.len();
        let path = path.as_c_str();
        Ok(ok(call!(
            libc::SYS_setxattr,
            path,
            XATTR,
            value,
            length,
            0
        )?))
    }),
    ("fsetxattr", |args| {
        let (file, value) = (open(&args.text(0)?, libc::O_RDONLY)?, &b"1"[..]);
        let length = value.len();
        Ok(ok(call!(
            libc::SYS_fsetxattr,
            &file,
            XATTR,
            value,
            length,
            0
        )?))
    }),
    ("setxattrat", setxattrat),
    ("utimes", |args| {
        let (at, path) = (libc::AT_FDCWD, args.text(0)?);
        Ok(ok(call!(libc::SYS_utimensat, at, path.as_c_str(), 0, 0)?))
    }),
    ("futimes", |args| {
        let file = open(&args.text(0)?, libc::O_RDONLY)?;
        Ok(ok(call!(libc::SYS_utimensat, &file, 0, 0, 0)?))
    }),
    ("utime", |args| {
        let path = args.text(0)?;
        Ok(ok(call!(libc::SYS_utime, path.as_c_str(), 0)?))
    }),
    ("setflags", setflags),
    ("setversion", setversion),
    ("file-setattr", file_setattr),
];

const XATTR: &std::ffi::CStr = c"user.probe";

/// Returns the current mode of a file.
fn mode(args: &ProbeArgs<'_>) -> Result<u32, crate::probe::ProbeFailure> {
    let permissions = fs::metadata(args.path(0)?)?.permissions();
    Ok(permissions.mode() & 0o7777)
}

fn setxattrat(args: &ProbeArgs<'_>) -> ProbeResult {
    const SETXATTRAT: i64 = 463;
    let (at, path, value) = (libc::AT_FDCWD, args.text(0)?, *b"1");
    // A `struct xattr_args`: the value's address, its length, flags.
    let mut request = Vec::from(value.as_ptr().expose_provenance().to_ne_bytes());
    request.extend(1_u64.to_ne_bytes());
    let length = request.len();
    let path = path.as_c_str();
    Ok(ok(call!(
        SETXATTRAT,
        at,
        path,
        0,
        XATTR,
        &request[..],
        length
    )?))
}

/// Sets the flags of a file to their current value.
fn setflags(args: &ProbeArgs<'_>) -> ProbeResult {
    let file = open(&args.text(0)?, libc::O_RDONLY)?;
    let mut flags = [0; 8];
    call!(
        libc::SYS_ioctl,
        &file,
        libc::FS_IOC_GETFLAGS,
        &mut flags[..]
    )?;
    Ok(ok(call!(
        libc::SYS_ioctl,
        &file,
        libc::FS_IOC_SETFLAGS,
        &flags[..]
    )?))
}

/// Sets the version of a file to its current value.
fn setversion(args: &ProbeArgs<'_>) -> ProbeResult {
    const GET: u32 = 0x8008_7601;
    const SET: u32 = 0x4008_7602;
    let file = open(&args.text(0)?, libc::O_RDONLY)?;
    let mut version = [0; 8];
    call!(libc::SYS_ioctl, &file, GET, &mut version[..])?;
    Ok(ok(call!(libc::SYS_ioctl, &file, SET, &version[..])?))
}

/// Sets the attributes of a file to their current value.
fn file_setattr(args: &ProbeArgs<'_>) -> ProbeResult {
    const GET: i64 = 468;
    const SET: i64 = 469;
    let (at, path) = (libc::AT_FDCWD, args.text(0)?);
    let path = path.as_c_str();
    let mut attributes = [0; 24];
    let length = attributes.len();
    call!(GET, at, path, &mut attributes[..], length, 0)?;
    Ok(ok(call!(SET, at, path, &attributes[..], length, 0)?))
}
