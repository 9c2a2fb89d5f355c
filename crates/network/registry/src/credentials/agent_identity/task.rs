//! The task that an agent works on, registered once.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use url::Url;

use super::{AgentIdentityError, keys::AgentKey, timestamp::rfc3339};
use crate::{
    api::{Secret, read_object},
    credentials::Reach,
    delay::RegistryDelay,
    http::{BaseUrl, Call, Connection, Http},
};

/// How long one attempt may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts altogether.
const MAX_ATTEMPTS: u32 = 3;
/// Longest answer: it holds one id.
const MAX_ANSWER: usize = 64 << 10;

/// The id of a task. It is no secret, but whoever holds it need not show it.
#[derive(Clone)]
pub(super) struct TaskId(pub(super) String);

/// Registers a task. What may pass is tried again, a few times.
pub(super) async fn register(
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
        within: TIMEOUT,
        limit: MAX_ANSWER,
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
