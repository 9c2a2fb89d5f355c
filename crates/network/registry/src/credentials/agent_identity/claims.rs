//! What the JWT says, once it is verified.

use std::time::Duration;

use http::{HeaderMap, Method, header};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, errors::ErrorKind};
use serde::Deserialize;
use serde_json::Value;

use super::AgentIdentityError;
use crate::{
    api::{Secret, read_object},
    credentials::Reach,
    http::{BaseUrl, Call, Connection, Http},
};

const ISSUER: &str = "https://chatgpt.com/codex-backend/agent-identity";
const AUDIENCE: &str = "codex-app-server";
/// How long the keys may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest set of keys. One is about half a kilobyte.
const MAX_ANSWER: usize = 256 << 10;

/// What a token says that is needed. All members must be there.
#[derive(Debug, Deserialize)]
#[expect(
    dead_code,
    reason = "a token without them is none, though nobody asks for them"
)]
pub(super) struct Claims {
    iat: Value,
    pub(super) agent_runtime_id: String,
    pub(super) agent_private_key: Secret,
    pub(super) account_id: String,
    chatgpt_user_id: String,
    #[serde(default)]
    email: Option<String>,
    plan_type: Value,
    pub(super) chatgpt_account_is_fedramp: bool,
}

/// Fetches the keys of the issuer and verifies the token.
pub(super) async fn verified(
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
        within: TIMEOUT,
        limit: MAX_ANSWER,
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
