//! Access keys that may sign requests: a TOML file, read at the start.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use exec_registry::api::sigv4::{self, SecretKey, SignedRequest, VerifyError};
use http::HeaderValue;
use serde::Deserialize;

use crate::{
    principal::{Environments, Evidence, GlobError, Principal, PrincipalName, Role, Roles},
    store::Timestamp,
};

/// More than a thousand keys need.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// What executors sign for unless they are told otherwise.
const DEFAULT_SERVICE: &str = "execute-api";

/// Who may sign requests, with what.
///
/// ```toml
/// service = "execute-api"     # the default
/// [[key]]
/// id = "AKIDEXAMPLE"
/// secret = "..."
/// principal = "build-farm"
/// environments = ["build-*"]  # optional, as for tokens
/// ```
#[derive(Clone)]
pub struct AccessKeys {
    service: String,
    keys: HashMap<String, (SecretKey, Principal)>,
}

impl AccessKeys {
    /// Reads a file. Blocks.
    ///
    /// # Errors
    /// When it cannot be read, or is no such file. Its content is not repeated.
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let io = |source| KeysError::Io {
            path: path.to_owned(),
            source,
        };
        let mut text = String::new();
        let file = File::open(path).map_err(io)?;
        let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
        if read.map_err(io)? as u64 > MAX_FILE_BYTES {
            return Err(KeysError::TooLarge);
        }
        Self::parse(&text)
    }

    pub(super) fn parse(text: &str) -> Result<Self, KeysError> {
        let document: Document = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            KeysError::Syntax {
                line: before.map_or(0, |before| before.matches('\n').count()) + 1,
            }
        })?;
        let mut keys = HashMap::new();
        for (index, row) in document.key.into_iter().enumerate() {
            let index = index + 1;
            if row.id.is_empty() || row.secret.is_empty() {
                return Err(KeysError::Empty { index });
            }
            let principal = Principal {
                name: row.principal,
                roles: Roles::new([Role::Executor]),
                environments: Environments::new(row.environments)
                    .map_err(|source| KeysError::Environments { index, source })?,
                evidence: Evidence::AccessKey(row.id.clone()),
            };
            let entry = (SecretKey::new(row.secret), principal);
            if keys.insert(row.id, entry).is_some() {
                return Err(KeysError::Repeated { index });
            }
        }
        Ok(Self {
            service: document.service,
            keys,
        })
    }

    /// Whether a signature names one of the keys. That says nothing about who made it.
    pub(super) fn are_named_by(&self, authorization: &HeaderValue) -> bool {
        let text = authorization.to_str().unwrap_or_default();
        let credential = text.split_once("Credential=").map(|(_, rest)| rest);
        let id = credential.and_then(|credential| credential.split('/').next());
        id.is_some_and(|id| self.keys.contains_key(id))
    }

    /// Finds out who signed a request.
    pub(super) fn verify(
        &self,
        request: SignedRequest<'_>,
        now: Timestamp,
    ) -> Result<Principal, VerifyError> {
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_millis(now.millis());
        let secret = |id: &str| self.keys.get(id).map(|(secret, _)| secret.clone());
        let id = sigv4::verify(
            request,
            &self.service,
            &sigv4::SigV4Timestamp::new(at),
            secret,
        )?;
        let known = self.keys.get(&id).ok_or(VerifyError::Signature)?;
        Ok(known.1.clone())
    }
}

impl fmt::Debug for AccessKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKeys")
            .field("service", &self.service)
            .field("keys", &self.keys.len())
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default = "default_service")]
    service: String,
    #[serde(default)]
    key: Vec<Row>,
}

fn default_service() -> String {
    DEFAULT_SERVICE.to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    secret: String,
    principal: PrincipalName,
    #[serde(default)]
    environments: Vec<String>,
}

/// Why the access keys cannot be used. Nothing of the file is repeated: it holds secrets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// Host: it cannot be read.
    #[error("cannot read the access keys {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Caller: it is larger than any such file.
    #[error("the access keys have more than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// Caller: it is no TOML, or has other members.
    #[error("the access keys are no such file: see line {line}")]
    Syntax {
        /// Where, from 1.
        line: usize,
    },
    /// Caller: a key without id or secret.
    #[error("access key {index} has no id or no secret")]
    Empty {
        /// Which, from 1.
        index: usize,
    },
    /// Caller: an id again.
    #[error("access key {index} repeats the id of another")]
    Repeated {
        /// Which, from 1.
        index: usize,
    },
    /// Caller: unusable globs.
    #[error("access key {index} has unusable environments")]
    Environments {
        /// Which, from 1.
        index: usize,
        /// What is wrong.
        source: GlobError,
    },
}
