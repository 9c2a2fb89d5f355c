//! Access keys that may sign requests, from a TOML file read at start-up.

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
    principal::{
        AuthEvidence, EnvironmentGlobs, GlobError, Principal, PrincipalName, Role, RoleSet,
    },
    store::Timestamp,
};

/// Enough for more than a thousand keys.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Default service name that executors sign for.
const DEFAULT_SERVICE: &str = "execute-api";

/// Access keys and their principals.
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
    /// Reads the file. Blocks.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is malformed. The error does not repeat its
    /// content.
    pub fn read(path: &Path) -> Result<Self, AccessKeysError> {
        let io = |source| AccessKeysError::Io {
            path: path.to_owned(),
            source,
        };
        let mut text = String::new();
        let file = File::open(path).map_err(io)?;
        let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
        if read.map_err(io)? as u64 > MAX_FILE_BYTES {
            return Err(AccessKeysError::TooLarge);
        }
        Self::parse(&text)
    }

    pub(super) fn parse(text: &str) -> Result<Self, AccessKeysError> {
        let document: AccessKeyFile = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            AccessKeysError::Syntax {
                line: before.map_or(0, |before| before.matches('\n').count()) + 1,
            }
        })?;
        let mut keys = HashMap::new();
        for (index, row) in document.key.into_iter().enumerate() {
            let index = index + 1;
            if row.id.is_empty() || row.secret.is_empty() {
                return Err(AccessKeysError::Empty { index });
            }
            let principal = Principal {
                name: row.principal,
                roles: RoleSet::new([Role::Executor]),
                environments: EnvironmentGlobs::new(row.environments)
                    .map_err(|source| AccessKeysError::Environments { index, source })?,
                evidence: AuthEvidence::AccessKey(row.id.clone()),
            };
            let entry = (SecretKey::new(row.secret), principal);
            if keys.insert(row.id, entry).is_some() {
                return Err(AccessKeysError::Repeated { index });
            }
        }
        Ok(Self {
            service: document.service,
            keys,
        })
    }

    /// Returns whether a signature names one of the keys. This does not verify the signature.
    pub(super) fn are_named_by(&self, authorization: &HeaderValue) -> bool {
        let text = authorization.to_str().unwrap_or_default();
        let credential = text.split_once("Credential=").map(|(_, rest)| rest);
        let id = credential.and_then(|credential| credential.split('/').next());
        id.is_some_and(|id| self.keys.contains_key(id))
    }

    /// Verifies a signed request and returns its principal.
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
struct AccessKeyFile {
    #[serde(default = "default_service")]
    service: String,
    #[serde(default)]
    key: Vec<AccessKeyRow>,
}

fn default_service() -> String {
    DEFAULT_SERVICE.to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessKeyRow {
    id: String,
    secret: String,
    principal: PrincipalName,
    #[serde(default)]
    environments: Vec<String>,
}

/// Why the access keys cannot be used. Errors never repeat file content, which is secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessKeysError {
    /// Host: the file cannot be read.
    #[error("failed to read the access keys {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// Caller: the file is too large.
    #[error("access key file exceeds {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// Caller: the file is not valid TOML or has unknown members.
    #[error("invalid access key file: see line {line}")]
    Syntax {
        /// Line number, from 1.
        line: usize,
    },
    /// Caller: a key has an empty id or secret.
    #[error("access key {index} has an empty id or secret")]
    Empty {
        /// Number of the key, from 1.
        index: usize,
    },
    /// Caller: two keys have the same id.
    #[error("access key {index} has the id of another key")]
    Repeated {
        /// Number of the key, from 1.
        index: usize,
    },
    /// Caller: the environment globs are invalid.
    #[error("access key {index} has invalid environment globs")]
    Environments {
        /// Number of the key, from 1.
        index: usize,
        /// The glob error.
        source: GlobError,
    },
}
