//! Agents with a key of their own, which somebody vouches for with a JWT.
//!
//! The JWT holds the agent's private key. It is verified, a task is registered with it once, and each
//! request carries a fresh assertion that is signed with it. Not here: where the JWT comes from.

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
use bytes::Bytes;
use crypto_box::SecretKey;
use futures_util::future::{BoxFuture, FutureExt, ready};
use http::{HeaderMap, HeaderValue, Method, header};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, errors::ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha512};
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};
use tokio::time::sleep;
use url::Url;

use super::{AccountId, CredentialError, Credentials, Fedramp, Reach, ReachError};
use crate::{
    api::{Secret, read_object},
    delay::RegistryDelay,
    http::{BaseUrl, Call, Connection, ExchangeError, Http},
};

/// What an agent identity is made of.
#[derive(Clone, Debug)]
pub struct AgentIdentitySettings {
    /// The JWT.
    pub token: Secret,
    /// Where the keys are that verify it.
    pub keys: BaseUrl,
    /// Where tasks are registered.
    pub tasks: BaseUrl,
}

/// Authenticates as an agent.
pub struct AgentIdentity {
    runtime_id: String,
    key: AgentKey,
    task: TaskId,
    account: AccountId,
    fedramp: Fedramp,
}

impl AgentIdentity {
    /// Verifies the token and registers a task.
    ///
    /// # Errors
    /// When the token is not accepted, or no task came about.
    pub async fn establish(
        settings: &AgentIdentitySettings,
        http: &Http,
    ) -> Result<Self, AgentIdentityError> {
        let claims = verified(&settings.token, &settings.keys, http).await?;
        let key = AgentKey::read(&claims.agent_private_key)?;
        let account =
            AccountId::new(&claims.account_id).map_err(|_| AgentIdentityError::NotAccepted)?;
        let task = register(&claims.agent_runtime_id, &key, &settings.tasks, http).await?;
        Ok(Self {
            runtime_id: claims.agent_runtime_id,
            key,
            task,
            account,
            fedramp: claims.chatgpt_account_is_fedramp.into(),
        })
    }

    fn headers_at(&self, moment: SystemTime) -> Option<HeaderMap> {
        let timestamp = rfc3339(moment);
        let task_id = self.task.0.as_str();
        let signed = format!("{}:{task_id}:{timestamp}", self.runtime_id);
        let assertion = Assertion {
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
        self.fedramp.add_to(&mut headers);
        Some(headers)
    }
}

impl Credentials for AgentIdentity {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        let headers = self.headers_at(SystemTime::now());
        let failed = || CredentialError::Sign("the agent's key does not sign".to_owned());
        ready(headers.ok_or_else(failed)).boxed()
    }

    fn reach(&self) -> Reach {
        Reach::Anywhere
    }
}

impl fmt::Debug for AgentIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentIdentity")
            .field("runtime_id", &self.runtime_id)
            .finish_non_exhaustive()
    }
}

/// Members in the order in which they are sent.
#[derive(Serialize)]
struct Assertion<'a> {
    agent_runtime_id: &'a str,
    signature: &'a str,
    task_id: &'a str,
    timestamp: &'a str,
}

/// Why an agent identity cannot be used. Neither token nor key is repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentIdentityError {
    /// Caller: the text is no JWT with RS256 and a key id.
    #[error("agent identity token is malformed")]
    Token,
    /// Caller: the issuer is where others could read or forge what is said.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// Caller: a URL cannot be extended.
    #[error("URL of the agent identity's issuer is malformed")]
    Url,
    /// Transport: those who vouch did not answer.
    #[error("issuer of the agent identity did not answer")]
    Exchange(#[from] ExchangeError),
    /// Peer: it has no keys to verify with.
    #[error("keys of the agent identity's issuer are not to be had: {0}")]
    KeysRefused(u16),
    /// Peer: its keys cannot be read.
    #[error("keys of the agent identity's issuer cannot be read")]
    Keys,
    /// Caller: the token was signed with a key that its issuer does not know.
    #[error("agent identity token was signed with an unknown key")]
    UnknownKey,
    /// Caller: the token has expired.
    #[error("agent identity token has expired")]
    Expired,
    /// Caller: signature, issuer, audience or claims of the token are not as they must be.
    #[error("agent identity token is not accepted")]
    NotAccepted,
    /// Peer: the private key in the token is none.
    #[error("agent identity token holds no Ed25519 key")]
    PrivateKey,
    /// Peer: the task was not registered.
    #[error("task of the agent was not registered: {0}")]
    TaskRefused(u16),
    /// Peer: the id of the task cannot be read.
    #[error("id of the agent's task cannot be read")]
    TaskId,
}

