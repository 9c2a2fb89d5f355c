//! The token file: TOML, one `[[token]]` each, hashes only.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use toml::value::Datetime;

use super::{Digest256, TokenId};
use crate::{
    principal::{Environments, GlobError, PrincipalName, Role, Roles},
    store::Timestamp,
};

/// More than ten thousand tokens need.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// More than people hand out by hand; beyond, JWTs are the way.
pub(super) const MAX_TOKENS: usize = 10_000;

const HEADER: &str = "\
# Tokens of an exec-server hub. `exec-server hub token` writes this file; comments are not kept.
# Only SHA-256 hashes are here: a token is shown once, when it is made.
";

/// A token, as far as anybody may know it.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Its id.
    pub id: TokenId,
    /// Whose it is.
    pub principal: PrincipalName,
    /// What it allows.
    pub roles: Roles,
    /// Which environments it names.
    #[serde(serialize_with = "globs")]
    pub environments: Environments,
    /// When it was made.
    pub created_at: Timestamp,
    /// The first moment at which it is worth nothing. `None`: it does not expire.
    pub expires_at: Option<Timestamp>,
    #[serde(skip)]
    pub(super) digest: Digest256,
}

/// Serde hands over a reference to the field.
fn globs<S: serde::Serializer>(
    environments: &Environments,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    environments.globs().serialize(serializer)
}

/// All tokens of a file, by their hashes.
#[derive(Clone, Debug, Default)]
pub(super) struct Table(HashMap<Digest256, Arc<Entry>>);

impl Table {
    pub(super) fn new(entries: Vec<Entry>) -> Self {
        let by_digest = |entry: Entry| (entry.digest, Arc::new(entry));
        Self(entries.into_iter().map(by_digest).collect())
    }

    pub(super) fn find(&self, token: &str) -> Option<&Arc<Entry>> {
        self.0.get(&Digest256::of(token))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Why a token file cannot be used. No content of it is repeated: it might be a token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Host: it cannot be read.
    #[error("cannot read the token file {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Caller: it is larger than any token file.
    #[error("the token file {path} is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Caller: it is no TOML, or has other members than a token file.
    #[error("the token file {path} is no token file: line {line}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// Caller: a token in it is impossible.
    #[error("token {index} of the token file {path} {problem}")]
    Entry {
        /// The file.
        path: PathBuf,
        /// Which, from 1.
        index: usize,
        /// What is wrong.
        problem: EntryProblem,
    },
    /// Caller: too many.
    #[error("the token file {path} has more than {MAX_TOKENS} tokens")]
    TooMany {
        /// The file.
        path: PathBuf,
    },
}

/// What is wrong with one token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryProblem {
    /// Caller: `id`.
    #[error("has no usable id")]
    Id,
    /// Caller: `id` or `sha256` again.
    #[error("repeats the id or the hash of another")]
    Repeated,
    /// Caller: `sha256`.
    #[error("has no SHA-256 of 64 hexadecimal digits")]
    Digest,
    /// Caller: `roles`.
    #[error("has no roles")]
    Roles,
    /// Caller: `environments`.
    #[error("has unusable environments: {0}")]
    Environments(GlobError),
    /// Caller: `created_at` or `expires_at`.
    #[error("has a time without date, time of day or offset; write 2030-01-31T00:00:00Z")]
    Time,
}

/// Reads a file. One that is not there is an error like any other.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>, ReadError> {
    let io = |source| ReadError::Io {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = File::open(path).map_err(io)?;
    let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    if read.map_err(io)? as u64 > MAX_FILE_BYTES {
        return Err(ReadError::TooLarge {
            path: path.to_owned(),
        });
    }
    parse(&text, path)
}

pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<Entry>, ReadError> {
    let document: Document = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        ReadError::Syntax {
            path: path.to_owned(),
            line: before.map_or(0, |before| before.matches('\n').count()) + 1,
            message: error.message().to_owned(),
        }
    })?;
    if document.token.len() > MAX_TOKENS {
        return Err(ReadError::TooMany {
            path: path.to_owned(),
        });
    }
    let (mut ids, mut digests) = (HashSet::new(), HashSet::new());
    let rows = document.token.into_iter().enumerate();
    rows.map(|(index, row)| {
        let entry = row.check().and_then(|entry| {
            let fresh = ids.insert(entry.id.clone()) && digests.insert(entry.digest);
            fresh.then_some(entry).ok_or(EntryProblem::Repeated)
        });
        entry.map_err(|problem| ReadError::Entry {
            path: path.to_owned(),
            index: index + 1,
            problem,
        })
    })
    .collect()
}

/// Writes a file's text.
pub(super) fn text(entries: &[Entry]) -> Result<String, toml::ser::Error> {
    let token = entries.iter().map(Row::of).collect();
    let body = toml::to_string(&Document { token })?;
    Ok(format!("{HEADER}\n{body}"))
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    token: Vec<Row>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Row {
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

impl Row {
    fn of(entry: &Entry) -> Self {
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

    fn check(self) -> Result<Entry, EntryProblem> {
        if self.roles.is_empty() {
            return Err(EntryProblem::Roles);
        }
        Ok(Entry {
            id: TokenId::new(&self.id).ok_or(EntryProblem::Id)?,
            principal: self.principal,
            roles: Roles::new(self.roles),
            environments: Environments::new(self.environments)
                .map_err(EntryProblem::Environments)?,
            created_at: timestamp(self.created_at)?,
            expires_at: self.expires_at.map(timestamp).transpose()?,
            digest: Digest256::from_hex(&self.sha256).ok_or(EntryProblem::Digest)?,
        })
    }
}

fn timestamp(datetime: Datetime) -> Result<Timestamp, EntryProblem> {
    Timestamp::parse_rfc3339(&datetime.to_string()).ok_or(EntryProblem::Time)
}

/// To the second: people read it. What no date can say counts as the last that can.
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
