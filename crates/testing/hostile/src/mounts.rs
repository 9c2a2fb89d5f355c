//! Probes that change mounts.

use std::{env, ffi::CString, os::unix::ffi::OsStrExt};

use crate::{
    probe::{Probe, ProbeResult, ok, passed_permission_check},
    syscall::{call, owned},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    ("fsopen", |_| {
        Ok(ok(owned(call!(libc::SYS_fsopen, c"tmpfs", 1))?))
    }),
    ("mount", |_| {
        let kind = c"tmpfs";
        mount_over_cwd(|cwd| call!(libc::SYS_mount, kind, cwd.as_c_str(), kind, 0, 0))
    }),
    ("mount-bind", |_| {
        mount_over_cwd(|cwd| {
            let root = c"/";
            call!(libc::SYS_mount, root, cwd.as_c_str(), 0, libc::MS_BIND, 0)
        })
    }),
    // Remounts the mount point as writable.
    ("remount", |_| {
        let flags = libc::MS_REMOUNT | libc::MS_BIND;
        let result = call!(libc::SYS_mount, 0, c".", 0, flags, 0);
        passed_permission_check(result, &[libc::EINVAL])
    }),
    // Changes no attribute.
    ("mount-setattr", |_| {
        let nothing = [0; 32];
        let result = call!(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c".",
            0,
            &nothing[..],
            nothing.len()
        );
        Ok(ok(result?))
    }),
    ("move-mount", |_| {
        let result = call!(libc::SYS_move_mount, -1, c"", -1, c"", 0);
        passed_permission_check(result, &[libc::EBADF, libc::ENOENT, libc::EINVAL])
    }),
    ("open-tree", |_| {
        // OPEN_TREE_CLONE.
        let flags = 1 | libc::O_CLOEXEC;
        Ok(ok(owned(call!(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            c".",
            flags
        ))?))
    }),
    ("open-tree-attr", |_| {
        // OPEN_TREE_CLONE with attributes that change nothing.
        let (flags, nothing) = (1 | libc::O_CLOEXEC, [0; 32]);
        Ok(ok(owned(call!(
            OPEN_TREE_ATTR,
            libc::AT_FDCWD,
            c".",
            flags,
            &nothing[..],
            nothing.len()
        ))?))
    }),
    ("pivot-root", |_| {
        passed_permission_check(call!(libc::SYS_pivot_root, 0, 0), &[libc::EFAULT])
    }),
    // Unmounting something that is not mounted fails, but only after the permission check.
    ("umount", |args| {
        let path = args.text(0)?;
        passed_permission_check(
            call!(libc::SYS_umount2, path.as_c_str(), libc::MNT_DETACH),
            &[libc::EINVAL],
        )
    }),
];

/// Since Linux 6.15; the same on every architecture.
const OPEN_TREE_ATTR: i64 = 467;

/// Mounts a file system over the working directory and unmounts it.
fn mount_over_cwd(mount: impl FnOnce(&CString) -> std::io::Result<i64>) -> ProbeResult {
    let cwd = env::current_dir()?;
    let cwd = CString::new(cwd.as_os_str().as_bytes()).unwrap_or_default();
    mount(&cwd)?;
    call!(libc::SYS_umount2, cwd.as_c_str(), libc::MNT_DETACH)?;
    Ok("ok".to_owned())
}
