//! Agent identities: agents with their own key, vouched for by a JWT.
//!
//! The JWT contains the agent's private key. It is verified, then a task is registered once, and
//! each request carries a fresh assertion signed with the key. Elsewhere: where the JWT comes from.

#[cfg(test)]
mod tests;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use aws_lc_rs::{
    encoding::{AsBigEndian, Curve25519SeedBin},
    signature::Ed25519KeyPair,
};
use base64_simd::{STANDARD, URL_SAFE_NO_PAD};
use crypto_box::SecretKey;
use futures_util::future::{BoxFuture, FutureExt, ready};
use http::{HeaderMap, HeaderValue, header};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, errors::ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha512};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::sleep;
use url::Url;

use super::{AccountId, CredentialError, Credentials, SecretScope, SecretScopeError, add_fedramp};
use crate::{
    api::{SecretString, read_object},
    backoff::RegistryBackoff,
    http::{BaseUrl, ExchangeError, HttpCall, HttpClient},
};

/// Inputs of an agent identity.
#[derive(Clone, Debug)]
pub struct AgentIdentitySettings {
    /// The JWT.
    pub token: SecretString,
    /// Base URL of the keys that verify the JWT.
    pub keys: BaseUrl,
    /// Base URL for task registration.
    pub tasks: BaseUrl,
}

/// Authenticates as an agent.
pub struct AgentIdentity {
    runtime_id: String,
    key: AgentKey,
    task_id: String,
    account: AccountId,
    is_fedramp: bool,
}

impl AgentIdentity {
    /// Verifies the token and registers a task.
    ///
    /// # Errors
    /// Returns an error if the token is not accepted or the task cannot be registered.
    pub async fn establish(
        settings: &AgentIdentitySettings,
        http: &HttpClient,
    ) -> Result<Self, AgentIdentityError> {
        let claims = verify_token(&settings.token, &settings.keys, http).await?;
        let key = AgentKey::read(&claims.agent_private_key)?;
        let account =
            AccountId::new(&claims.account_id).map_err(|_| AgentIdentityError::NotAccepted)?;
        let task_id = register_task(&claims.agent_runtime_id, &key, &settings.tasks, http).await?;
        Ok(Self {
            runtime_id: claims.agent_runtime_id,
            key,
            task_id,
            account,
            is_fedramp: claims.chatgpt_account_is_fedramp,
        })
    }

    fn headers_at(&self, moment: SystemTime) -> Option<HeaderMap> {
        let timestamp = rfc3339(moment);
        let task_id = self.task_id.as_str();
        let signed = format!("{}:{task_id}:{timestamp}", self.runtime_id);
        let assertion = AgentAssertion {
            agent_runtime_id: &self.runtime_id,
            signature: &self.key.sign(&signed)?,
            task_id,
            timestamp: &timestamp,
        };
        let assertion = serde_json::to_vec(&assertion).ok()?;
        let assertion = URL_SAFE_NO_PAD.encode_to_string(assertion);
        let mut value = HeaderValue::try_from(format!("AgentAssertion {assertion}")).ok()?;
        value.set_sensitive(true);
        let mut headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
        self.account.add_to(&mut headers);
        if self.is_fedramp {
            add_fedramp(&mut headers);
        }
        Some(headers)
    }
}

impl Credentials for AgentIdentity {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        let headers = self.headers_at(SystemTime::now());
        let failed = || CredentialError::Sign("the agent's key failed to sign".to_owned());
        ready(headers.ok_or_else(failed)).boxed()
    }

    fn secret_scope(&self) -> SecretScope {
        SecretScope::Anywhere
    }
}

impl fmt::Debug for AgentIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentIdentity")
            .field("runtime_id", &self.runtime_id)
            .finish_non_exhaustive()
    }
}

/// Body of an assertion. Members are serialized in this order.
#[derive(Serialize)]
struct AgentAssertion<'a> {
    agent_runtime_id: &'a str,
    signature: &'a str,
    task_id: &'a str,
    timestamp: &'a str,
}

