//! The token file: TOML with a `[[token]]` section for each token, hashes only.
//! [`create`], [`list`] and [`revoke`] edit it. A running hub reloads the file by itself.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use exec_registry::api::SecretString;
use serde::{Deserialize, Serialize};
use toml::value::Datetime;
use uuid::Uuid;

use super::{HubTokenDigest, INVITE_PREFIX, TOKEN_PREFIX, TokenId, random_secret};
use crate::{
    limits,
    principal::{EnvironmentGlobs, GlobError, PrincipalName, Role, RoleSet},
    store::Timestamp,
};

/// Enough for more than ten thousand tokens.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// More than people create by hand; beyond that, use JWTs.
pub(super) const MAX_TOKENS: usize = 10_000;

const HEADER: &str = "\
# Tokens of an exec-server hub. `exec-server hub token` writes this file; comments are not kept.
# Only SHA-256 hashes are here: a token is shown once, when it is made.
";

/// A token without its secret.
#[derive(Clone, Debug, Serialize)]
pub struct TokenEntry {
    /// The id.
    pub id: TokenId,
    /// The principal.
    pub principal: PrincipalName,
    /// The roles.
    pub roles: RoleSet,
    /// Environments that the token is restricted to.
    #[serde(serialize_with = "globs")]
    pub environments: EnvironmentGlobs,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Expiry. Invalid from this time on. `None`: never expires.
    pub expires_at: Option<Timestamp>,
    /// Set for an invite: it can be redeemed for the token until this time. The hash is then that of
    /// the invite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invite_expires_at: Option<Timestamp>,
    #[serde(skip)]
    pub(super) digest: HubTokenDigest,
}

/// Serde passes a reference to the field.
fn globs<S: serde::Serializer>(
    environments: &EnvironmentGlobs,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    environments.globs().serialize(serializer)
}

/// All tokens of a file by hash, and its invites by hash and by id.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenTable {
    tokens: HashMap<HubTokenDigest, Arc<TokenEntry>>,
    invites: HashMap<HubTokenDigest, Arc<TokenEntry>>,
    invites_by_id: HashMap<TokenId, Arc<TokenEntry>>,
}

impl TokenTable {
    pub(super) fn new(entries: Vec<TokenEntry>) -> Self {
        let mut table = Self::default();
        for entry in entries.into_iter().map(Arc::new) {
            if entry.invite_expires_at.is_some() {
                let id = entry.id.clone();
                table.invites_by_id.insert(id, Arc::clone(&entry));
                table.invites.insert(entry.digest, entry);
            } else {
                table.tokens.insert(entry.digest, entry);
            }
        }
        table
    }

    /// Finds a token. Never finds an invite.
    pub(super) fn find(&self, token: &str) -> Option<&Arc<TokenEntry>> {
        self.tokens.get(&HubTokenDigest::of(token))
    }

    /// Finds an invite by its text, whether or not it was redeemed.
    pub(super) fn invite(&self, invite: &str) -> Option<&Arc<TokenEntry>> {
        self.invites.get(&HubTokenDigest::of(invite))
    }

    /// Finds an invite by its id.
    pub(super) fn invite_by_id(&self, id: &TokenId) -> Option<&Arc<TokenEntry>> {
        self.invites_by_id.get(id)
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len() + self.invites.len()
    }
}

/// Why a token file is invalid. Errors never repeat its content, which might be a token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubTokenFileError {
    /// Host: the file cannot be read.
    #[error("failed to read the token file {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// Caller: the file is too large.
    #[error("token file {path} exceeds {MAX_FILE_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Caller: the file is not valid TOML or has unknown members.
    #[error("invalid token file {path}: line {line}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The syntax error.
        message: String,
    },
    /// Caller: an entry is invalid.
    #[error("token {index} of the token file {path} {problem}")]
    Entry {
        /// The file.
        path: PathBuf,
        /// Number of the entry, from 1.
        index: usize,
        /// The problem.
        problem: TokenEntryProblem,
    },
    /// Caller: the file has too many tokens.
    #[error("token file {path} has more than {MAX_TOKENS} tokens")]
    TooMany {
        /// The file.
        path: PathBuf,
    },
}

