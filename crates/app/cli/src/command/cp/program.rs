//! Programs of the environment, for what the protocol has no method for.

use std::{collections::BTreeMap, os::unix::ffi::OsStrExt, time::Duration};

use bytes::Bytes;
use exec_env::{
    command::{Command, Io, Stdin},
    process::{Communicate, Communicated},
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
/// What is kept of what it says: links of large trees among it.
const KEPT_BYTES: usize = 16 << 20;

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
    run_with_input(place, words, input).await
}

/// Runs a program by `xargs` with words of any bytes, each followed by a NUL; doing it twice must be as
/// good as once. Fails with one line.
pub(super) async fn run_with_input(
    place: &Place,
    words: &[&str],
    input: Vec<u8>,
) -> Result<(), String> {
    let input = Bytes::from(input);
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        outcome = match run_once(place, words, input.clone()).await {
            Ok(said) if said.exit.as_ref().is_some_and(|exit| exit.code == 0) => return Ok(()),
            Ok(said) => Err(why(words, &said)),
            Err(error) => Err(error),
        };
    }
    outcome
}

/// Runs a program in the same way, and returns everything that it prints.
pub(super) async fn output_of(
    place: &Place,
    words: &[&str],
    input: Vec<u8>,
) -> Result<Vec<u8>, String> {
    let said = run_once(place, words, Bytes::from(input)).await?;
    if said.truncated() {
        return Err("there are too many".to_owned());
    }
    match said.exit.as_ref().is_some_and(|exit| exit.code == 0) {
        true => Ok(said.stdout.data.to_vec()),
        false => Err(why(words, &said)),
    }
}

/// Finds the links below a directory that lead nowhere, which no method lists. Directories behind links are
/// not entered, and what cannot be read is left out.
pub(super) async fn dead_links(place: &Place, root: &PathUri) -> Result<Vec<Vec<u8>>, String> {
    let native = root.to_native().map_err(|error| error.to_string())?;
    // With the slash, a root that is a link is looked through.
    let input = [native.as_os_str().as_bytes(), b"/\0"].concat();
    let words = [
        "-I", "@ROOT@", "find", "@ROOT@", "-type", "l", "!", "-exec", "test", "-e", "{}", ";",
        "-print0",
    ];
    let said = run_once(place, &words, Bytes::from(input)).await?;
    let paths = said.stdout.data.split(|&byte| byte == 0);
    let paths = paths.filter(|path| !path.is_empty());
    Ok(paths.map(<[u8]>::to_vec).collect())
}

async fn run_once(place: &Place, words: &[&str], input: Bytes) -> Result<Communicated, String> {
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
    said.map_err(|error| error.to_string())
}

/// Says in one line why a program failed.
fn why(words: &[&str], said: &Communicated) -> String {
    let Some(exit) = &said.exit else {
        return format!("`{}` did not end in time", words[0]);
    };
    let text = String::from_utf8_lossy(&said.stderr.data);
    match text.lines().next() {
        Some(line) => line.to_owned(),
        None => format!("`{}` ended with {}", words[0], exit.code),
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