const ISSUER: &str = "https://chatgpt.com/codex-backend/agent-identity";
const AUDIENCE: &str = "codex-app-server";
/// How long the keys may take.
const KEYS_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest set of keys. One is about half a kilobyte.
const MAX_KEYS_BYTES: usize = 256 << 10;

/// What a token says that is needed. All members must be there.
#[derive(Debug, Deserialize)]
#[expect(
    dead_code,
    reason = "a token without them is none, though nobody asks for them"
)]
struct Claims {
    iat: Value,
    agent_runtime_id: String,
    agent_private_key: Secret,
    account_id: String,
    chatgpt_user_id: String,
    #[serde(default)]
    email: Option<String>,
    plan_type: Value,
    chatgpt_account_is_fedramp: bool,
}

/// Fetches the keys of the issuer and verifies the token.
async fn verified(
    token: &Secret,
    issuer: &BaseUrl,
    http: &Http,
) -> Result<Claims, AgentIdentityError> {
    let header = decode_header(token.expose()).map_err(|_| AgentIdentityError::Token)?;
    let (Algorithm::RS256, Some(id)) = (header.alg, header.kid) else {
        return Err(AgentIdentityError::Token);
    };
    let keys = fetch(issuer, http).await?;
    let key = find(&keys, &id)?;
    let mut validation = Validation::new(Algorithm::RS256);
    validation.set_issuer(&[ISSUER]);
    validation.set_audience(&[AUDIENCE]);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    let decoded = decode::<Claims>(token.expose(), &key, &validation);
    match decoded.map_err(jsonwebtoken::errors::Error::into_kind) {
        Ok(data) => Ok(data.claims),
        Err(ErrorKind::ExpiredSignature) => Err(AgentIdentityError::Expired),
        Err(_) => Err(AgentIdentityError::NotAccepted),
    }
}

async fn fetch(issuer: &BaseUrl, http: &Http) -> Result<KeySet, AgentIdentityError> {
    Reach::Private.admit(issuer.url())?;
    let path = if issuer.to_string().contains("/backend-api") {
        "wham/agent-identities/jwks"
    } else {
        "agent-identities/jwks"
    };
    let call = Call {
        method: Method::GET,
        url: issuer.join(path).map_err(|_| AgentIdentityError::Url)?,
        headers: HeaderMap::from_iter([(
            header::ACCEPT,
            header::HeaderValue::from_static("application/json"),
        )]),
        body: None,
        connection: Connection::Kept,
        within: KEYS_TIMEOUT,
        limit: MAX_KEYS_BYTES,
    };
    let reply = http.send(call).await?;
    if !reply.status.is_success() {
        return Err(AgentIdentityError::KeysRefused(reply.status.as_u16()));
    }
    read_object(&reply.body).map_err(|_| AgentIdentityError::Keys)
}

/// Finds a key. Those of other kinds are not looked at: sets mix them.
fn find(keys: &KeySet, id: &str) -> Result<DecodingKey, AgentIdentityError> {
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
struct KeySet {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct RsaKey {
    kty: String,
    n: String,
    e: String,
}

/// The Ed25519 key of an agent. `Debug` hides it.
struct AgentKey(Ed25519KeyPair);

impl AgentKey {
    /// Reads PKCS#8 in base64.
    fn read(key: &Secret) -> Result<Self, AgentIdentityError> {
        let read = || {
            let document = STANDARD.decode_to_vec(key.expose().trim()).ok()?;
            Ed25519KeyPair::from_pkcs8(&document).ok()
        };
        read().map(Self).ok_or(AgentIdentityError::PrivateKey)
    }

    /// Signs a text. The signature is in base64.
    fn sign(&self, text: &str) -> Option<String> {
        let signature = self.0.try_sign(text.as_bytes()).ok()?;
        Some(STANDARD.encode_to_string(signature.as_ref()))
    }

    /// Opens what somebody sealed for this agent, and made base64 of.
    fn unseal(&self, sealed: &str) -> Option<Vec<u8>> {
        let sealed = STANDARD.decode_to_vec(sealed.trim()).ok()?;
        self.opener()?.unseal(&sealed).ok()
    }

    /// Derives the Curve25519 key: the secret scalar of Ed25519 is the hash's first half, which the
    /// library clamps.
    fn opener(&self) -> Option<SecretKey> {
        let seed: Curve25519SeedBin<'_> = self.0.seed().ok()?.as_be_bytes().ok()?;
        let hash = Sha512::digest(seed.as_ref());
        SecretKey::from_slice(hash.get(..32)?).ok()
    }
}

impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentKey(..)")
    }
}