/// Why an agent identity cannot be used. The error contains neither token nor key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentIdentityError {
    /// Caller: the text is not an RS256 JWT with a key id.
    #[error("agent identity token is malformed")]
    Token,
    /// Caller: the connection to the issuer would not be encrypted.
    #[error(transparent)]
    SecretScope(#[from] SecretScopeError),
    /// Caller: an issuer URL cannot be extended.
    #[error("URL of the agent identity's issuer is malformed")]
    Url,
    /// Transport: the issuer did not respond.
    #[error("issuer of the agent identity did not respond")]
    Exchange(#[from] ExchangeError),
    /// Peer: the issuer did not return its keys.
    #[error("issuer of the agent identity refused to return its keys: {0}")]
    KeysRefused(u16),
    /// Peer: the issuer's keys are malformed.
    #[error("invalid keys from the issuer of the agent identity")]
    Keys,
    /// Caller: the token was signed with a key that the issuer does not list.
    #[error("agent identity token was signed with an unknown key")]
    UnknownKey,
    /// Caller: the token has expired.
    #[error("agent identity token has expired")]
    Expired,
    /// Caller: signature, issuer, audience or claims of the token are invalid.
    #[error("agent identity token is not accepted")]
    NotAccepted,
    /// Peer: the token does not contain a valid private key.
    #[error("agent identity token does not contain an Ed25519 key")]
    PrivateKey,
    /// Peer: the issuer refused to register the task.
    #[error("failed to register the agent's task: {0}")]
    TaskRefused(u16),
    /// Peer: the task id in the response is invalid.
    #[error("invalid task id from the issuer of the agent identity")]
    TaskId,
}

const ISSUER: &str = "https://chatgpt.com/codex-backend/agent-identity";
const AUDIENCE: &str = "codex-app-server";
/// Longest key set. One key takes about half a kilobyte.
const MAX_KEYS_BYTES: usize = 256 << 10;

/// Claims of the token. All but the email address are required.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "required in a valid token, but not used")]
struct AgentClaims {
    iat: Value,
    agent_runtime_id: String,
    agent_private_key: SecretString,
    account_id: String,
    chatgpt_user_id: String,
    #[serde(default)]
    email: Option<String>,
    plan_type: Value,
    chatgpt_account_is_fedramp: bool,
}

/// Fetches the issuer's keys and verifies the token.
async fn verify_token(
    token: &SecretString,
    issuer: &BaseUrl,
    http: &HttpClient,
) -> Result<AgentClaims, AgentIdentityError> {
    let header = decode_header(token.expose()).map_err(|_| AgentIdentityError::Token)?;
    let (Algorithm::RS256, Some(id)) = (header.alg, header.kid) else {
        return Err(AgentIdentityError::Token);
    };
    let keys = fetch_keys(issuer, http).await?;
    let key = find_key(&keys, &id)?;
    let mut validation = Validation::new(Algorithm::RS256);
    validation.set_issuer(&[ISSUER]);
    validation.set_audience(&[AUDIENCE]);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    let decoded = decode::<AgentClaims>(token.expose(), &key, &validation);
    match decoded.map_err(jsonwebtoken::errors::Error::into_kind) {
        Ok(data) => Ok(data.claims),
        Err(ErrorKind::ExpiredSignature) => Err(AgentIdentityError::Expired),
        Err(_) => Err(AgentIdentityError::NotAccepted),
    }
}

async fn fetch_keys(
    issuer: &BaseUrl,
    http: &HttpClient,
) -> Result<IssuerKeySet, AgentIdentityError> {
    SecretScope::Private.admit(issuer.url())?;
    let path = if issuer.to_string().contains("/backend-api") {
        "wham/agent-identities/jwks"
    } else {
        "agent-identities/jwks"
    };
    let url = issuer.join(path).map_err(|_| AgentIdentityError::Url)?;
    let json = HeaderValue::from_static("application/json");
    let call = HttpCall {
        limit: MAX_KEYS_BYTES,
        ..HttpCall::get(url, HeaderMap::from_iter([(header::ACCEPT, json)]))
    };
    let reply = http.send(call).await?;
    if !reply.status.is_success() {
        return Err(AgentIdentityError::KeysRefused(reply.status.as_u16()));
    }
    read_object(&reply.body).map_err(|_| AgentIdentityError::Keys)
}

/// Finds a key by id. Keys of other types are ignored, because key sets mix them.
fn find_key(keys: &IssuerKeySet, id: &str) -> Result<DecodingKey, AgentIdentityError> {
    let named = |key: &&Value| key.get("kid").and_then(Value::as_str) == Some(id);
    let key = keys.keys.iter().find(named);
    let key = key.ok_or(AgentIdentityError::UnknownKey)?;
    let key = RsaKey::deserialize(key).map_err(|_| AgentIdentityError::Keys)?;
    if key.kty != "RSA" {
        return Err(AgentIdentityError::Keys);
    }
    DecodingKey::from_rsa_components(&key.n, &key.e).map_err(|_| AgentIdentityError::Keys)
}

#[derive(Debug, Deserialize)]
struct IssuerKeySet {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct RsaKey {
    kty: String,
    n: String,
    e: String,
}

/// The Ed25519 key of an agent.
struct AgentKey(Ed25519KeyPair);

impl AgentKey {
    /// Decodes a base64 PKCS#8 document.
    fn read(key: &SecretString) -> Result<Self, AgentIdentityError> {
        let read = || {
            let document = STANDARD.decode_to_vec(key.expose().trim()).ok()?;
            Ed25519KeyPair::from_pkcs8(&document).ok()
        };
        read().map(Self).ok_or(AgentIdentityError::PrivateKey)
    }

    /// Signs a text and returns the signature in base64.
    fn sign(&self, text: &str) -> Option<String> {
        let signature = self.0.try_sign(text.as_bytes()).ok()?;
        Some(STANDARD.encode_to_string(signature.as_ref()))
    }

    /// Decrypts a base64 sealed box that was encrypted for this agent.
    fn unseal(&self, sealed: &str) -> Option<Vec<u8>> {
        let sealed = STANDARD.decode_to_vec(sealed.trim()).ok()?;
        self.decryption_key()?.unseal(&sealed).ok()
    }

    /// Derives the Curve25519 key: the secret scalar of Ed25519 is the first half of the seed's
    /// hash, which the library clamps.
    fn decryption_key(&self) -> Option<SecretKey> {
        let seed: Curve25519SeedBin<'_> = self.0.seed().ok()?.as_be_bytes().ok()?;
        let hash = Sha512::digest(seed.as_ref());
        SecretKey::from_slice(hash.get(..32)?).ok()
    }
}

/// Timeout of one attempt.
const TASK_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of attempts.
const MAX_ATTEMPTS: u32 = 3;

/// Registers a task. Retries transient failures a few times.
async fn register_task(
    runtime_id: &str,
    key: &AgentKey,
    issuer: &BaseUrl,
    http: &HttpClient,
) -> Result<String, AgentIdentityError> {
    SecretScope::Private.admit(issuer.url())?;
    let url = task_url(issuer, runtime_id)?;
    let delay = RegistryBackoff::random();
    let mut attempt = 0;
    loop {
        let error = match try_register_task(&url, runtime_id, key, http).await {
            Ok(task) => return Ok(task),
            Err(error) => error,
        };
        if attempt + 1 >= MAX_ATTEMPTS || !is_transient(&error) {
            return Err(error);
        }
        tracing::warn!(%error, "failed to register the agent's task; retrying");
        sleep(delay.after(attempt)).await;
        attempt += 1;
    }
}

async fn try_register_task(
    url: &Url,
    runtime_id: &str,
    key: &AgentKey,
    http: &HttpClient,
) -> Result<String, AgentIdentityError> {
    let timestamp = rfc3339(SystemTime::now());
    let signature = key.sign(&format!("{runtime_id}:{timestamp}"));
    let request = TaskRequest {
        timestamp,
        signature: signature.ok_or(AgentIdentityError::PrivateKey)?,
    };
    let body = serde_json::to_vec(&request).map_err(|_| AgentIdentityError::TaskId)?;
    let call = HttpCall {
        within: TASK_TIMEOUT,
        ..HttpCall::post_json(url.clone(), HeaderMap::new(), body)
    };
    let reply = http.send(call).await?;
    if !reply.status.is_success() {
        return Err(AgentIdentityError::TaskRefused(reply.status.as_u16()));
    }
    let answer: TaskResponse = read_object(&reply.body).map_err(|_| AgentIdentityError::TaskId)?;
    answer.open(key).ok_or(AgentIdentityError::TaskId)
}

fn is_transient(error: &AgentIdentityError) -> bool {
    matches!(error, AgentIdentityError::TaskRefused(429 | 500..=599))
        || matches!(error, AgentIdentityError::Exchange(error) if error.is_transient())
}

fn task_url(issuer: &BaseUrl, runtime_id: &str) -> Result<Url, AgentIdentityError> {
    let mut url = issuer
        .join("v1/agent")
        .map_err(|_| AgentIdentityError::Url)?;
    // The id comes from a token: always encode it as a single segment.
    url.path_segments_mut()
        .map_err(|()| AgentIdentityError::Url)?
        .extend([runtime_id, "task", "register"]);
    Ok(url)
}

#[derive(Serialize)]
struct TaskRequest {
    timestamp: String,
    signature: String,
}

/// Response to a task registration: the id in plain text or sealed.
#[derive(Deserialize)]
struct TaskResponse {
    #[serde(default, alias = "taskId")]
    task_id: Option<String>,
    #[serde(default, alias = "encryptedTaskId")]
    encrypted_task_id: Option<SecretString>,
}

impl TaskResponse {
    fn open(self, key: &AgentKey) -> Option<String> {
        let id = match (self.task_id, self.encrypted_task_id) {
            (Some(id), _) => id,
            (None, Some(sealed)) => String::from_utf8(key.unseal(sealed.expose())?).ok()?,
            (None, None) => return None,
        };
        (!id.trim().is_empty()).then_some(id)
    }
}

/// Formats a time as RFC 3339 in UTC with whole seconds.
fn rfc3339(moment: SystemTime) -> String {
    let seconds = OffsetDateTime::from(moment).truncate_to_second();
    // Fails only after the year 9999.
    seconds.format(&Rfc3339).unwrap_or_default()
}
