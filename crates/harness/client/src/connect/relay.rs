//! Servers behind a relay, found through a registry.

use std::{fmt, sync::Arc, time::Duration};

use exec_registry::{
    api::{RegistryEnvironmentId, SecretString},
    backoff::RegistryBackoff,
    credentials::{AccountId, Credentials, FixedCredentials, RegistryToken},
    harness::RegistryGrants,
    http::{BaseUrl, HttpClient},
    registry::RegistryClient,
};
use exec_relay::identity::NoiseIdentity;
use exec_transport::{
    connect::{self, CONNECT_TIMEOUT, ConnectFault, HttpProxy},
    link::Link,
    relay::harness::{self, GrantSource, HarnessOptions},
    tls::TrustStore,
    trace::TraceSource,
};
use exec_wire::{error::error_chain, id::SessionId};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep_until},
};

use super::{BackoffDelay, ServerConnector, SessionContinuity};
use crate::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    error::{ConnectError, ExecServerError},
};

/// How long to wait for a session that is still attached to the stream of a dead harness. A server
/// keeps such a stream for twenty seconds.
const ATTACHED_TIMEOUT: Duration = Duration::from_secs(25);

/// How to connect to a server through a registry. `Debug` hides secrets.
#[derive(Clone, Debug)]
pub struct RelayExecServerConnectArgs {
    /// The registry: `http://HOST` or `https://HOST`.
    pub registry_url: String,
    /// The environment id of the server in the registry.
    pub environment_id: String,
    /// Sent to the registry as `Authorization: Bearer …`.
    pub auth_token: SecretString,
    /// Sent to the registry as `chatgpt-account-id`.
    pub chatgpt_account_id: Option<String>,
    /// Credentials for the registry, instead of token and account.
    pub credentials: Option<Arc<dyn Credentials>>,
    /// Trusted certificate authorities. Default: the roots of this host.
    pub trust: TrustStore,
    /// Proxy for connections to the relay.
    pub proxy: Option<HttpProxy>,
    /// Client name for the server's logs.
    pub client_name: String,
    /// Timeout of a connection to the relay. Default: ten seconds.
    pub connect_timeout: Duration,
    /// Timeout of the key exchange and the response to `initialize` together. Default: ten seconds.
    pub initialize_timeout: Duration,
    /// A detached session to resume.
    pub resume_session_id: Option<SessionId>,
    /// Trace context of requests, including those to registry and relay. Absent: requests carry
    /// none.
    pub trace: Option<TraceSource>,
}

impl RelayExecServerConnectArgs {
    /// Connects to an environment id, under this client name.
    pub fn new(
        registry_url: impl Into<String>,
        environment_id: impl Into<String>,
        auth_token: impl Into<String>,
        client_name: impl Into<String>,
    ) -> Self {
        let options = ExecServerClientConnectOptions::default();
        Self {
            registry_url: registry_url.into(),
            environment_id: environment_id.into(),
            auth_token: SecretString::new(auth_token),
            chatgpt_account_id: None,
            credentials: None,
            trust: TrustStore::default(),
            proxy: None,
            client_name: client_name.into(),
            connect_timeout: CONNECT_TIMEOUT,
            initialize_timeout: options.initialize_timeout,
            resume_session_id: None,
            trace: None,
        }
    }

    /// Creates a connector with its own key. Sends nothing yet.
    ///
    /// # Errors
    /// If the URL, the environment id or the token is malformed.
    pub fn connector(&self) -> Result<RelayConnector, ConnectError> {
        let registry = BaseUrl::parse(&self.registry_url).map_err(address_error)?;
        let environment =
            RegistryEnvironmentId::new(&self.environment_id).map_err(address_error)?;
        let credentials = match &self.credentials {
            Some(credentials) => Arc::clone(credentials),
            None => {
                let token = RegistryToken::new(self.auth_token.expose()).map_err(address_error)?;
                let account = self.chatgpt_account_id.as_deref().map(AccountId::new);
                let account = account.transpose().map_err(address_error)?;
                Arc::new(FixedCredentials::harness_token(&token, account.as_ref()))
            }
        };
        credentials
            .secret_scope()
            .admit(registry.url())
            .map_err(address_error)?;
        let options = HarnessOptions {
            trust: self.trust.clone(),
            proxy: self.proxy.clone(),
            trace: self.trace.clone(),
            connect_timeout: self.connect_timeout,
            handshake_timeout: self.initialize_timeout,
            ..HarnessOptions::default()
        };
        Ok(RelayConnector {
            registry,
            environment,
            credentials,
            identity: Arc::new(NoiseIdentity::generate()),
            grants: OnceCell::new(),
            options,
            backoff: RegistryBackoff::random(),
        })
    }

