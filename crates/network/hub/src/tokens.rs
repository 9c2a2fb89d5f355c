//! Authentication by tokens of the token file and by signed JWTs.
//! Invariant: the token itself exists only where it is created and presented; the file, the hub's
//! memory and all logs contain hashes and ids.
//! Elsewhere: permissions (`principal`), signed requests of direct executors (`direct`).

mod file;
#[cfg(test)]
mod tests;

pub use self::file::{
    HubTokenFileError, NewToken, TokenEditError, TokenEntry, TokenEntryProblem, create, invite,
    list, revoke,
};

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use aws_lc_rs::{error::Unspecified, hmac, rand};
use base64_simd::URL_SAFE_NO_PAD;
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use exec_registry::api::SecretString;
use exec_transport::auth::{JwtRules, SecretTooShort, UnixSeconds};
use http::{HeaderMap, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use self::file::TokenTable;
use crate::{
    principal::{AuthEvidence, EnvironmentGlobs, Principal, PrincipalName, Role, RoleSet},
    store::{SigningKey, Timestamp, is_plain_id},
};

/// How often the file is checked: a revoked token is refused within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(400);

/// The currently valid tokens. Cheap to clone: all clones share the state.
#[derive(Clone, Debug)]
pub struct ActiveTokens(Arc<TokensShared>);

#[derive(Debug)]
struct TokensShared {
    path: PathBuf,
    table: RwLock<TokenTable>,
    last_read: Mutex<LastRead>,
}

#[derive(Debug)]
struct LastRead {
    stamp: Option<FileStamp>,
    health: TokenFileHealth,
}

/// Whether the tokens in use match the file.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum TokenFileHealth {
    /// The tokens match the file.
    Current,
    /// The file does not exist. No token is valid.
    Missing,
    /// The file is invalid, for this reason; the previous tokens remain valid.
    Stale(String),
}

impl ActiveTokens {
    /// Reads the file. A missing file has no tokens and may be created later. Blocks.
    ///
    /// # Errors
    /// Returns an error if the file exists but is invalid.
    pub fn open(path: &Path) -> Result<Self, HubTokenFileError> {
        let stamp = stamp(path);
        let (table, health) = match file::read(path) {
            Ok(entries) => (TokenTable::new(entries), TokenFileHealth::Current),
            Err(HubTokenFileError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                (TokenTable::default(), TokenFileHealth::Missing)
            }
            Err(error) => return Err(error),
        };
        Ok(Self(Arc::new(TokensShared {
            path: path.to_owned(),
            table: RwLock::new(table),
            last_read: Mutex::new(LastRead { stamp, health }),
        })))
    }

    /// Watches the file until the future is dropped.
    pub async fn watch(&self) {
        let mut interval = tokio::time::interval(CHECK_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let tokens = self.clone();
            // A check that panicked has changed nothing; the next one may succeed.
            drop(tokio::task::spawn_blocking(move || tokens.reload_if_changed()).await);
        }
    }

    /// Checks whether the file has changed, and reloads it. Blocks.
    ///
    /// A missing file takes effect when it is missing twice in a row: an editor that replaces the
    /// file leaves a moment without it.
    pub fn reload_if_changed(&self) {
        let stamp = stamp(&self.0.path);
        let mut last_read = self.last_read();
        if stamp == last_read.stamp {
            if stamp.is_none() && last_read.health != TokenFileHealth::Missing {
                self.put(TokenTable::default());
                last_read.health = TokenFileHealth::Missing;
                tracing::warn!(path = %self.0.path.display(), "token file is missing: no token is valid");
            }
            return;
        }
        last_read.stamp = stamp;
        if stamp.is_none() {
            return;
        }
        match file::read(&self.0.path) {
            Ok(entries) => {
                let table = TokenTable::new(entries);
                tracing::info!(tokens = table.len(), "reloaded the token file");
                self.put(table);
                last_read.health = TokenFileHealth::Current;
            }
            // Removed in between: the next check handles it.
            Err(HubTokenFileError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                last_read.stamp = None;
            }
            Err(error) => {
                tracing::warn!(%error, "token file is invalid: the previous tokens remain valid");
                last_read.health = TokenFileHealth::Stale(error.to_string());
            }
        }
    }

    /// Returns whether the tokens in use match the file.
    pub fn health(&self) -> TokenFileHealth {
        self.last_read().health.clone()
    }

    fn last_read(&self) -> MutexGuard<'_, LastRead> {
        let last_read = self.0.last_read.lock();
        last_read.unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a token, expired or not.
    fn find(&self, token: &str) -> Option<Arc<TokenEntry>> {
        self.table().find(token).cloned()
    }

    /// Finds an invite by its text, whether or not it was redeemed or has expired.
    pub(crate) fn find_invite(&self, invite: &str) -> Option<Arc<TokenEntry>> {
        self.table().invite(invite).cloned()
    }

    fn find_invite_by_id(&self, id: &TokenId) -> Option<Arc<TokenEntry>> {
        self.table().invite_by_id(id).cloned()
    }

