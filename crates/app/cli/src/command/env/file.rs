//! Our own `environments.toml`: read, changed as a text, checked, and put back whole.
//! Invariants: what people wrote there stays as they wrote it, comments included; the file of Codex is
//! read and never written, because Codex refuses to start on keys it does not know.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    command::failure::{Failure, FailureKind},
    environments::{self, EnvironmentsError, Facts, Selection},
    settings_source::{self, Lookup},
};

/// How long somebody else may take with the file.
const PATIENCE: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(5);

/// The file, which nobody else of ours changes as long as this value lives.
#[derive(Debug)]
pub(super) struct EnvironmentsFile {
    path: PathBuf,
    text: String,
    /// What the settings of Codex select.
    base: Selection,
    _lock: File,
}

impl EnvironmentsFile {
    /// Reads it, if it is there.
    pub(super) fn open(lookup: Lookup<'_>) -> Result<Self, Failure> {
        let path = Selection::own_file(lookup).ok_or_else(|| {
            Failure::new(
                FailureKind::Failed,
                "no directory for environments.toml is known",
            )
            .next("set HOME, XDG_CONFIG_HOME or EXEC_SERVER_HOME")
        })?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let failed = |error: io::Error| failed(&path, &error);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed)?;
        let lock = lock(directory).map_err(failed)?;
        // Some keep their settings elsewhere, behind a link, which stays.
        let path = fs::canonicalize(&path).unwrap_or(path);
        let text = match settings_source::read_text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(self::failed(&path, &error)),
        };
        let base = of_codex(lookup)?;
        parse(&path, &text, &base, lookup)
            .map_err(|error| Failure::new(FailureKind::UnknownEnvironment, error))?;
        Ok(Self {
            path,
            text,
            base,
            _lock: lock,
        })
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what it says.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the environments that are not in it: those of Codex.
    pub(super) fn base(&self) -> &Selection {
        &self.base
    }

    /// Reads a text as if it were this file's.
    pub(super) fn understand(
        &self,
        text: &str,
        lookup: Lookup<'_>,
    ) -> Result<Selection, EnvironmentsError> {
        parse(&self.path, text, &self.base, lookup)
    }

    /// Replaces it. The text must be one that is understood.
    pub(super) fn replace(self, text: &str) -> Result<(), Failure> {
        let failed = |error: io::Error| failed(&self.path, &error);
        let mode = fs::metadata(&self.path).map_or(0o600, |old| old.permissions().mode());
        let draft = self
            .path
            .with_extension(format!("toml.{}", std::process::id()));
        let written = write(&draft, text, mode).and_then(|()| fs::rename(&draft, &self.path));
        if written.is_err() {
            // It may not even have come into being.
            drop(fs::remove_file(&draft));
        }
        written.map_err(failed)
    }
}

fn parse(
    path: &Path,
    text: &str,
    base: &Selection,
    lookup: Lookup<'_>,
) -> Result<Selection, EnvironmentsError> {
    environments::parse_over(path, text, facts(lookup), Some(base))
}

fn of_codex(lookup: Lookup<'_>) -> Result<Selection, Failure> {
    Selection::of_codex(facts(lookup)).map_err(|error| {
        let what = format!("{:#}", anyhow::Error::from(error));
        Failure::new(FailureKind::UnknownEnvironment, what)
    })
}

fn facts(lookup: Lookup<'_>) -> Facts<'_> {
    Facts {
        lookup,
        read: &settings_source::read_text,
    }
}

fn write(draft: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(mode & 0o7777))?;
    file.sync_all()
}

/// Locks the directory, so that of two who change the file at once none loses what they wrote.
fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    let until = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::Error(error)) => return Err(error),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(GLANCE);
            }
            Err(fs::TryLockError::WouldBlock) => {
                return Err(io::Error::other("somebody else is changing it"));
            }
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let what = format!("cannot change `{}`: {error}", path.display());
    Failure::new(FailureKind::Failed, what)
}