/// Problem of an entry in the token file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenEntryProblem {
    /// Caller: `id` is invalid.
    #[error("has an invalid id")]
    Id,
    /// Caller: `id` or `sha256` is duplicated.
    #[error("has the id or hash of another")]
    Repeated,
    /// Caller: `sha256` is invalid.
    #[error("has an invalid SHA-256; expected 64 hexadecimal digits")]
    Digest,
    /// Caller: `roles` is empty.
    #[error("has no roles")]
    Roles,
    /// Caller: `environments` is invalid.
    #[error("has invalid environments: {0}")]
    Environments(GlobError),
    /// Caller: `created_at` or `expires_at` is invalid.
    #[error("has a time without date, time of day or offset; write 2030-01-31T00:00:00Z")]
    Time,
}

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
) -> Result<(TokenEntry, SecretString), TokenEditError> {
    if new.roles.iter().next().is_none() {
        return Err(TokenEditError::NoRoles);
    }
    if new.expires_at.is_some_and(|end| end <= now) {
        return Err(TokenEditError::Expired);
    }
    add(path, new, None, now)
}

/// Creates an invite, which can be redeemed once for a token, and adds it to the file, creating that
/// if missing. Blocks.
///
/// Only the caller gets the invite: it cannot be displayed again.
///
/// # Errors
/// Returns an error if the invite would be useless or live too long, or the file cannot be read or
/// written. Nothing is changed then.
pub fn invite(
    path: &Path,
    new: NewToken,
    lifetime: Duration,
    now: Timestamp,
) -> Result<(TokenEntry, SecretString), TokenEditError> {
    if lifetime.is_zero() || lifetime > limits::INVITE_LIFETIME {
        return Err(TokenEditError::InviteLifetime);
    }
    add(path, new, Some(now.plus(lifetime)), now)
}

fn add(
    path: &Path,
    new: NewToken,
    invite_expires_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<(TokenEntry, SecretString), TokenEditError> {
    let lock = FileLock::wait(path).map_err(TokenEditError::Write)?;
    let mut entries = read_or_none(lock.path())?;
    if entries.len() >= MAX_TOKENS {
        return Err(TokenEditError::Full);
    }
    let prefix = match invite_expires_at {
        Some(_) => INVITE_PREFIX,
        None => TOKEN_PREFIX,
    };
    let token = random_secret(prefix).map_err(|_| TokenEditError::Randomness)?;
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
        invite_expires_at,
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
    match read(path) {
        Err(HubTokenFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(Vec::new())
        }
        read => read,
    }
}

fn write(lock: &FileLock, entries: &[TokenEntry]) -> Result<(), TokenEditError> {
    let text = text(entries)?;
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
    /// Caller: the lifetime of the invite is zero or too long.
    #[error("invite must expire within {} days", limits::INVITE_LIFETIME.as_secs() / 86_400)]
    InviteLifetime,
    /// Caller: the file has the maximum number of tokens.
    #[error("token file already has {MAX_TOKENS} tokens")]
    Full,
    /// Caller: the token does not exist.
    #[error("no token has this id")]
    Unknown,
}

/// Reads a file. A missing file is an error like any other.
pub(super) fn read(path: &Path) -> Result<Vec<TokenEntry>, HubTokenFileError> {
    let io = |source| HubTokenFileError::Io {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = File::open(path).map_err(io)?;
    let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    if read.map_err(io)? as u64 > MAX_FILE_BYTES {
        return Err(HubTokenFileError::TooLarge {
            path: path.to_owned(),
        });
    }
    parse(&text, path)
}

pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<TokenEntry>, HubTokenFileError> {
    let document: TokenDocument = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        HubTokenFileError::Syntax {
            path: path.to_owned(),
            line: before.map_or(0, |before| before.matches('\n').count()) + 1,
            message: error.message().to_owned(),
        }
    })?;
    if document.token.len() > MAX_TOKENS {
        return Err(HubTokenFileError::TooMany {
            path: path.to_owned(),
        });
    }
    let (mut ids, mut digests) = (HashSet::new(), HashSet::new());
    let rows = document.token.into_iter().enumerate();
    rows.map(|(index, row)| {
        let entry = row.check().and_then(|entry| {
            let fresh = ids.insert(entry.id.clone()) && digests.insert(entry.digest);
            fresh.then_some(entry).ok_or(TokenEntryProblem::Repeated)
        });
        entry.map_err(|problem| HubTokenFileError::Entry {
            path: path.to_owned(),
            index: index + 1,
            problem,
        })
    })
    .collect()
}