    fn table(&self) -> RwLockReadGuard<'_, TokenTable> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, table: TokenTable) {
        *self.0.table.write().unwrap_or_else(PoisonError::into_inner) = table;
    }
}

/// Identifies a version of the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct FileStamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Returns `None` if the file is missing or inaccessible.
fn stamp(path: &Path) -> Option<FileStamp> {
    let metadata = fs::metadata(path).ok()?;
    Some(FileStamp {
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

/// Prefix of tokens, which secret scanners recognize.
const TOKEN_PREFIX: &str = "exh_";
/// Differs from [`TOKEN_PREFIX`], so that people recognise an invite.
const INVITE_PREFIX: &str = "exi_";

/// Generates a secret of 256 random bits after a prefix.
///
/// # Errors
/// Returns an error if the host provides no randomness.
pub(crate) fn random_secret(prefix: &str) -> Result<SecretString, Unspecified> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes)?;
    let text = URL_SAFE_NO_PAD.encode_to_string(bytes);
    Ok(SecretString::new(format!("{prefix}{text}")))
}

/// SHA-256 of a token, the only form that the hub stores.
///
/// Lookups by hash need not be constant-time: tokens have 256 random bits, so an attacker cannot
/// choose hashes close to an existing one.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
struct HubTokenDigest([u8; 32]);

impl HubTokenDigest {
    fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    fn to_hex(self) -> String {
        HEXLOWER.encode(&self.0)
    }

    /// Parses 64 hexadecimal digits.
    fn from_hex(hex: &str) -> Option<Self> {
        let digest = HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).ok()?;
        digest.try_into().ok().map(Self)
    }
}

impl fmt::Debug for HubTokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HubTokenDigest(..)")
    }
}

/// Identifies a token in lists and logs. Not secret.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct TokenId(String);

impl TokenId {
    /// Longest id.
    const MAX_BYTES: usize = 64;

    /// Validates an id. Returns `None` if it is empty, too long, or needs quoting.
    pub fn new(text: &str) -> Option<Self> {
        is_plain_id(text, Self::MAX_BYTES).then(|| Self(text.to_owned()))
    }

    /// Generates an id that is short enough to type.
    fn generate() -> Result<Self, Unspecified> {
        let mut bytes = [0; 5];
        rand::fill(&mut bytes)?;
        Ok(Self(HEXLOWER.encode(&bytes)))
    }

    /// Returns the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Derives the token of a redeemed invite from the hub's signing key, so that every node that has
/// the invite in its file accepts it without stored state. Revoking the invite revokes it.
#[derive(Clone, Debug)]
pub struct InviteTokenSigner(hmac::Key);

impl InviteTokenSigner {
    const PREFIX: &str = "exj_";
    /// Separates these signatures from other uses of the key.
    const DOMAIN: &[u8] = b"exec-hub/invited-token/v1\0";

    /// Creates a signer with the hub's key.
    pub fn new(key: &SigningKey) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()))
    }

    /// Returns the token of an invite.
    pub(crate) fn token(&self, invite: &TokenEntry) -> SecretString {
        let signature = hmac::sign(&self.0, &Self::message(invite));
        let text = URL_SAFE_NO_PAD.encode_to_string(signature.as_ref());
        SecretString::new(format!("{}{}.{text}", Self::PREFIX, invite.id))
    }

    /// Splits a token into the id of its invite and the signature.
    fn parse(token: &str) -> Option<(TokenId, Vec<u8>)> {
        let (id, signature) = token.strip_prefix(Self::PREFIX)?.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode_to_vec(signature.as_bytes()).ok()?;
        Some((TokenId::new(id)?, signature))
    }

    fn is_valid(&self, invite: &TokenEntry, signature: &[u8]) -> bool {
        hmac::verify(&self.0, &Self::message(invite), signature).is_ok()
    }

    fn message(invite: &TokenEntry) -> Vec<u8> {
        // The length of a hash is fixed, so the encoding is unambiguous.
        [
            Self::DOMAIN,
            &invite.digest.0,
            invite.id.as_str().as_bytes(),
        ]
        .concat()
    }
}

/// Authenticates requests by their `Authorization` header. Every request needs a token.
#[derive(Clone, Debug)]
pub struct TokenAuthenticator {
    tokens: ActiveTokens,
    jwt: Option<JwtAuthority>,
    invite_signer: Option<InviteTokenSigner>,
}

impl TokenAuthenticator {
    /// Creates an authenticator from tokens and, optionally, a JWT authority.
    pub fn new(tokens: ActiveTokens, jwt: Option<JwtAuthority>) -> Self {
        Self {
            tokens,
            jwt,
            invite_signer: None,
        }
    }

    /// Also accepts tokens of redeemed invites.
    #[must_use]
    pub fn with_invites(self, signer: InviteTokenSigner) -> Self {
        Self {
            invite_signer: Some(signer),
            ..self
        }
    }

