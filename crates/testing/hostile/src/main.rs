//! Tries one operation that a sandbox may refuse, and prints the result.
//!
//! `exec-hostile NAME [ARGS…]` prints `ok`, `ok TEXT` or `refused ERRNO` and exits with 0 in each
//! case; some probes print one such line for each of several methods. Usage errors exit with 2.
//! Invariant: running it as root does no harm. Every probe undoes its effect, has none, or affects
//! only this process. The expected results are in `exec-wire-tests`.
#![expect(
    unsafe_code,
    reason = "system calls that no library offers, in ways that no library would"
)]

mod attributes;
mod create_methods;
mod files;
mod ipc;
mod kernel;
mod mounts;
mod network;
mod other_processes;
mod own_process;
mod probe;
mod syscall;
mod syscall_entries;

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use self::probe::{Probe, ProbeArgs, ProbeFailure};

const PROBE_GROUPS: &[&[(&str, Probe)]] = &[
    attributes::PROBES,
    create_methods::PROBES,
    files::PROBES,
    ipc::PROBES,
    kernel::PROBES,
    mounts::PROBES,
    network::PROBES,
    other_processes::PROBES,
    own_process::PROBES,
    syscall_entries::PROBES,
];

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let line = match run(&words) {
        Ok(text) => text,
        Err(ProbeFailure::Refused(error)) => format!("refused {}", probe::errno_name(&error)),
        Err(ProbeFailure::Usage) => {
            let names: Vec<&str> = PROBE_GROUPS
                .iter()
                .copied()
                .flatten()
                .map(|p| p.0)
                .collect();
            let usage = format!("usage: exec-hostile NAME [ARGS…]\n{}\n", names.join(" "));
            drop(io::stderr().write_all(usage.as_bytes()));
            return ExitCode::from(2);
        }
    };
    match io::stdout().write_all(format!("{line}\n").as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(words: &[OsString]) -> Result<String, ProbeFailure> {
    let (name, rest) = words.split_first().ok_or(ProbeFailure::Usage)?;
    let probes = PROBE_GROUPS.iter().copied().flatten();
    let (_, probe) = probes
        .into_iter()
        .find(|(candidate, _)| name == candidate)
        .ok_or(ProbeFailure::Usage)?;
    probe(&ProbeArgs::new(rest))
}
