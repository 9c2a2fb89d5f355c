//! Programs of the environment, for what the protocol has no method for.

use std::{collections::BTreeMap, os::unix::ffi::OsStrExt, time::Duration};

use bytes::Bytes;
use exec_env::{
    command::{Command, Io, Stdin},
    process::Communicate,
};
use exec_wire::{
    id::ProcessId,
    path_uri::PathUri,
    process::{EnvInherit, EnvPolicy},
};

use crate::command::place::Place;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often one is started: a connection may be cut meanwhile.
const ATTEMPTS: usize = 3;
/// What is kept of what it says.
const KEPT_BYTES: usize = 4 << 10;

/// Runs a program with paths behind its other words; doing it twice must be as good as once. Paths are
/// bytes, and words are text: so they go through `xargs`. Fails with one line.
pub(super) async fn run_with_paths(
    place: &Place,
    words: &[&str],
    paths: &[&PathUri],
) -> Result<(), String> {
    let mut input = Vec::new();
    for path in paths {
        let native = path.to_native().map_err(|error| error.to_string())?;
        input.extend_from_slice(native.as_os_str().as_bytes());
        input.push(0);
    }
    let input = Bytes::from(input);
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        outcome = run_once(place, words, input.clone()).await;
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

async fn run_once(place: &Place, words: &[&str], input: Bytes) -> Result<(), String> {
    let id = format!("cp-{}", uuid::Uuid::new_v4().simple());
    let id = ProcessId::new(&id).map_err(|error| error.to_string())?;
    let mut argv = vec!["xargs", "-0"];
    argv.extend(words);
    let root = PathUri::parse("file:///").map_err(|error| error.to_string())?;
    let argv = argv.into_iter().map(str::to_owned).collect();
    let command = Command {
        io: Io::Pipes {
            stdin: Stdin::Piped,
        },
        env_policy: Some(EVERYTHING),
        ..Command::new(id, argv, root)
    };
    let started = place.environment().backend.start(command).await;
    let started = started.map_err(|error| error.to_string())?;
    let communicate = Communicate {
        max_bytes: KEPT_BYTES,
        time_limit: Some(PATIENCE),
    };
    let said = started.process.communicate(input, communicate).await;
    let said = said.map_err(|error| error.to_string())?;
    match said.exit {
        Some(exit) if exit.code == 0 => Ok(()),
        Some(exit) => {
            let text = String::from_utf8_lossy(&said.stderr.data).into_owned();
            let line = text.lines().next().map(str::to_owned);
            let why = line.unwrap_or_else(|| format!("`{}` ended with {}", words[0], exit.code));
            Err(why)
        }
        None => Err(format!("`{}` did not end in time", words[0])),
    }
}

/// Where programs are is known to the server's environment.
const EVERYTHING: EnvPolicy = EnvPolicy {
    inherit: EnvInherit::All,
    ignore_default_excludes: true,
    exclude: Vec::new(),
    set: BTreeMap::new(),
    include_only: Vec::new(),
};