/// How long one attempt may take.
const TASK_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts altogether.
const MAX_ATTEMPTS: u32 = 3;
/// Longest answer: it holds one id.
const MAX_TASK_BYTES: usize = 64 << 10;

/// The id of a task. It is no secret, but whoever holds it need not show it.
#[derive(Clone)]
struct TaskId(String);

/// Registers a task. What may pass is tried again, a few times.
async fn register(
    runtime_id: &str,
    key: &AgentKey,
    issuer: &BaseUrl,
    http: &Http,
) -> Result<TaskId, AgentIdentityError> {
    Reach::Private.admit(issuer.url())?;
    let url = url(issuer, runtime_id)?;
    let delay = RegistryDelay::random();
    let mut attempt = 0;
    loop {
        let error = match once(&url, runtime_id, key, http).await {
            Ok(task) => return Ok(task),
            Err(error) => error,
        };
        if attempt + 1 >= MAX_ATTEMPTS || !is_passing(&error) {
            return Err(error);
        }
        tracing::warn!(%error, "task of the agent is not registered yet");
        sleep(delay.after(attempt)).await;
        attempt += 1;
    }
}

async fn once(
    url: &Url,
    runtime_id: &str,
    key: &AgentKey,
    http: &Http,
) -> Result<TaskId, AgentIdentityError> {
    let timestamp = rfc3339(SystemTime::now());
    let signature = key.sign(&format!("{runtime_id}:{timestamp}"));
    let request = Request {
        timestamp,
        signature: signature.ok_or(AgentIdentityError::PrivateKey)?,
    };
    let body = serde_json::to_vec(&request).map_err(|_| AgentIdentityError::TaskId)?;
    let call = Call {
        method: Method::POST,
        url: url.clone(),
        headers: HeaderMap::from_iter([(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        )]),
        body: Some(Bytes::from(body)),
        connection: Connection::Fresh,
        within: TASK_TIMEOUT,
        limit: MAX_TASK_BYTES,
    };
    let reply = http.send(call).await?;
    if !reply.status.is_success() {
        return Err(AgentIdentityError::TaskRefused(reply.status.as_u16()));
    }
    let answer: Answer = read_object(&reply.body).map_err(|_| AgentIdentityError::TaskId)?;
    answer.open(key).ok_or(AgentIdentityError::TaskId)
}

fn is_passing(error: &AgentIdentityError) -> bool {
    match error {
        AgentIdentityError::Exchange(error) => error.is_passing(),
        AgentIdentityError::TaskRefused(status) => matches!(status, 429 | 500..=599),
        AgentIdentityError::Token
        | AgentIdentityError::Reach(_)
        | AgentIdentityError::Url
        | AgentIdentityError::KeysRefused(_)
        | AgentIdentityError::Keys
        | AgentIdentityError::UnknownKey
        | AgentIdentityError::Expired
        | AgentIdentityError::NotAccepted
        | AgentIdentityError::PrivateKey
        | AgentIdentityError::TaskId => false,
    }
}

fn url(issuer: &BaseUrl, runtime_id: &str) -> Result<Url, AgentIdentityError> {
    let mut url = issuer
        .join("v1/agent")
        .map_err(|_| AgentIdentityError::Url)?;
    // The id comes out of a token: it is one segment, whatever it holds.
    url.path_segments_mut()
        .map_err(|()| AgentIdentityError::Url)?
        .extend([runtime_id, "task", "register"]);
    Ok(url)
}

#[derive(Serialize)]
struct Request {
    timestamp: String,
    signature: String,
}

/// The id of a task, plain or sealed.
#[derive(Deserialize)]
struct Answer {
    #[serde(default, alias = "taskId")]
    task_id: Option<String>,
    #[serde(default, alias = "encryptedTaskId")]
    encrypted_task_id: Option<Secret>,
}

impl Answer {
    fn open(self, key: &AgentKey) -> Option<TaskId> {
        let id = match (self.task_id, self.encrypted_task_id) {
            (Some(id), _) => id,
            (None, Some(sealed)) => String::from_utf8(key.unseal(sealed.expose())?).ok()?,
            (None, None) => return None,
        };
        (!id.trim().is_empty()).then_some(TaskId(id))
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskId(..)")
    }
}

/// Writes a moment as RFC 3339 in UTC, in whole seconds.
fn rfc3339(moment: SystemTime) -> String {
    let written = OffsetDateTime::from(moment).format(SECONDS);
    // Every part that the format names is there.
    written.unwrap_or_default()
}

const SECONDS: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
