//! Making, listing and revoking tokens. The running hub notices by itself.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use super::{
    Digest256, Entry, ReadError, Token, TokenId,
    file::{self, MAX_TOKENS},
};
use crate::{
    principal::{Environments, PrincipalName, Roles},
    store::Timestamp,
};

/// A token as it is asked for.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Whose it shall be.
    pub principal: PrincipalName,
    /// What it shall allow.
    pub roles: Roles,
    /// Which environments it shall name.
    pub environments: Environments,
    /// When it shall end. `None`: never.
    pub expires_at: Option<Timestamp>,
}

/// Makes a token and adds it to the file, which is made if need be. Blocks.
///
/// The token is in nobody's hands but the caller's: it cannot be shown again.
///
/// # Errors
/// When it would be worth nothing, or the file cannot be read or written. Nothing is changed then.
pub fn create(path: &Path, new: NewToken, now: Timestamp) -> Result<(Entry, Token), EditError> {
    if new.roles.iter().next().is_none() {
        return Err(EditError::NoRoles);
    }
    if new.expires_at.is_some_and(|end| end <= now) {
        return Err(EditError::Expired);
    }
    let locked = Locked::wait(path).map_err(EditError::Write)?;
    let mut entries = read_or_none(locked.path())?;
    if entries.len() >= MAX_TOKENS {
        return Err(EditError::Full);
    }
    let token = Token::generate().map_err(|_| EditError::Randomness)?;
    let mut id = TokenId::generate().map_err(|_| EditError::Randomness)?;
    while entries.iter().any(|entry| entry.id == id) {
        id = TokenId::generate().map_err(|_| EditError::Randomness)?;
    }
    let entry = Entry {
        id,
        principal: new.principal,
        roles: new.roles,
        environments: new.environments,
        created_at: now,
        expires_at: new.expires_at,
        digest: Digest256::of(token.expose()),
    };
    entries.push(entry.clone());
    write(&locked, &entries)?;
    Ok((entry, token))
}

/// Lists the tokens of a file. One that is not there has none. Blocks.
///
/// # Errors
/// When it cannot be read or is no token file.
pub fn list(path: &Path) -> Result<Vec<Entry>, ReadError> {
    read_or_none(path)
}

/// Takes a token out of the file. Blocks.
///
/// # Errors
/// When there is no such token, or the file cannot be read or written. Nothing is changed then.
pub fn revoke(path: &Path, id: &TokenId) -> Result<Entry, EditError> {
    let locked = Locked::wait(path).map_err(EditError::Write)?;
    let mut entries = read_or_none(locked.path())?;
    let found = entries.iter().position(|entry| entry.id == *id);
    let revoked = entries.remove(found.ok_or(EditError::Unknown)?);
    write(&locked, &entries)?;
    Ok(revoked)
}

fn read_or_none(path: &Path) -> Result<Vec<Entry>, ReadError> {
    match file::read(path) {
        Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(Vec::new())
        }
        read => read,
    }
}

fn write(locked: &Locked, entries: &[Entry]) -> Result<(), EditError> {
    let text = file::text(entries)?;
    locked.replace(text.as_bytes()).map_err(EditError::Write)
}

/// Why the token file was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// Caller: see the source.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Host: the file or its directory cannot be written.
    #[error("cannot write the token file")]
    Write(#[source] io::Error),
    /// We: the tokens cannot be put into words.
    #[error("cannot write the tokens down")]
    Encode(#[from] toml::ser::Error),
    /// Host: there is no randomness to make a token from.
    #[error("the host gave no randomness")]
    Randomness,
    /// Caller: a token that allows nothing.
    #[error("a token needs a role")]
    NoRoles,
    /// Caller: a token that would have ended already.
    #[error("the token would have expired already")]
    Expired,
    /// Caller: there are as many as there can be.
    #[error("the token file has {MAX_TOKENS} tokens already")]
    Full,
    /// Caller: no token has this id.
    #[error("no token has this id")]
    Unknown,
}

/// How long another writer may take. It needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// A lock that cannot be had is asked for this often: the system offers no wait with an end.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// The right to replace a file. Ends with the value, or with the process.
#[derive(Debug)]
pub(super) struct Locked {
    path: PathBuf,
    /// Open for as long as the right lasts. A file of its own: the other one is replaced.
    _lock: File,
}

impl Locked {
    /// Waits for the right to replace `path`, whose directory is made when it is not there. Blocks.
    pub(super) fn wait(path: &Path) -> io::Result<Self> {
        // A link is not to be replaced, but what it leads to.
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error),
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory(&path))?;
        let lock = private()
            .truncate(false)
            .create(true)
            .open(beside(&path, "lock"))?;
        let since = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { path, _lock: lock }),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {
                    if since.elapsed() > PATIENCE {
                        return Err(io::Error::new(
                            io::ErrorKind::TimedOut,
                            "another process holds the lock of the file",
                        ));
                    }
                    thread::sleep(ASK_AGAIN);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The file, links followed.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts `content` in the file's place, for the owner's eyes. Readers see the old or the new.
    pub(super) fn replace(&self, content: &[u8]) -> io::Result<()> {
        let new = beside(&self.path, &Uuid::new_v4().simple().to_string());
        let written = private()
            .create_new(true)
            .open(&new)
            .and_then(|mut file| {
                file.write_all(content)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&new, &self.path));
        if written.is_err() {
            // The first failure is the one to report.
            let _may_not_exist = fs::remove_file(&new);
        }
        written?;
        File::open(directory(&self.path))?.sync_all()
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// A hidden name in the same directory: `.tokens.toml.lock`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}
