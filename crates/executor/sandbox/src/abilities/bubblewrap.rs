//! Tries bubblewrap as it would be used.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{
    io::AsyncReadExt,
    time::{Instant, timeout_at},
};

use super::probe::Ability;
use crate::bubblewrap::settings_protection;

/// Where distributions put it. Not `PATH`, which may be anybody's.
const PLACES: [&str; 3] = ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"];
/// How much of what it says is read.
const WORDS: u64 = 4096;
/// How much of it is shown.
const SHOWN: usize = 200;
/// What a sandbox of ours asks of it at most.
const ARGUMENTS: [&str; 14] = [
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-net",
    "--die-with-parent",
    "--cap-drop",
    "ALL",
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
];

/// Returns where it is.
pub(super) fn find() -> Option<PathBuf> {
    let found = PLACES.iter().map(Path::new).find(|path| path.is_file());
    found.map(Path::to_owned)
}

/// Makes it enclose itself: a program that is surely there, and surely ends.
pub(super) async fn attempt(path: &Path, until: Instant) -> Ability {
    let child = tokio::process::Command::new(path)
        .args(ARGUMENTS)
        .args(settings_protection())
        .arg("--")
        .arg(path)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Ability::Fails(format!("cannot run bwrap: {error}")),
    };
    let mut words = Vec::new();
    let ended = async {
        if let Some(stderr) = child.stderr.take() {
            stderr.take(WORDS).read_to_end(&mut words).await?;
        }
        child.wait().await
    };
    match timeout_at(until, ended).await {
        Ok(Ok(status)) if status.success() => Ability::Works,
        Ok(Ok(status)) => {
            let words = String::from_utf8_lossy(&words);
            match words.lines().find(|line| !line.trim().is_empty()) {
                Some(line) => Ability::Fails(line.trim().chars().take(SHOWN).collect()),
                None => Ability::Fails(format!("bwrap ended without a word, with {status}")),
            }
        }
        Ok(Err(error)) => Ability::Fails(format!("cannot run bwrap: {error}")),
        Err(_) => Ability::Fails("bwrap did not end in time".to_owned()),
    }
}
