//! Tests of the registry without websockets.

mod admission;
mod operations;

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use exec_relay::identity::{NoiseIdentity, NoisePublicKey};
use exec_transport::http::service::HttpPeer;
use futures_util::future::{BoxFuture, FutureExt as _, ready};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use super::*;
use crate::{
    audit::AuditLog,
    circuit::{Circuit, CircuitDialer, DialError, DialRequest},
    direct::{AccessKeys, DirectService},
    principal::{EnvironmentGlobs, Role, RoleSet},
    rate_limit::{RateLimitConfig, RateLimiter},
    store::{ConnectionId, EnvironmentId, Presence, RedbStore, RegistrationId, Store, Timestamp},
    tokens::{ActiveTokens, InviteTokenSigner, NewToken, TokenAuthenticator, create},
    url::{PublicUrl, UrlSigner},
};

/// A dialer that records calls of `supersede` and connects nothing.
#[derive(Debug, Default)]
pub(crate) struct RecordingDialer(Mutex<Vec<(EnvironmentId, Option<RegistrationId>)>>);

impl CircuitDialer for RecordingDialer {
    fn dial(&self, _: DialRequest) -> BoxFuture<'_, Result<Circuit, DialError>> {
        ready(Err(DialError::Offline)).boxed()
    }

    fn supersede<'a>(
        &'a self,
        environment: EnvironmentId,
        store: &'a dyn Store,
    ) -> BoxFuture<'a, ()> {
        async move {
            let current = store.registration(&environment).await.unwrap();
            let current = current.map(|current| current.id);
            self.0.lock().unwrap().push((environment, current));
        }
        .boxed()
    }
}

impl RecordingDialer {
    /// Returns the calls since the last time.
    pub(crate) fn superseded(&self) -> Vec<(EnvironmentId, Option<RegistrationId>)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A hub without websockets, with tokens of its users.
pub(crate) struct TestHub {
    directory: tempfile::TempDir,
    pub(crate) services: HubServices,
    pub(crate) direct: Arc<DirectService>,
    pub(crate) sockets: Arc<RecordingDialer>,
    registry: RegistryService,
    pub(crate) invite_signer: InviteTokenSigner,
    /// The clock.
    pub(crate) moment: RequestTime,
}

impl TestHub {
    pub(crate) async fn new() -> Self {
        Self::with(RateLimitConfig::default(), None).await
    }

    pub(crate) async fn with(rules: RateLimitConfig, keys: Option<AccessKeys>) -> Self {
        Self::open(tempfile::tempdir().unwrap(), rules, keys).await
    }

    /// Restarts the same hub.
    pub(crate) async fn restart(self) -> Self {
        let Self {
            directory,
            services,
            direct,
            registry,
            ..
        } = self;
        drop((services, direct, registry));
        Self::open(directory, RateLimitConfig::default(), None).await
    }

    /// Starts another node of the same hub: it shares the store but no memory.
    pub(crate) fn second_node(&self) -> (RegistryService, Arc<DirectService>) {
        let direct = Arc::new(DirectService::new(self.services.clone(), None));
        let registry = RegistryService::new(self.services.clone(), Arc::clone(&direct));
        (registry, direct)
    }

    async fn open(
        directory: tempfile::TempDir,
        rules: RateLimitConfig,
        keys: Option<AccessKeys>,
    ) -> Self {
        let tokens = directory.path().join("tokens.toml");
        let authenticator = TokenAuthenticator::new(ActiveTokens::open(&tokens).unwrap(), None);
        let audit = AuditLog::file(&directory.path().join("audit.log")).unwrap();
        let now = Timestamp::from_seconds(1_700_000_000);
        let store = Arc::new(RedbStore::open(directory.path(), now).unwrap());
        let key = store.signing_key().await.unwrap();
        let invite_signer = InviteTokenSigner::new(&key);
        let authenticator = authenticator.with_invites(invite_signer.clone());
        let sockets = Arc::new(RecordingDialer::default());
        let services = HubServices {
            gate: Arc::new(RequestGate::new(
                authenticator,
                RateLimiter::new(rules),
                audit,
            )),
            signer: Arc::new(UrlSigner::new(&key)),
            store,
            dialer: Arc::clone(&sockets) as Arc<dyn CircuitDialer>,
            address: PublicUrl::plain(),
        };
        let direct = Arc::new(DirectService::new(services.clone(), keys));
        Self {
            registry: RegistryService::new(services.clone(), Arc::clone(&direct)),
            directory,
            services,
            direct,
            sockets,
            invite_signer,
            moment: RequestTime {
                at: now,
                instant: Instant::now(),
            },
        }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.moment.at = self.moment.at.plus(by);
        self.moment.instant += by;
    }

    pub(crate) fn token_file(&self) -> std::path::PathBuf {
        self.directory.path().join("tokens.toml")
    }

    /// Creates a token with the roles to run executors and to use them.
    pub(crate) fn token(&self, principal: &str) -> SecretString {
        self.token_for(principal, &[Role::Executor, Role::Harness], &[])
    }

    pub(crate) fn token_for(
        &self,
        principal: &str,
        roles: &[Role],
        globs: &[&str],
    ) -> SecretString {
        let new = NewToken {
            principal: principal.parse().unwrap(),
            roles: RoleSet::new(roles.iter().copied()),
            environments: EnvironmentGlobs::new(
                globs.iter().map(|&glob| glob.to_owned()).collect(),
            )
            .unwrap(),
            expires_at: None,
        };
        let path = self.directory.path().join("tokens.toml");
        let (_, token) = create(&path, new, self.moment.at).unwrap();
        self.services
            .gate
            .authenticator()
            .tokens()
            .reload_if_changed();
        token
    }

