//! Probes of this process's own attributes.

use std::{
    env, fs,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::Command,
};

use crate::{
    probe::{Probe, ProbeArgs, ProbeFailure, ProbeResult},
    syscall::call,
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    ("environ", |_| {
        let mut names: Vec<String> = env::vars_os()
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(format!("ok {}", names.join(" ")).trim_end().to_owned())
    }),
    ("euid", |_| Ok(format!("ok {}", call!(libc::SYS_geteuid)?))),
    ("exec", |args| {
        // Runs this program under another name, such as a set-uid copy: `PROGRAM NAME`.
        let error = Command::new(args.path(0)?).arg(args.word(1)?).exec();
        Err(error.into())
    }),
    ("fds", fds),
    ("pid", |_| Ok(format!("ok {}", std::process::id()))),
    ("session", |_| {
        let leads = call!(libc::SYS_getsid, 0)? == i64::from(std::process::id());
        Ok(format!("ok {leads}"))
    }),
    ("status", status),
    ("wait", wait),
];

/// Prints one field of `/proc/self/status`, such as the capabilities.
fn status(args: &ProbeArgs<'_>) -> ProbeResult {
    let name = args.word(0)?.to_str().ok_or(ProbeFailure::Usage)?;
    let text = fs::read_to_string("/proc/self/status")?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .ok_or(ProbeFailure::Usage)?;
    Ok(format!("ok {}", value.trim()))
}

/// Prints the open descriptors without reading a directory of them.
fn fds(_: &ProbeArgs<'_>) -> ProbeResult {
    let open = (0..4096).filter(|fd| call!(libc::SYS_fcntl, *fd, libc::F_GETFD).is_ok());
    let open: Vec<String> = open.map(|fd| fd.to_string()).collect();
    Ok(format!("ok {}", open.join(" ")))
}

/// Prints a line and waits until it is killed. Arguments only help to find it.
fn wait(_: &ProbeArgs<'_>) -> ProbeResult {
    io::stdout().write_all(b"ready\n")?;
    loop {
        // Only handled signals interrupt it, and none are handled.
        let _interrupted = call!(libc::SYS_pause);
    }
}
