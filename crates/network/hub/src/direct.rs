//! Direct executors: they dial the hub and speak JSON-RPC on the websocket, without relay and
//! Noise.
//!
//! An executor registers, opens its websocket and waits. A harness opens `GET
//! /direct/<environment>` with its token, and the hub joins the two message by message, one harness
//! at a time. When either ends, the other is closed, and the executor dials again.
//! **This path is not end-to-end encrypted**: the hub can read every message. TLS protects the two
//! connections. Use the relay for end-to-end encryption.
//! Invariant: the newer of two executors wins, and the older one is closed. The store decides
//! ownership; the table here only holds websockets and registrations, so losing it costs a
//! reconnect. Executor and harness must connect to the same node.
//! Instead of a token, executors may sign requests with one of the [`AccessKeys`].

mod slot_table;
#[cfg(test)]
mod tests;
mod upgrade;

pub(crate) use self::upgrade::DirectUpgrade;

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use exec_registry::api::{
    DIRECT_TRANSPORT, DirectRegisterRequest, DirectRegisterResponse, SecretString,
    sigv4::{self, SignedRequest, VerifyError},
};
use http::{Response, StatusCode, request::Parts};
use http_body_util::Full;
use serde::Deserialize;
use tokio::sync::watch;

use self::slot_table::{SlotTable, SlotTableFull};
use crate::{
    audit::AuditEvent,
    principal::{
        AuthEvidence, EnvironmentGlobs, GlobError, Principal, PrincipalName, Role, RoleSet,
    },
    registry::{HttpRefusal, HubServices, RegistryCall, RequestBody, RequestTime, ok},
    store::{ClaimError, EnvironmentId, RegistrationId, Timestamp},
};

/// Registers direct executors and joins them with harnesses.
#[derive(Debug)]
pub struct DirectService {
    services: HubServices,
    keys: Option<AccessKeys>,
    table: Mutex<SlotTable>,
    /// Changes when an executor becomes available or is joined, so that waiting harnesses check
    /// again.
    arrivals: watch::Sender<()>,
}

/// Status of a direct environment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DirectStatus {
    /// Current registration.
    pub registration: RegistrationId,
    /// Whether the executor is connected.
    pub online: bool,
}

impl DirectService {
    /// Creates the service. Without keys, only tokens are accepted.
    pub fn new(services: HubServices, keys: Option<AccessKeys>) -> Self {
        Self {
            services,
            keys,
            table: Mutex::default(),
            arrivals: watch::Sender::new(()),
        }
    }

    /// Returns what this process knows about an environment of `owner`. `None`: not registered here
    /// since the start, or evicted from the table.
    pub fn find(&self, environment: &EnvironmentId, owner: &PrincipalName) -> Option<DirectStatus> {
        let table = self.table();
        let entry = table.get(environment, owner)?;
        Some(DirectStatus {
            registration: entry.registration.clone(),
            online: entry.is_online(),
        })
    }

    /// Removes a registration and closes its websockets. Returns whether it existed.
    pub fn remove(&self, environment: &EnvironmentId) -> bool {
        self.table().remove(environment)
    }

    /// Never held across an `.await`.
    fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_arrival(&self) {
        self.arrivals.send_replace(());
    }
}

impl DirectService {
    pub(crate) async fn register(
        &self,
        call: &RegistryCall,
        principal: Principal,
        body_bytes: &RequestBody,
        event: &mut AuditEvent,
    ) -> Result<Response<Full<Bytes>>, HttpRefusal> {
        let environment = &call.environment;
        let request: DirectRegisterRequest = body_bytes.parse()?;
        if request.transport != DIRECT_TRANSPORT {
            let message = format!("the only supported direct transport is {DIRECT_TRANSPORT}");
            let status = StatusCode::BAD_REQUEST;
            return Err(HttpRefusal::new(status, "unsupported_transport", message));
        }
        let websocket = call.websocket(&self.services.address)?;
        if !principal.may_claim(environment) {
            return Err(ClaimError::Foreign.into());
        }
        // The store decides atomically which of two concurrent claims wins, on any nodes.
        let store = &self.services.store;
        store.claim(environment, &principal.name).await?;
        let registration = RegistrationId::generate();
        self.table()
            .register(environment.clone(), principal.name, registration.clone())
            .map_err(|SlotTableFull| {
                let message = "the hub has reached its limit of direct environments";
                HttpRefusal::new(StatusCode::FORBIDDEN, "environment_limit", message)
            })?;
        event.registration = Some(registration.clone());
        let url = format!("{websocket}/direct/{environment}/executor?registration={registration}");
        Ok(ok(&DirectRegisterResponse {
            environment_id: environment.to_string(),
            transport: DIRECT_TRANSPORT.to_owned(),
            registration_id: registration.to_string(),
            url: SecretString::new(url),
        }))
    }
}

