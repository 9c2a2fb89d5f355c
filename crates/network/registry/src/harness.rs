//! Rendezvous grants of a harness: asks the registry for permission to connect to an executor.
//!
//! The first connection retries with backoff. A reconnect with a session asks once per attempt,
//! because its caller paces whole attempts, and accepts only the executor that has the session.
//! Elsewhere: the connection itself (`exec-transport`), the pace of reconnects (`exec-client`).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_relay::identity::{NoiseIdentity, NoisePublicKey};
use exec_transport::{
    connect::{ConnectError, ConnectFault},
    relay::harness::{GrantSource, RendezvousGrant},
};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{
    api::{HarnessConnectResponse, RegistryEnvironmentId},
    backoff::RegistryBackoff,
    http::ExchangeError,
    registry::{RegistryClient, RegistryError},
};

/// Obtains grants to connect one harness to one environment.
#[derive(Debug)]
pub struct RegistryGrants {
    registry: RegistryClient,
    environment: RegistryEnvironmentId,
    identity: Arc<NoiseIdentity>,
    executor: Mutex<KnownExecutor>,
}

/// The executor of this environment, as far as known.
#[derive(Debug, Default)]
struct KnownExecutor {
    /// Executor key in the last grant.
    last: Option<NoisePublicKey>,
    /// The only accepted key while there is a session.
    pinned: Option<NoisePublicKey>,
}

impl RegistryGrants {
    /// Creates a source of grants for an environment and a harness identity.
    pub fn new(
        registry: RegistryClient,
        environment: RegistryEnvironmentId,
        identity: Arc<NoiseIdentity>,
    ) -> Self {
        Self {
            registry,
            environment,
            identity,
            executor: Mutex::default(),
        }
    }

    /// Records that the last grant led to a session: from now on only that executor is accepted.
    pub fn pin(&self) {
        let mut executor = self.executor();
        if let Some(last) = executor.last.clone() {
            executor.pinned = Some(last);
        }
    }

    /// Records that the session ended: any executor is accepted.
    pub fn unpin(&self) {
        self.executor().pinned = None;
    }

    /// Asks the registry. With a session, the caller retries whole attempts, so this asks only
    /// once.
    async fn connect(
        &self,
        pinned: Option<&NoisePublicKey>,
    ) -> Result<HarnessConnectResponse, RegistryError> {
        let key = self.identity.public_key();
        let connect = || self.registry.connect(&self.environment, key);
        match pinned {
            Some(_) => connect().await,
            None => retry_connect(&RegistryBackoff::random(), connect).await,
        }
    }

    fn executor(&self) -> MutexGuard<'_, KnownExecutor> {
        // Nothing panics while the lock is held, and every update is a single assignment.
        self.executor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GrantSource for RegistryGrants {
    fn fetch(&self) -> BoxFuture<'_, Result<RendezvousGrant, ConnectError>> {
        let fetch = async {
            let pinned = self.executor().pinned.clone();
            let grant = self.connect(pinned.as_ref()).await?;
            if pinned.is_some_and(|pinned| pinned != grant.executor_public_key) {
                return Err(ConnectError::ExecutorChanged);
            }
            self.executor().last = Some(grant.executor_public_key.clone());
            Ok(RendezvousGrant {
                url: grant.url.into_exposed(),
                environment_id: grant.environment_id,
                registration_id: grant.executor_registration_id,
                executor_key: grant.executor_public_key,
                authorization: grant.harness_key_authorization.into_exposed(),
            })
        };
        fetch.boxed()
    }
}

/// Timeout of one request. Shorter than for other requests, because a second one usually helps.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);
/// Requests after the first.
const MAX_RETRIES: u32 = 4;
/// Time limit of all attempts together. A user is waiting.
const BUDGET: Duration = Duration::from_secs(14);

/// Retries with backoff until there is a grant or the time limit is reached.
async fn retry_connect<F>(
    delay: &RegistryBackoff,
    mut connect: impl FnMut() -> F,
) -> Result<HarnessConnectResponse, RegistryError>
where
    F: Future<Output = Result<HarnessConnectResponse, RegistryError>>,
{
    let deadline = Instant::now() + BUDGET;
    let mut attempt = 0;
    loop {
        let started = Instant::now();
        let until = deadline.min(started + REQUEST_TIMEOUT);
        let answer = timeout_at(until, connect()).await;
        let late = |_| Err(ExchangeError::Timeout(until - started).into());
        let error = match answer.unwrap_or_else(late) {
            Err(error) if error.may_connect_again() => error,
            outcome => return outcome,
        };
        let next = Instant::now() + delay.after(attempt);
        if attempt == MAX_RETRIES || next >= deadline {
            return Err(error);
        }
        tracing::debug!(%error, attempt, "no rendezvous grant yet");
        sleep_until(next).await;
        attempt += 1;
    }
}

impl From<RegistryError> for ConnectError {
    fn from(error: RegistryError) -> Self {
        Self::Grant {
            fault: fault(&error),
            is_transient: error.may_connect_again(),
            source: Box::new(error),
        }
    }
}