    /// Authenticates a request by its `Authorization: Bearer` header.
    ///
    /// # Errors
    /// Returns an error if the header is missing, duplicated, or its token is invalid.
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Principal, AuthenticateError> {
        let token = bearer_token(headers)?;
        let entry = self.tokens.find(token);
        if let Some(entry) = entry.or_else(|| self.find_redeemed_invite(token)) {
            if entry.expires_at.is_some_and(|end| end <= now) {
                return Err(AuthenticateError::Expired);
            }
            return Ok(Principal {
                name: entry.principal.clone(),
                roles: entry.roles.clone(),
                environments: entry.environments.clone(),
                evidence: AuthEvidence::Token(entry.id.to_string()),
            });
        }
        match &self.jwt {
            // Our tokens contain no dots; a JWT contains two.
            Some(jwt) if token.matches('.').count() == 2 => Ok(jwt.check(token, now)?),
            Some(_) | None => Err(AuthenticateError::Unknown),
        }
    }

    /// Finds the invite that was redeemed for a token.
    fn find_redeemed_invite(&self, token: &str) -> Option<Arc<TokenEntry>> {
        let signer = self.invite_signer.as_ref()?;
        let (id, signature) = InviteTokenSigner::parse(token)?;
        let invite = self.tokens.find_invite_by_id(&id)?;
        signer.is_valid(&invite, &signature).then_some(invite)
    }

    /// Returns the tokens in use.
    pub fn tokens(&self) -> &ActiveTokens {
        &self.tokens
    }
}

fn bearer_token(headers: &HeaderMap) -> Result<&str, AuthenticateError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(AuthenticateError::Missing)?;
    if values.next().is_some() {
        return Err(AuthenticateError::Header);
    }
    let value = value.to_str().map_err(|_| AuthenticateError::Header)?;
    let (scheme, token) = value.split_once(' ').ok_or(AuthenticateError::Header)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(AuthenticateError::Header);
    }
    Ok(token)
}

/// Peer: why authentication failed. The error does not repeat the token.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthenticateError {
    /// The `Authorization` header is missing.
    #[error("missing bearer token")]
    Missing,
    /// The header is not `Bearer` and a token, or it is duplicated.
    #[error("invalid authorization header")]
    Header,
    /// The token is unknown.
    #[error("unknown token")]
    Unknown,
    /// The token has expired.
    #[error("expired token")]
    Expired,
    /// See the source.
    #[error(transparent)]
    Jwt(#[from] JwtError),
}

/// Accepted clock difference between the hub and the signer.
const JWT_SKEW: Duration = Duration::from_secs(30);
/// Longest accepted JWT: sixty-four globs and a few names fit easily.
const MAX_JWT_BYTES: usize = 8 << 10;

/// Accepts JWTs signed with the shared secret.
#[derive(Clone, Debug)]
pub struct JwtAuthority(JwtRules);

impl JwtAuthority {
    /// Creates an authority from the secret and the required issuer and audience, if any.
    ///
    /// # Errors
    /// Returns an error if the secret has less than 32 bytes after trimming whitespace.
    pub fn new(
        secret: &[u8],
        issuer: Option<String>,
        audience: Option<String>,
    ) -> Result<Self, SecretTooShort> {
        JwtRules::new(secret, issuer, audience, JWT_SKEW).map(Self)
    }

    /// Verifies a token.
    ///
    /// # Errors
    /// Returns an error if the token is invalid or its claims do not describe a principal.
    pub(crate) fn check(&self, token: &str, now: Timestamp) -> Result<Principal, JwtError> {
        if token.len() > MAX_JWT_BYTES {
            return Err(JwtError::TooLarge);
        }
        let claims = self.0.verify(token, UnixSeconds(now.seconds()));
        let claims = claims.map_err(|_| JwtError::Refused)?;
        let claims: HubJwtClaims =
            serde_json::from_str(claims.get()).map_err(|_| JwtError::Claims)?;
        // An absent list selects the default. An empty list probably meant to allow nothing.
        if claims.roles.as_ref().is_some_and(Vec::is_empty)
            || claims.environments.as_ref().is_some_and(Vec::is_empty)
        {
            return Err(JwtError::Claims);
        }
        Ok(Principal {
            name: claims.sub,
            roles: claims.roles.map_or_else(RoleSet::default, RoleSet::new),
            environments: EnvironmentGlobs::new(claims.environments.unwrap_or_default())
                .map_err(|_| JwtError::Claims)?,
            evidence: AuthEvidence::Jwt,
        })
    }
}

/// Peer: why a JWT is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    /// The JWT is too long.
    #[error("JWT is longer than {MAX_JWT_BYTES} bytes")]
    TooLarge,
    /// Not signed with HS256 and the secret, expired, or for another issuer or audience.
    #[error("JWT is not valid here")]
    Refused,
    /// `sub`, `roles` or `environments` are invalid.
    #[error("JWT claims have an invalid principal, role or environment")]
    Claims,
}

/// The claims that are used besides those that [`JwtRules`] checks. Others are ignored.
#[derive(Deserialize)]
struct HubJwtClaims {
    sub: PrincipalName,
    #[serde(default)]
    roles: Option<Vec<Role>>,
    #[serde(default)]
    environments: Option<Vec<String>>,
}
