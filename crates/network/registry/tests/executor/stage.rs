//! An executor on its stage: started, registered, let in.

use std::sync::Arc;

use exec_registry::{
    api::EnvironmentId,
    credentials::{Bearer, Token},
    executor::{Dialing, RemoteExecutor, Settings},
    http::{BaseUrl, Http},
    registry::Registry,
};
use exec_relay::identity::Identity;
use serde_json::{Value, json};

use crate::{
    harness::{Known, Relay, Stream},
    stand::Stand,
};

pub(crate) const REGISTER: &str = "/cloud/environment/env-1/register";
pub(crate) const VALIDATE: &str = "/cloud/environment/env-1/validate";

/// Describes an executor of this registry.
pub(crate) fn executor(stand: &Stand) -> RemoteExecutor {
    let token = Token::new("hub-token").unwrap();
    let base = BaseUrl::parse(&stand.http()).unwrap();
    let (credentials, http) = (Arc::new(Bearer::new(token)), Http::without_tls().unwrap());
    RemoteExecutor::new(Settings {
        registry: Registry::new(base, credentials, http).unwrap(),
        environment: EnvironmentId::new("env-1").unwrap(),
        identity: Arc::new(Identity::generate()),
        dialing: Dialing::default(),
    })
}

pub(crate) fn registered(url: &str, registration: &str) -> Value {
    json!({
        "environment_id": "env-1",
        "url": url,
        "security_profile": "noise_hybrid_ik_v1",
        "executor_registration_id": registration,
    })
}

/// Takes a registration and sends the executor to `path`; returns what harnesses are told.
pub(crate) async fn register(stand: &mut Stand, path: &str, registration: &str) -> Known {
    let request = stand.expect("POST", REGISTER).await;
    assert_eq!(request.header("authorization"), Some("Bearer hub-token"));
    let body = request.json();
    assert_eq!(body["security_profile"], "noise_hybrid_ik_v1");
    let key = serde_json::from_value(body["executor_public_key"].clone()).unwrap();
    request
        .reply(200, registered(&stand.ws(path), registration))
        .await;
    Known {
        key,
        registration: registration.to_owned(),
    }
}

/// Lets a harness in.
pub(crate) async fn admit(stand: &mut Stand, relay: &mut Relay, known: &Known, id: &str) -> Stream {
    let identity = Identity::generate();
    let knocked = relay.knock(known, id, &identity).await;
    let request = stand.expect("POST", VALIDATE).await;
    assert_eq!(request.header("x-codex-noise-stream-id"), Some(id));
    let expected = json!({
        "executor_registration_id": known.registration,
        "harness_public_key": identity.public_key(),
        "harness_key_authorization": "authorization-1",
    });
    assert_eq!(request.json(), expected);
    request.reply(200, r#"{"valid":true}"#).await;
    relay.enter(id, knocked).await
}