    /// Returns the options of the client.
    pub fn options(&self) -> ExecServerClientConnectOptions {
        ExecServerClientConnectOptions {
            client_name: self.client_name.clone(),
            initialize_timeout: self.initialize_timeout,
            resume_session_id: self.resume_session_id.clone(),
            trace: self.trace.clone(),
            ..ExecServerClientConnectOptions::default()
        }
    }
}

fn address_error(error: impl std::error::Error) -> ConnectError {
    ConnectError::Address(error_chain(&error))
}

/// Opens links through a relay. The server keeps sessions for a while and is identified by its key,
/// so a session is resumed only on the server that holds it.
pub struct RelayConnector {
    registry: BaseUrl,
    environment: RegistryEnvironmentId,
    credentials: Arc<dyn Credentials>,
    /// Used for every link.
    identity: Arc<NoiseIdentity>,
    /// Created with the first link, when certificates are loaded.
    grants: OnceCell<Arc<RegistryGrants>>,
    options: HarnessOptions,
    backoff: RegistryBackoff,
}

impl RelayConnector {
    /// Opens a link and pins the key of its peer.
    async fn open(&self, grants: Arc<RegistryGrants>) -> Result<Link, connect::ConnectError> {
        let identity = Arc::clone(&self.identity);
        let link = harness::open(
            identity,
            Arc::clone(&grants) as Arc<dyn GrantSource>,
            self.options.clone(),
        )
        .await?;
        grants.pin();
        Ok(link)
    }

    async fn grants(&self) -> Result<Arc<RegistryGrants>, connect::ConnectError> {
        let grants = self.grants.get_or_try_init(|| self.create_grants());
        grants.await.cloned()
    }

    async fn create_grants(&self) -> Result<Arc<RegistryGrants>, connect::ConnectError> {
        let http = match self.registry.url().scheme() {
            "https" => HttpClient::new(&self.options.trust.config().await?),
            // A host without certificates may use a local registry.
            _ => HttpClient::without_tls(),
        };
        let http = http.map_err(|error| unusable(error.into()))?;
        let registry =
            RegistryClient::new(self.registry.clone(), Arc::clone(&self.credentials), http)
                .map_err(|error| unusable(error.into()))?
                .with_trace(self.options.trace.clone());
        Ok(Arc::new(RegistryGrants::new(
            registry,
            self.environment.clone(),
            Arc::clone(&self.identity),
        )))
    }
}

/// Reports a registry that cannot be used at all.
fn unusable(source: Box<dyn std::error::Error + Send + Sync>) -> connect::ConnectError {
    connect::ConnectError::Grant {
        fault: ConnectFault::Caller,
        is_transient: false,
        source,
    }
}

/// Marks the refusal of one grant as retryable. The next grant may be accepted, which is worth
/// trying while a session, or a process that outlives it, exists.
fn retryable(error: connect::ConnectError) -> connect::ConnectError {
    use connect::ConnectError as Error;
    let is_grant_refusal = matches!(
        error,
        Error::Refused { .. } | Error::NotWebSocket(_) | Error::Relay(_)
    );
    if !is_grant_refusal {
        return error;
    }
    Error::Grant {
        fault: error.fault(),
        is_transient: true,
        source: Box::new(error),
    }
}

impl ServerConnector for RelayConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Link, connect::ConnectError>> {
        let connect = async {
            let grants = self.grants().await?;
            // No session is to be resumed, so any server with this environment id is acceptable.
            grants.unpin();
            self.open(grants).await
        };
        connect.boxed()
    }

    fn reconnect(&self) -> BoxFuture<'_, Result<Link, connect::ConnectError>> {
        let reconnect = async { self.open(self.grants().await?).await.map_err(retryable) };
        reconnect.boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<Link, connect::ConnectError>> {
        let renew = async { self.connect().await.map_err(retryable) };
        renew.boxed()
    }

    fn continuity(&self) -> SessionContinuity {
        SessionContinuity::Resumed
    }

    fn backoff(&self, failures: u32) -> BackoffDelay {
        BackoffDelay::FromEnd(self.backoff.after(failures))
    }
}

