//! Tries one thing that a sandbox may refuse, and tells how it went.
//!
//! `exec-hostile NAME [ARGS…]` prints `ok`, `ok TEXT` or `refused ERRNO` and exits with 0 in each
//! case; some print one such line for each of several ways. Usage errors exit with 2.
//! Invariant: whoever runs it with all privileges loses nothing by it. What succeeds is undone, or
//! changes nothing, or stays with this process.
//! Not here: what ought to be refused (`exec-wire-tests`).
#![expect(
    unsafe_code,
    reason = "system calls that no library offers, in ways that no library would"
)]

mod attempt;
mod attributes;
mod call;
mod entries;
mod files;
mod ipc;
mod kernel;
mod mounts;
mod network;
mod own;
mod peers;
mod signals;
mod unix;
mod ways;

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use self::attempt::{Args, Failure, Probe};

const FAMILIES: &[&[(&str, Probe)]] = &[
    attributes::PROBES,
    entries::PROBES,
    files::PROBES,
    ipc::PROBES,
    kernel::PROBES,
    mounts::PROBES,
    network::PROBES,
    own::PROBES,
    peers::PROBES,
    signals::PROBES,
    unix::PROBES,
    ways::PROBES,
];

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let line = match run(&words) {
        Ok(text) => text,
        Err(Failure::Refused(error)) => format!("refused {}", attempt::name_of(&error)),
        Err(Failure::Usage) => {
            let names: Vec<&str> = FAMILIES.iter().copied().flatten().map(|p| p.0).collect();
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

fn run(words: &[OsString]) -> Result<String, Failure> {
    let (name, rest) = words.split_first().ok_or(Failure::Usage)?;
    let probes = FAMILIES.iter().copied().flatten();
    let (_, probe) = probes
        .into_iter()
        .find(|(known, _)| name == known)
        .ok_or(Failure::Usage)?;
    probe(&Args::new(rest))
}