/// Maps a registry error to the party at fault.
fn fault(error: &RegistryError) -> ConnectFault {
    match error {
        RegistryError::Url(_)
        | RegistryError::InTheClear(_)
        | RegistryError::Credential(_)
        | RegistryError::Denied { .. } => ConnectFault::Caller,
        RegistryError::Exchange(ExchangeError::TooLarge(_))
        | RegistryError::StreamId
        | RegistryError::Refused { .. }
        | RegistryError::Malformed(_)
        | RegistryError::ResponseMember(_) => ConnectFault::Peer,
        RegistryError::Exchange(_) => ConnectFault::Transport,
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::pending, time::Duration};

    use exec_relay::identity::NoiseIdentity;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        api::{RegistryErrorCode, SECURITY_PROFILE, SecretString},
        credentials::{FixedCredentials, RegistryToken},
        http::{
            BaseUrl,
            tests::{Server, answer, http},
        },
    };

    const OFFLINE: &str = r#"{"error":{"code":"environment_offline","message":"off"}}"#;

    fn grants(server: &Server) -> (RegistryGrants, Arc<NoiseIdentity>) {
        let token = FixedCredentials::harness_token(&RegistryToken::new("t").unwrap(), None);
        let base = BaseUrl::parse(&server.url()).unwrap();
        let registry = RegistryClient::new(base, Arc::new(token), http()).unwrap();
        let identity = Arc::new(NoiseIdentity::generate());
        let environment = RegistryEnvironmentId::new("env-1").unwrap();
        let grants = RegistryGrants::new(registry, environment, Arc::clone(&identity));
        (grants, identity)
    }

    fn bundle(number: usize, key: &NoisePublicKey) -> String {
        let bundle = json!({
            "environment_id": "env-1",
            "url": format!("ws://127.0.0.1:1/?sig={number}"),
            "security_profile": "noise_hybrid_ik_v1",
            "executor_registration_id": format!("reg-{number}"),
            "executor_public_key": key,
            "harness_key_authorization": format!("auth-{number}"),
        });
        bundle.to_string()
    }

    #[tokio::test]
    async fn each_grant_comes_from_one_response_for_one_key() {
        let executor = NoiseIdentity::generate().public_key().clone();
        let key = executor.clone();
        let server = Server::start(move |number, _| answer(200, bundle(number, &key))).await;
        let (grants, identity) = grants(&server);
        for number in 0..2 {
            let grant = grants.fetch().await.unwrap();
            let expected = RendezvousGrant {
                url: format!("ws://127.0.0.1:1/?sig={number}"),
                environment_id: "env-1".to_owned(),
                registration_id: format!("reg-{number}"),
                executor_key: executor.clone(),
                authorization: format!("auth-{number}"),
            };
            assert_eq!(grant, expected);
        }
        let started = json!({"harness_public_key": identity.public_key()});
        assert!(server.seen().iter().all(|seen| seen.json() == started));
    }

    #[tokio::test]
    async fn session_accepts_only_its_executor() {
        let keys: Vec<_> = (0..4)
            .map(|_| NoiseIdentity::generate().public_key().clone())
            .collect();
        // Another executor answers before the session, and two more after it.
        let order = [0, 1, 1, 2, 1, 3];
        let answers = keys.clone();
        let server =
            Server::start(move |number, _| answer(200, bundle(number, &answers[order[number]])))
                .await;
        let (grants, _) = grants(&server);
        let key = async || Some(grants.fetch().await.ok()?.executor_key);
        grants.pin();
        assert_eq!(key().await.as_ref(), Some(&keys[0]));
        assert_eq!(key().await.as_ref(), Some(&keys[1]));
        grants.pin();
        assert_eq!(key().await.as_ref(), Some(&keys[1]));
        let changed = grants.fetch().await.unwrap_err();
        assert!(matches!(changed, ConnectError::ExecutorChanged));
        assert!(!changed.is_transient());
        // The rejected executor must not count as the last one seen.
        grants.pin();
        assert_eq!(key().await.as_ref(), Some(&keys[1]));
        grants.unpin();
        assert_eq!(key().await.as_ref(), Some(&keys[3]));
    }

    #[tokio::test]
    async fn first_grant_is_retried_and_later_ones_are_not() {
        let key = NoiseIdentity::generate().public_key().clone();
        let server = Server::start(move |number, _| match number {
            1 => answer(200, bundle(number, &key)),
            _ => answer(409, OFFLINE),
        })
        .await;
        let (grants, _) = grants(&server);
        let started_at = Instant::now();
        grants.fetch().await.unwrap();
        assert!(started_at.elapsed() >= Duration::from_millis(500));
        assert_eq!(server.seen().len(), 2);
        grants.pin();
        let error = grants.fetch().await.unwrap_err();
        assert!(error.is_transient());
        assert_eq!(server.seen().len(), 3);
    }

    #[tokio::test]
    async fn errors_assign_fault_and_retryability() {
        use exec_transport::connect::ConnectFault;
        let table = [
            (401, "", ConnectFault::Caller, false),
            (403, "", ConnectFault::Caller, false),
            (404, "", ConnectFault::Peer, false),
            (409, "", ConnectFault::Peer, false),
            (200, "{}", ConnectFault::Peer, false),
        ];
        for (status, body, fault, passing) in table {
            let server = Server::start(move |_, _| answer(status, body)).await;
            let error = grants(&server).0.fetch().await.unwrap_err();
            assert_eq!(
                (error.fault(), error.is_transient()),
                (fault, passing),
                "{status}"
            );
            assert_eq!(server.seen().len(), 1);
        }
        let key = NoiseIdentity::generate().public_key().clone();
        let server = Server::start(move |number, _| match number {
            0 => answer(200, bundle(number, &key)),
            _ => answer(503, ""),
        })
        .await;
        let (grants, _) = grants(&server);
        grants.fetch().await.unwrap();
        grants.pin();
        let error = grants.fetch().await.unwrap_err();
        assert_eq!(
            (error.fault(), error.is_transient()),
            (ConnectFault::Peer, true)
        );
        drop(server);
        tokio::task::yield_now().await;
        let error = grants.fetch().await.unwrap_err();
        assert_eq!(
            (error.fault(), error.is_transient()),
            (ConnectFault::Transport, true)
        );
    }

    fn offline() -> RegistryError {
        RegistryError::Refused {
            status: 409,
            code: Some(RegistryErrorCode::EnvironmentOffline),
            text: None,
        }
    }

    fn connect_response() -> HarnessConnectResponse {
        HarnessConnectResponse {
            environment_id: "e".to_owned(),
            url: SecretString::new("u"),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: "r".to_owned(),
            executor_public_key: NoiseIdentity::generate().public_key().clone(),
            harness_key_authorization: SecretString::new("a"),
        }
    }

    /// Runs `retry_connect` with scripted responses and records the time of each request.
    async fn retry_with<F: Future<Output = Result<HarnessConnectResponse, RegistryError>>>(
        answer: impl Fn(usize) -> F,
    ) -> (
        Result<HarnessConnectResponse, RegistryError>,
        Vec<Duration>,
        Duration,
    ) {
        let (times, started_at) = (RefCell::new(Vec::new()), Instant::now());
        let delay = RegistryBackoff::new("key");
        let outcome = retry_connect(&delay, || {
            times.borrow_mut().push(started_at.elapsed());
            answer(times.borrow().len())
        });
        let outcome = outcome.await;
        (outcome, times.into_inner(), started_at.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn offline_environment_is_requested_five_times() {
        let (outcome, times, took) = retry_with(|_| async { Err(offline()) }).await;
        assert!(matches!(
            outcome,
            Err(RegistryError::Refused { status: 409, .. })
        ));
        assert_eq!(times.len(), 5);
        let delay = RegistryBackoff::new("key");
        let mut expected = Duration::ZERO;
        for (attempt, time) in (0..).zip(times) {
            let off = time.saturating_sub(expected);
            assert!(
                time >= expected && off < Duration::from_millis(10),
                "{time:?}"
            );
            expected += delay.after(attempt);
        }
        assert!(took < BUDGET);
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_times_out_after_six_seconds() {
        let (outcome, times, took) = retry_with(|_| pending()).await;
        let error = outcome.unwrap_err();
        assert!(matches!(
            error,
            RegistryError::Exchange(ExchangeError::Timeout(_))
        ));
        let delay = RegistryBackoff::new("key");
        let second = REQUEST_TIMEOUT + delay.after(0);
        let third = second + REQUEST_TIMEOUT + delay.after(1);
        assert!(times[1] >= second && times[1] - second < Duration::from_millis(10));
        // The delay before the third request may already exceed the budget.
        assert_eq!(times.len(), if third < BUDGET { 3 } else { 2 });
        assert!(took <= BUDGET);
    }

    #[tokio::test(start_paused = true)]
    async fn budget_limits_the_last_request() {
        let (outcome, times, took) = retry_with(|number| async move {
            if number < 4 {
                Err(offline())
            } else {
                pending().await
            }
        })
        .await;
        let cut = outcome.unwrap_err();
        let RegistryError::Exchange(ExchangeError::Timeout(within)) = cut else {
            panic!("{cut}");
        };
        assert!(times.len() >= 4);
        assert!(within <= REQUEST_TIMEOUT);
        assert!(took <= BUDGET);
    }

    #[tokio::test(start_paused = true)]
    async fn executor_that_comes_online_is_found() {
        let (outcome, times, _) = retry_with(|number| async move {
            if number < 3 {
                Err(offline())
            } else {
                Ok(connect_response())
            }
        })
        .await;
        assert_eq!(outcome.unwrap().executor_registration_id, "r");
        assert_eq!(times.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_failure_is_not_retried() {
        let (outcome, times, took) = retry_with(|_| async {
            Err(RegistryError::Denied {
                status: 403,
                text: None,
            })
        })
        .await;
        assert!(matches!(outcome, Err(RegistryError::Denied { .. })));
        assert_eq!((times.len(), took), (1, Duration::ZERO));
    }
}
