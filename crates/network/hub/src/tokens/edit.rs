//! Creates, lists and revokes tokens in the token file. A running hub reloads the file by itself.

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
    HubToken, HubTokenDigest, HubTokenFileError, TokenEntry, TokenId,
    file::{self, MAX_TOKENS},
};
use crate::{
    principal::{EnvironmentGlobs, PrincipalName, RoleSet},
    store::Timestamp,
};

/// Parameters of a new token.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Principal of the token.
    pub principal: PrincipalName,
    /// Roles of the token.
    pub roles: RoleSet,
    /// Environments that the token is restricted to.
    pub environments: EnvironmentGlobs,
    /// Expiry. `None`: never.
    pub expires_at: Option<Timestamp>,
}

/// Creates a token and adds it to the file, creating that if missing. Blocks.
///
/// Only the caller gets the token: it cannot be displayed again.
///
/// # Errors
/// Returns an error if the token would be useless, or the file cannot be read or written. Nothing
/// is changed then.
pub fn create(
    path: &Path,
    new: NewToken,
    now: Timestamp,
) -> Result<(TokenEntry, HubToken), TokenEditError> {
    if new.roles.iter().next().is_none() {
        return Err(TokenEditError::NoRoles);
    }
    if new.expires_at.is_some_and(|end| end <= now) {
        return Err(TokenEditError::Expired);
    }
    let lock = FileLock::wait(path).map_err(TokenEditError::Write)?;
    let mut entries = read_or_none(lock.path())?;
    if entries.len() >= MAX_TOKENS {
        return Err(TokenEditError::Full);
    }
    let token = HubToken::generate().map_err(|_| TokenEditError::Randomness)?;
    let mut id = TokenId::generate().map_err(|_| TokenEditError::Randomness)?;
    while entries.iter().any(|entry| entry.id == id) {
        id = TokenId::generate().map_err(|_| TokenEditError::Randomness)?;
    }
    let entry = TokenEntry {
        id,
        principal: new.principal,
        roles: new.roles,
        environments: new.environments,
        created_at: now,
        expires_at: new.expires_at,
        digest: HubTokenDigest::of(token.expose()),
    };
    entries.push(entry.clone());
    write(&lock, &entries)?;
    Ok((entry, token))
}

/// Lists the tokens of a file. A missing file has none. Blocks.
///
/// # Errors
/// Returns an error if the file cannot be read or is invalid.
pub fn list(path: &Path) -> Result<Vec<TokenEntry>, HubTokenFileError> {
    read_or_none(path)
}

/// Removes a token from the file. Blocks.
///
/// # Errors
/// Returns an error if the token does not exist, or the file cannot be read or written. Nothing is
/// changed then.
pub fn revoke(path: &Path, id: &TokenId) -> Result<TokenEntry, TokenEditError> {
    let lock = FileLock::wait(path).map_err(TokenEditError::Write)?;
    let mut entries = read_or_none(lock.path())?;
    let found = entries.iter().position(|entry| entry.id == *id);
    let revoked = entries.remove(found.ok_or(TokenEditError::Unknown)?);
    write(&lock, &entries)?;
    Ok(revoked)
}

fn read_or_none(path: &Path) -> Result<Vec<TokenEntry>, HubTokenFileError> {
    match file::read(path) {
        Err(HubTokenFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(Vec::new())
        }
        read => read,
    }
}

fn write(lock: &FileLock, entries: &[TokenEntry]) -> Result<(), TokenEditError> {
    let text = file::text(entries)?;
    lock.replace(text.as_bytes()).map_err(TokenEditError::Write)
}

/// Why the token file was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenEditError {
    /// Caller: see the source.
    #[error(transparent)]
    Read(#[from] HubTokenFileError),
    /// Host: the file or its directory cannot be written.
    #[error("failed to write the token file")]
    Write(#[source] io::Error),
    /// Us: the tokens cannot be serialized.
    #[error("failed to serialize the tokens")]
    Encode(#[from] toml::ser::Error),
    /// Host: no randomness to generate a token.
    #[error("no randomness available on the host")]
    Randomness,
    /// Caller: the token has no roles.
    #[error("token needs a role")]
    NoRoles,
    /// Caller: the token would already have expired.
    #[error("token would already have expired")]
    Expired,
    /// Caller: the file has the maximum number of tokens.
    #[error("token file already has {MAX_TOKENS} tokens")]
    Full,
    /// Caller: the token does not exist.
    #[error("no token has this id")]
    Unknown,
}

/// How long to wait for another writer, which needs milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Polling interval for the lock: `flock` has no timeout.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Exclusive lock for replacing a file. Released on drop or when the process exits.
#[derive(Debug)]
pub(super) struct FileLock {
    path: PathBuf,
    /// The open lock file. Separate from the locked file, because that is replaced.
    _lock: File,
}

impl FileLock {
    /// Waits for the lock of `path`, creating its directory if missing. Blocks.
    pub(super) fn wait(path: &Path) -> io::Result<Self> {
        // Resolve symbolic links, so that their target is replaced instead of the link.
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
                    if since.elapsed() > LOCK_TIMEOUT {
                        return Err(io::Error::new(
                            io::ErrorKind::TimedOut,
                            "another process has locked the file",
                        ));
                    }
                    thread::sleep(LOCK_POLL_INTERVAL);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the file's path with links resolved.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file atomically, with mode 0600.
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

/// Returns a hidden name in the same directory: `.tokens.toml.lock`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}
