//! What this process is and has.

use std::{
    env, fs,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::Command,
};

use crate::{
    attempt::{Args, Attempt, Failure, Probe},
    call::call,
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
        // Of this program under another name, such as a set-uid one: `PROGRAM NAME`.
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

/// Prints one field of what the kernel tells of this process, such as its capabilities.
fn status(args: &Args<'_>) -> Attempt {
    let name = args.word(0)?.to_str().ok_or(Failure::Usage)?;
    let text = fs::read_to_string("/proc/self/status")?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .ok_or(Failure::Usage)?;
    Ok(format!("ok {}", value.trim()))
}

/// Prints the descriptors that are open, without a look at a directory of them.
fn fds(_: &Args<'_>) -> Attempt {
    let open = (0..4096).filter(|fd| call!(libc::SYS_fcntl, *fd, libc::F_GETFD).is_ok());
    let open: Vec<String> = open.map(|fd| fd.to_string()).collect();
    Ok(format!("ok {}", open.join(" ")))
}

/// Says that it is there, and stays until it is killed. Arguments are for who looks for it.
fn wait(_: &Args<'_>) -> Attempt {
    io::stdout().write_all(b"ready\n")?;
    loop {
        // Interrupted by signals that are handled, which none is.
        let _interrupted = call!(libc::SYS_pause);
    }
}