    /// Posts a JSON value.
    pub(crate) async fn post(&self, path: &str, token: &SecretString, body: &Value) -> Reply {
        self.send(post(path, token, body)).await
    }

    /// Posts a JSON value to another node.
    pub(crate) async fn post_to(
        &self,
        node: &RegistryService,
        path: &str,
        token: &SecretString,
        body: &Value,
    ) -> Reply {
        let request = post(path, token, body).map(|body| Full::new(Bytes::from(body)));
        let peer = HttpPeer::Network("192.0.2.7:1234".parse().unwrap());
        Reply::of(node.serve(request, peer, self.moment).await).await
    }

    pub(crate) async fn send(&self, request: Request<String>) -> Reply {
        let peer = HttpPeer::Network("192.0.2.7:1234".parse().unwrap());
        self.send_from(request, peer).await
    }

    async fn send_from(&self, request: Request<String>, peer: HttpPeer) -> Reply {
        let request = request.map(|body| Full::new(Bytes::from(body)));
        Reply::of(self.registry.serve(request, peer, self.moment).await).await
    }

    pub(crate) async fn register(
        &self,
        environment: &str,
        token: &SecretString,
        key: &NoisePublicKey,
    ) -> Reply {
        let body = json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key});
        self.post(&format!("{environment}/register"), token, &body)
            .await
    }

    /// Registers with any text as the token. Returns the status.
    pub(crate) async fn register_with(&self, environment: &str, token: &str) -> u16 {
        let body = json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key()});
        let path = format!("/cloud/environment/{environment}/register");
        let request = plain(Method::POST, &path)
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .body(body.to_string())
            .unwrap();
        self.send(request).await.status.as_u16()
    }

    pub(crate) async fn connect(
        &self,
        environment: &str,
        token: &SecretString,
        key: &NoisePublicKey,
    ) -> Reply {
        let body = json!({"harness_public_key": key});
        self.post(&format!("{environment}/connect"), token, &body)
            .await
    }

    /// Attaches the executor in the store.
    pub(crate) async fn attach(&self, environment: &str, registered: &Reply) {
        let presence = Presence {
            environment: environment.parse().unwrap(),
            registration: registered.text("executor_registration_id").parse().unwrap(),
            node: "n1".parse().unwrap(),
            connection: ConnectionId::generate(),
        };
        self.services.store.attach(presence).await.unwrap();
    }

    /// Waits until the audit log has a line for an action, and returns it.
    pub(crate) async fn await_line(&self, action: &str) -> Value {
        let path = self.directory.path().join("audit.log");
        let mut pause = tokio::time::interval(Duration::from_millis(5));
        let found = async {
            loop {
                let text = fs::read_to_string(&path).unwrap();
                let mut lines = text
                    .lines()
                    .filter_map(|line| serde_json::from_str(line).ok());
                if let Some(line) = lines.find(|line: &Value| line["action"] == action) {
                    return line;
                }
                pause.tick().await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(10), found).await;
        found.expect("no audit line")
    }

    /// Returns the audit log after dropping the hub.
    fn audit_lines(self) -> Vec<Value> {
        let path: PathBuf = self.directory.path().join("audit.log");
        let Self {
            directory,
            services,
            direct,
            registry,
            ..
        } = self;
        drop((services, direct, registry));
        let text = fs::read_to_string(path).unwrap();
        drop(directory);
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Reply {
    pub(crate) async fn of(response: Result<http::Response<Full<Bytes>>, HttpRefusal>) -> Self {
        Self::read(response.unwrap_or_else(HttpRefusal::into_response)).await
    }

    pub(crate) async fn read(response: http::Response<Full<Bytes>>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self {
            status: parts.status,
            headers: parts.headers,
            body: serde_json::from_slice(&body).unwrap(),
        }
    }

    pub(crate) fn text(&self, member: &str) -> &str {
        self.body[member]
            .as_str()
            .unwrap_or_else(|| panic!("{member} of {self:?}"))
    }

    /// Returns status and code of a refusal.
    pub(crate) fn refusal(&self) -> (u16, &str) {
        let error = &self.body["error"];
        assert!(error["message"].is_string(), "{self:?}");
        (self.status.as_u16(), error["code"].as_str().unwrap())
    }
}

fn post(path: &str, token: &SecretString, body: &Value) -> Request<String> {
    Request::post(format!("/cloud/environment/{path}"))
        .header("host", "hub.example:8765")
        .header("authorization", format!("Bearer {}", token.expose()))
        .header("content-type", "application/json")
        .body(body.to_string())
        .unwrap()
}

pub(crate) fn key() -> NoisePublicKey {
    NoiseIdentity::generate().public_key().clone()
}

fn plain(method: Method, path: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "hub.example")
}

#[test]
fn paths_are_matched_whole() {
    let found = RegistryRoute::parse("/cloud/environment/env-1/direct/register").unwrap();
    assert_eq!(found.environment, "env-1");
    assert_eq!(found.operation, RegistryOperation::DirectRegister);
    for path in [
        "/cloud/environment/env-1",
        "/cloud/environment/env-1/",
        "/cloud/environment/env-1/register/",
        "/cloud/environment/a/b/register",
        "/cloud/environment/env-1/Register",
        "/x/cloud/environment/env-1/register",
        "/cloud/environment/",
        "/",
    ] {
        assert_eq!(RegistryRoute::parse(path), None, "{path}");
    }
}