impl fmt::Debug for RelayConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayConnector")
            .field("registry", &self.registry.to_string())
            .field("environment", &self.environment)
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

impl ExecServerClient {
    /// Connects to a server through a relay, and reconnects when the connection breaks. Dropping
    /// the future leaves nothing open.
    ///
    /// A session to resume may still be attached to the stream of a dead harness. The call retries
    /// until the server has dropped that stream.
    pub async fn connect_relay(args: RelayExecServerConnectArgs) -> Result<Self, ExecServerError> {
        let connector = Arc::new(args.connector()?);
        let until = Instant::now() + ATTACHED_TIMEOUT;
        let mut failures = 0;
        loop {
            let connecting = Self::connect_with(Arc::clone(&connector) as _, args.options());
            let error = match connecting.await {
                Err(ExecServerError::Connect(error)) if error.is_attached() => error,
                settled => return settled,
            };
            let next = Instant::now() + connector.backoff.after(failures);
            if next >= until {
                return Err(error.into());
            }
            sleep_until(next).await;
            failures += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn args(url: &str, environment: &str, token: &str) -> RelayExecServerConnectArgs {
        RelayExecServerConnectArgs::new(url, environment, token, "test")
    }

    #[test]
    fn invalid_relay_arguments_are_reported_without_secrets() {
        for (args, expected) in [
            (args("ws://h", "e", "s3cret"), "URL begins with http://"),
            (args("https://h", " ", "s3cret"), "environment id is empty"),
            (args("https://h", "e", " "), "token is empty"),
            (args("https://h", "e", "s3cret\nx"), "control character"),
        ] {
            assert!(!format!("{args:?}").contains("s3cret"), "{args:?}");
            let error = args.connector().unwrap_err();
            assert!(
                matches!(&error, ConnectError::Address(text) if text.contains(expected)),
                "{error}"
            );
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        let connector = args("http://h", "e", "s3cret").connector().unwrap();
        assert!(
            !format!("{connector:?}").contains("s3cret"),
            "{connector:?}"
        );
    }

    #[test]
    fn reconnect_backoff_grows() {
        let connector = args("http://h", "e", "t").connector().unwrap();
        for (failures, base) in (0..).zip([500, 1000, 2000, 4000, 5000, 5000]) {
            let base = Duration::from_millis(base);
            let BackoffDelay::FromEnd(delay) = connector.backoff(failures) else {
                panic!("delay is not measured from the end");
            };
            assert!(
                delay >= base && delay <= base * 3 / 2,
                "{failures}: {delay:?}"
            );
        }
    }

    /// Starts a registry that issues grants for a relay that refuses them. Returns its URL.
    async fn refusing() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ticket = json!({
            "environment_id": "e",
            "url": format!("ws://{address}/"),
            "security_profile": "noise_hybrid_ik_v1",
            "executor_registration_id": "r",
            "executor_public_key": NoiseIdentity::generate().public_key(),
            "harness_key_authorization": "a",
        });
        let ticket = ticket.to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
                // An upgrade request ends with its head, a registry request with its body.
                while !request.ends_with(b"\r\n\r\n") && !request.ends_with(b"}") {
                    let read = stream.read(&mut buffer).await.unwrap();
                    assert_ne!(read, 0, "request is incomplete");
                    request.extend_from_slice(&buffer[..read]);
                }
                let (status, body) = match request.starts_with(b"POST") {
                    true => ("200 OK", &*ticket),
                    false => ("403 Forbidden", ""),
                };
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn refused_ticket_is_retryable_after_the_first_connection() {
        let connector = args(&refusing().await, "e", "t").connector().unwrap();
        let error = connector.connect().await.unwrap_err();
        assert!(!error.is_transient(), "{error}");
        for error in [
            connector.reconnect().await.unwrap_err(),
            connector.renew().await.unwrap_err(),
        ] {
            assert!(error.is_transient(), "{error}");
            assert!(
                error_chain(&error).contains("403"),
                "{}",
                error_chain(&error)
            );
        }
    }

    #[test]
    fn refused_ticket_is_retryable_but_a_changed_executor_is_not() {
        let refused = || connect::ConnectError::Refused {
            status: 403,
            reason: String::new(),
        };
        assert!(!refused().is_transient());
        assert!(retryable(refused()).is_transient());
        let changed = retryable(connect::ConnectError::ExecutorChanged);
        assert!(matches!(changed, connect::ConnectError::ExecutorChanged));
    }
}