/// Serializes a file.
pub(super) fn text(entries: &[TokenEntry]) -> Result<String, toml::ser::Error> {
    let token = entries.iter().map(TokenRow::of).collect();
    let body = toml::to_string(&TokenDocument { token })?;
    Ok(format!("{HEADER}\n{body}"))
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TokenDocument {
    #[serde(default)]
    token: Vec<TokenRow>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TokenRow {
    id: String,
    principal: PrincipalName,
    sha256: String,
    roles: Vec<Role>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    environments: Vec<String>,
    created_at: Datetime,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<Datetime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    invite_expires_at: Option<Datetime>,
}

impl TokenRow {
    fn of(entry: &TokenEntry) -> Self {
        Self {
            id: entry.id.to_string(),
            principal: entry.principal.clone(),
            sha256: entry.digest.to_hex(),
            roles: entry.roles.iter().collect(),
            environments: entry.environments.globs().to_vec(),
            created_at: datetime(entry.created_at),
            expires_at: entry.expires_at.map(datetime),
            invite_expires_at: entry.invite_expires_at.map(datetime),
        }
    }

    fn check(self) -> Result<TokenEntry, TokenEntryProblem> {
        if self.roles.is_empty() {
            return Err(TokenEntryProblem::Roles);
        }
        Ok(TokenEntry {
            id: TokenId::new(&self.id).ok_or(TokenEntryProblem::Id)?,
            principal: self.principal,
            roles: RoleSet::new(self.roles),
            environments: EnvironmentGlobs::new(self.environments)
                .map_err(TokenEntryProblem::Environments)?,
            created_at: timestamp(self.created_at)?,
            expires_at: self.expires_at.map(timestamp).transpose()?,
            invite_expires_at: self.invite_expires_at.map(timestamp).transpose()?,
            digest: HubTokenDigest::from_hex(&self.sha256).ok_or(TokenEntryProblem::Digest)?,
        })
    }
}

fn timestamp(datetime: Datetime) -> Result<Timestamp, TokenEntryProblem> {
    Timestamp::parse_rfc3339(&datetime.to_string()).ok_or(TokenEntryProblem::Time)
}

/// Formats to the second, for readability. Times after the last representable date are clamped.
fn datetime(at: Timestamp) -> Datetime {
    /// 9999-12-31T23:59:59Z.
    const LAST: u64 = 253_402_300_799;
    let text = Timestamp::from_seconds(at.seconds().min(LAST)).rfc3339();
    let parsed = text.replace(".000Z", "Z").parse();
    parsed.unwrap_or(Datetime {
        date: None,
        time: None,
        offset: None,
    })
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
            .open(hidden_sibling(&path, "lock"))?;
        let since = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { path, _lock: lock }),
                Err(TryLockError::WouldBlock) => {
                    if since.elapsed() > LOCK_TIMEOUT {
                        return Err(io::Error::new(
                            io::ErrorKind::TimedOut,
                            "another process has locked the file",
                        ));
                    }
                    thread::sleep(LOCK_POLL_INTERVAL);
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Returns the file's path with links resolved.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file atomically, with mode 0600.
    pub(super) fn replace(&self, content: &[u8]) -> io::Result<()> {
        let new = hidden_sibling(&self.path, &Uuid::new_v4().simple().to_string());
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
fn hidden_sibling(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}
