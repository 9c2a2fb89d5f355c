//! Requests to a real server on loopback, rule by rule.

mod answers;
mod failures;
mod requests;

use std::sync::Arc;

use bytes::Bytes;
use exec_relay::identity::{Identity, PublicKey};
use http::Response;
use http_body_util::Full;
use serde_json::{Value, json};

use super::{Registry, RegistryError};
use crate::{
    api::{Connected, EnvironmentId},
    credentials::{Bearer, Credentials, Token},
    http::{
        BaseUrl,
        tests::{Server, answer, http},
    },
};

fn environment() -> EnvironmentId {
    EnvironmentId::new("env-1").unwrap()
}

fn key() -> PublicKey {
    Identity::generate().public_key().clone()
}

fn registry_with(server: &Server, credentials: Arc<dyn Credentials>) -> Registry {
    let base = BaseUrl::parse(&server.url()).unwrap();
    Registry::new(base, credentials, http()).unwrap()
}

fn registry(server: &Server) -> Registry {
    let token = Token::new("tok-1").unwrap();
    registry_with(server, Arc::new(Bearer::new(token)))
}

fn registered() -> Value {
    json!({
        "environment_id": "env-1",
        "url": "wss://relay.test/ws?sig=s3cret",
        "security_profile": "noise_hybrid_ik_v1",
        "executor_registration_id": "reg-1",
        "unknown": 1,
    })
}

fn connected() -> Value {
    json!({
        "environment_id": "env-1",
        "url": "wss://relay.test/ws?sig=s3cret",
        "security_profile": "noise_hybrid_ik_v1",
        "executor_registration_id": "reg-1",
        "executor_public_key": key(),
        "harness_key_authorization": "s3cret-too",
        "unknown": 1,
    })
}

fn direct() -> Value {
    json!({
        "environment_id": "env-1",
        "transport": "direct_jsonrpc_v1",
        "registration_id": "dreg-1",
        "url": "wss://host.test/executors/env-1",
    })
}

fn json(status: u16, body: &Value) -> Response<Full<Bytes>> {
    answer(status, body.to_string())
}

/// Connects to a registry that answers like this.
async fn connect(status: u16, body: impl Into<Bytes>) -> Result<Connected, RegistryError> {
    let body = body.into();
    let server = Server::start(move |_, _| answer(status, body.clone())).await;
    registry(&server).connect(&environment(), &key()).await
}