impl DirectService {
    /// Authenticates a caller as far as the request head allows. `None`: the signature names a known
    /// access key. It covers the body, which must be read before verifying.
    pub(crate) fn authenticate_head(
        &self,
        parts: &Parts,
        moment: RequestTime,
    ) -> Result<Option<Principal>, HttpRefusal> {
        if !sigv4::is_signed(&parts.headers) {
            let known = self.services.gate.authenticate(&parts.headers, moment)?;
            return Ok(Some(known));
        }
        let keys = self.keys()?;
        let id = sigv4::claimed_key_id(&parts.headers)
            .map_err(|error| refuse_signature(&error.to_string()))?;
        if !keys.contains(id) {
            return Err(refuse_signature(
                "signature does not name an access key of this hub",
            ));
        }
        Ok(None)
    }

    /// Completes authentication once the body has been read.
    pub(crate) fn authenticate_body(
        &self,
        known: Option<Principal>,
        parts: &Parts,
        body: &[u8],
        moment: RequestTime,
    ) -> Result<Principal, HttpRefusal> {
        known.map_or_else(|| self.verify(parts, body, moment), Ok)
    }

    /// Authenticates a request without body.
    fn authenticate_upgrade(
        &self,
        parts: &Parts,
        moment: RequestTime,
    ) -> Result<Principal, HttpRefusal> {
        let known = self.authenticate_head(parts, moment)?;
        self.authenticate_body(known, parts, &[], moment)
    }

    fn verify(
        &self,
        parts: &Parts,
        body: &[u8],
        moment: RequestTime,
    ) -> Result<Principal, HttpRefusal> {
        let request = SignedRequest {
            method: parts.method.as_str(),
            path: parts.uri.path(),
            query: parts.uri.query().unwrap_or_default(),
            headers: &parts.headers,
            body,
        };
        self.keys()?
            .verify(request, moment.at)
            .map_err(|error| refuse_signature(&error.to_string()))
    }

    fn keys(&self) -> Result<&AccessKeys, HttpRefusal> {
        let keys = self.keys.as_ref();
        keys.ok_or_else(|| refuse_signature("this hub has no access keys"))
    }
}

fn refuse_signature(message: &str) -> HttpRefusal {
    HttpRefusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}

/// Enough for more than a thousand keys.
const MAX_KEY_FILE_BYTES: u64 = 1 << 20;
/// Default service name that executors sign for.
const DEFAULT_SERVICE: &str = "execute-api";

/// Access keys and their principals, from a TOML file read at start-up.
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
    keys: HashMap<String, (SecretString, Principal)>,
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
        let read = file.take(MAX_KEY_FILE_BYTES + 1).read_to_string(&mut text);
        if read.map_err(io)? as u64 > MAX_KEY_FILE_BYTES {
            return Err(AccessKeysError::TooLarge);
        }
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, AccessKeysError> {
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
            let entry = (SecretString::new(row.secret), principal);
            if keys.insert(row.id, entry).is_some() {
                return Err(AccessKeysError::Repeated { index });
            }
        }
        Ok(Self {
            service: document.service,
            keys,
        })
    }

    /// Returns whether a key of this id exists.
    fn contains(&self, id: &str) -> bool {
        self.keys.contains_key(id)
    }

    /// Verifies a signed request and returns its principal.
    fn verify(&self, request: SignedRequest<'_>, now: Timestamp) -> Result<Principal, VerifyError> {
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
    #[error("access key file exceeds {MAX_KEY_FILE_BYTES} bytes")]
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
