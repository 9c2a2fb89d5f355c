//! Making, listing and revoking tokens. The running hub notices by itself.

use std::{io, path::Path};

use super::{
    Entry, ReadError, Token, TokenId,
    file::{self, MAX_TOKENS},
    lock::Locked,
    token::Digest256,
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
