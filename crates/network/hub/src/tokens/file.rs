//! The token file: TOML with a `[[token]]` section for each token, hashes only.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use toml::value::Datetime;

use super::{HubTokenDigest, TokenId};
use crate::{
    principal::{EnvironmentGlobs, GlobError, PrincipalName, Role, RoleSet},
    store::Timestamp,
};

/// Enough for more than ten thousand tokens.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// More than people create by hand; beyond that, use JWTs.
pub(super) const MAX_TOKENS: usize = 10_000;

const HEADER: &str = "\
# ActiveTokens of an exec-server hub. `exec-server hub token` writes this file; comments are not kept.
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

/// All tokens of a file, by hash.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenTable(HashMap<HubTokenDigest, Arc<TokenEntry>>);

impl TokenTable {
    pub(super) fn new(entries: Vec<TokenEntry>) -> Self {
        let by_digest = |entry: TokenEntry| (entry.digest, Arc::new(entry));
        Self(entries.into_iter().map(by_digest).collect())
    }

    pub(super) fn find(&self, token: &str) -> Option<&Arc<TokenEntry>> {
        self.0.get(&HubTokenDigest::of(token))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
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
