//! The agent, and what it asserts with each request.

use std::{fmt, time::SystemTime};

use base64_simd::URL_SAFE_NO_PAD;
use futures_util::future::{BoxFuture, FutureExt, ready};
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;

use super::{
    AgentIdentityError, claims,
    keys::AgentKey,
    task::{self, TaskId},
    timestamp::rfc3339,
};
use crate::{
    api::Secret,
    credentials::{AccountId, CredentialError, Credentials, Fedramp, Reach},
    http::{BaseUrl, Http},
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
        let claims = claims::verified(&settings.token, &settings.keys, http).await?;
        let key = AgentKey::read(&claims.agent_private_key)?;
        let account =
            AccountId::new(&claims.account_id).map_err(|_| AgentIdentityError::NotAccepted)?;
        let task = task::register(&claims.agent_runtime_id, &key, &settings.tasks, http).await?;
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
