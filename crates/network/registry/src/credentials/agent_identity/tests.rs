//! Tests of an agent identity from its token to its assertions, with an issuer on loopback.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::{KeyPair as RsaKeyPair, KeySize},
    signature::{ED25519, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, UnparsedPublicKey},
};
use base64_simd::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use crypto_box::aead::OsRng;
use http::{HeaderMap, Method, Response};
use http_body_util::Full;
use serde_json::{Value, json};

use super::{AgentKey, *};
use crate::{
    api::SecretString,
    credentials::{Credentials, SecretScope},
    http::{
        BaseUrl, ExchangeError,
        tests::{ReceivedRequest, Server, answer, http},
    },
};

/// Generating RSA keys is slow, so all tests share one.
fn issuer_key() -> &'static RsaKeyPair {
    static KEY: OnceLock<RsaKeyPair> = OnceLock::new();
    KEY.get_or_init(|| RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
}

fn jwks() -> Value {
    let public = issuer_key().public_key();
    let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode_to_string(bytes);
    let n = number(public.modulus().big_endian_without_leading_zero());
    let e = number(public.exponent().big_endian_without_leading_zero());
    json!({"keys": [
        {"kty": "NEW", "kid": "other"},
        {"kty": "RSA", "kid": "k1", "n": n, "e": e, "alg": "RS256", "use": "sig"},
    ]})
}

fn sign(header: &Value, claims: &Value) -> SecretString {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode_to_string(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let mut signature = vec![0; issuer_key().public_modulus_len()];
    issuer_key()
        .sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            signed.as_bytes(),
            &mut signature,
        )
        .unwrap();
    let signature = URL_SAFE_NO_PAD.encode_to_string(signature);
    SecretString::new(format!("{signed}.{signature}"))
}

/// An agent with its key and claims.
struct TestAgent {
    key: Ed25519KeyPair,
    pkcs8: SecretString,
    header: Value,
    claims: Value,
}

impl TestAgent {
    fn new() -> Self {
        let key = Ed25519KeyPair::generate().unwrap();
        let pkcs8 = STANDARD.encode_to_string(key.to_pkcs8v1().unwrap());
        let now = jsonwebtoken::get_current_timestamp();
        let claims = json!({
            "iss": "https://chatgpt.com/codex-backend/agent-identity",
            "aud": "codex-app-server",
            "iat": now,
            "exp": now + 600,
            "agent_runtime_id": "runtime/1",
            "agent_private_key": pkcs8,
            "account_id": "acc-1",
            "chatgpt_user_id": "user-1",
            "plan_type": "pro",
            "chatgpt_account_is_fedramp": true,
        });
        Self {
            key,
            pkcs8: SecretString::new(pkcs8),
            header: json!({"alg": "RS256", "typ": "JWT", "kid": "k1"}),
            claims,
        }
    }

    /// Sets a claim, or removes it if the value is null.
    fn claim(mut self, name: &str, value: Value) -> Self {
        let claims = self.claims.as_object_mut().unwrap();
        if value.is_null() {
            claims.remove(name);
        } else {
            claims.insert(name.to_owned(), value);
        }
        self
    }

    fn settings(&self, server: &Server) -> AgentIdentitySettings {
        AgentIdentitySettings {
            token: sign(&self.header, &self.claims),
            keys: BaseUrl::parse(&server.url()).unwrap(),
            tasks: BaseUrl::parse(&format!("{}/api/accounts/", server.url())).unwrap(),
        }
    }

    async fn establish(&self, server: &Server) -> Result<AgentIdentity, AgentIdentityError> {
        AgentIdentity::establish(&self.settings(server), &http()).await
    }

    /// Verifies a signature of this agent.
    fn signed(&self, text: &str, signature: &str) -> bool {
        let signature = STANDARD.decode_to_vec(signature).unwrap();
        UnparsedPublicKey::new(&ED25519, self.key.public_key().as_ref())
            .verify(text.as_bytes(), &signature)
            .is_ok()
    }
}

/// Serves the keys, and task responses by the number of earlier task requests.
async fn issuer(
    tasks: impl Fn(usize, &ReceivedRequest) -> Response<Full<Bytes>> + Send + Sync + 'static,
) -> Server {
    let keys = jwks().to_string();
    Server::start(move |number, request| {
        if request.method == Method::GET {
            answer(200, keys.clone())
        } else {
            tasks(number - 1, request)
        }
    })
    .await
}

async fn ready() -> Server {
    issuer(|_, _| answer(200, r#"{"task_id":"task-1","more":1}"#)).await
}

fn assertion(headers: &HeaderMap) -> String {
    let value = headers["authorization"].to_str().unwrap();
    let encoded = value.strip_prefix("AgentAssertion ").unwrap();
    String::from_utf8(URL_SAFE_NO_PAD.decode_to_vec(encoded).unwrap()).unwrap()
}

#[tokio::test]
async fn agent_registers_a_task_and_signs_each_request() {
    let (server, agent) = (ready().await, TestAgent::new());
    let identity = agent.establish(&server).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen[0].target, "/agent-identities/jwks");
    assert_eq!(
        seen[1].target,
        "/api/accounts/v1/agent/runtime%2F1/task/register"
    );
    let body = seen[1].json();
    let timestamp = body["timestamp"].as_str().unwrap();
    assert!(
        timestamp.ends_with('Z') && timestamp.len() == 20,
        "{timestamp}"
    );
    let signature = body["signature"].as_str().unwrap();
    assert!(agent.signed(&format!("runtime/1:{timestamp}"), signature));
    assert_eq!(body.as_object().unwrap().len(), 2);

    let headers = identity.headers().await.unwrap();
    assert_eq!(headers["chatgpt-account-id"], "acc-1");
    assert_eq!(headers["x-openai-fedramp"], "true");
    assert_eq!(headers.len(), 3);
    let text = assertion(&headers);
    let assertion_json: Value = serde_json::from_str(&text).unwrap();
    let member = |name: &str| assertion_json[name].as_str().unwrap().to_owned();
    let (signature, timestamp) = (member("signature"), member("timestamp"));
    assert!(agent.signed(&format!("runtime/1:task-1:{timestamp}"), &signature));
    let expected = format!(
        r#"{{"agent_runtime_id":"runtime/1","signature":"{signature}","task_id":"task-1","timestamp":"{timestamp}"}}"#
    );
    assert_eq!(text, expected);
    assert_eq!(identity.secret_scope(), SecretScope::Anywhere);
    let shown = format!("{identity:?} {:?} {headers:?}", agent.settings(&server));
    assert!(!shown.contains(&signature) && !shown.contains(agent.pkcs8.expose()));
    assert!(!shown.contains("eyJ"), "{shown}");
}

#[tokio::test]
async fn backend_api_uses_another_key_path() {
    let (server, agent) = (ready().await, TestAgent::new());
    let mut settings = agent.settings(&server);
    settings.keys = BaseUrl::parse(&format!("{}/backend-api/", server.url())).unwrap();
    AgentIdentity::establish(&settings, &http()).await.unwrap();
    let target = &server.seen()[0].target;
    assert_eq!(target, "/backend-api/wham/agent-identities/jwks");
}

#[tokio::test]
async fn invalid_tokens_are_rejected() {
    use AgentIdentityError as Error;
    let server = ready().await;
    let now = jsonwebtoken::get_current_timestamp();
    let refused = async |agent: TestAgent| agent.establish(&server).await.unwrap_err();
    let changed: [(&str, Value); 10] = [
        ("iss", json!("https://other.test")),
        ("iss", Value::Null),
        ("aud", json!("other")),
        ("aud", Value::Null),
        ("exp", Value::Null),
        ("agent_runtime_id", Value::Null),
        ("agent_private_key", Value::Null),
        ("account_id", Value::Null),
        ("account_id", json!("a\nb")),
        ("chatgpt_account_is_fedramp", json!("no")),
    ];
    for (name, value) in changed {
        let error = refused(TestAgent::new().claim(name, value)).await;
        assert!(matches!(error, Error::NotAccepted), "{name}: {error}");
    }
    let error = refused(TestAgent::new().claim("exp", json!(now - 600))).await;
    assert!(matches!(error, Error::Expired));
    let error = refused(TestAgent::new().claim("agent_private_key", json!("AAAA"))).await;
    assert!(matches!(error, Error::PrivateKey));

    let mut agent = TestAgent::new();
    agent.header = json!({"alg": "RS256", "kid": "k2"});
    assert!(matches!(refused(agent).await, Error::UnknownKey));
    let mut agent = TestAgent::new();
    agent.header = json!({"alg": "RS256", "kid": "other"});
    assert!(matches!(refused(agent).await, Error::Keys));
    for header in [
        json!({"alg": "HS256", "kid": "k1"}),
        json!({"alg": "RS256"}),
    ] {
        let mut agent = TestAgent::new();
        agent.header = header;
        assert!(matches!(refused(agent).await, Error::Token));
    }

    let agent = TestAgent::new();
    let mut settings = agent.settings(&server);
    let mut forged = sign(&agent.header, &agent.claims).into_exposed();
    let other = TestAgent::new().claims.to_string();
    let parts: Vec<_> = forged.split('.').collect();
    forged = [parts[0], &URL_SAFE_NO_PAD.encode_to_string(other), parts[2]].join(".");
    settings.token = SecretString::new(forged);
    let error = AgentIdentity::establish(&settings, &http())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotAccepted));
    settings.token = SecretString::new("at-1");
    let error = AgentIdentity::establish(&settings, &http())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Token));
    let tasks = server
        .seen()
        .iter()
        .filter(|seen| seen.method == Method::POST)
        .count();
    assert_eq!(tasks, 0);
}

#[tokio::test]
async fn unavailable_issuer_keys_are_an_error() {
    for (status, body) in [(404, "{}"), (302, "{}"), (200, "no"), (200, "{}")] {
        let server = Server::start(move |_, _| answer(status, body)).await;
        let error = TestAgent::new().establish(&server).await.unwrap_err();
        match status {
            200 => assert!(matches!(error, AgentIdentityError::Keys)),
            _ => {
                assert!(matches!(error, AgentIdentityError::KeysRefused(found) if found == status))
            }
        }
    }
}

#[tokio::test]
async fn unencrypted_issuers_are_rejected() {
    let (server, agent) = (ready().await, TestAgent::new());
    let clear = BaseUrl::parse("http://issuer.test").unwrap();
    let mut settings = agent.settings(&server);
    settings.keys = clear.clone();
    let error = AgentIdentity::establish(&settings, &http())
        .await
        .unwrap_err();
    assert!(matches!(error, AgentIdentityError::SecretScope(_)));
    let mut settings = agent.settings(&server);
    settings.tasks = clear;
    let error = AgentIdentity::establish(&settings, &http())
        .await
        .unwrap_err();
    assert!(matches!(error, AgentIdentityError::SecretScope(_)));
}

#[tokio::test]
async fn all_spellings_of_the_task_id_are_accepted() {
    let agent = TestAgent::new();
    let decryption_key = AgentKey::read(&agent.pkcs8)
        .unwrap()
        .decryption_key()
        .unwrap();
    let sealed = decryption_key
        .public_key()
        .seal(&mut OsRng, b"task-1")
        .unwrap();
    let sealed = STANDARD.encode_to_string(sealed);
    let other_key = crypto_box::SecretKey::generate(&mut OsRng);
    let sealed_for_other_key = other_key.public_key().seal(&mut OsRng, b"task-1").unwrap();
    let sealed_for_other_key = STANDARD.encode_to_string(sealed_for_other_key);
    let table = [
        (json!({"task_id": "task-1"}), true),
        (json!({"taskId": "task-1"}), true),
        (json!({"encrypted_task_id": sealed}), true),
        (json!({"encryptedTaskId": sealed}), true),
        (json!({"encrypted_task_id": sealed_for_other_key}), false),
        (json!({"encrypted_task_id": "AAAA"}), false),
        (json!({"task_id": " "}), false),
        (json!({"task_id": 7}), false),
        (json!({}), false),
    ];
    for (body, is_valid) in table {
        let text = body.to_string();
        let server = issuer(move |_, _| answer(200, text.clone())).await;
        match agent.establish(&server).await {
            Ok(identity) => {
                assert!(is_valid, "{body}");
                let header = assertion(&identity.headers().await.unwrap());
                assert!(header.contains(r#""task_id":"task-1""#), "{header}");
            }
            Err(error) => {
                assert!(!is_valid, "{body}: {error}");
                assert!(matches!(error, AgentIdentityError::TaskId));
            }
        }
    }
}

#[test]
fn decryption_key_is_derived_from_the_signing_key() {
    // RFC 8032 test 1. The expected key is its public key (0xd75a98…511a) mapped to the Montgomery
    // curve: u = (1 + y) / (1 - y) modulo 2^255 - 19.
    let seed = hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
    let expected = hex("d85e07ec22b0ad881537c2f44d662d1a143cf830c57aca4305d85c7a90f6b62e");
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
    let pkcs8 = SecretString::new(STANDARD.encode_to_string(pair.to_pkcs8v1().unwrap()));
    let decryption_key = AgentKey::read(&pkcs8).unwrap().decryption_key().unwrap();
    assert_eq!(decryption_key.public_key().as_bytes(), expected.as_slice());
}

fn hex(text: &str) -> Vec<u8> {
    data_encoding::HEXLOWER.decode(text.as_bytes()).unwrap()
}

#[tokio::test]
async fn task_registration_is_attempted_at_most_three_times() {
    let server = issuer(|number, _| match number {
        0 => answer(429, ""),
        1 => answer(503, ""),
        _ => answer(200, r#"{"task_id":"task-1"}"#),
    })
    .await;
    TestAgent::new().establish(&server).await.unwrap();
    assert_eq!(server.seen().len(), 4);

    let server = issuer(|_, _| answer(500, "")).await;
    let error = TestAgent::new().establish(&server).await.unwrap_err();
    assert!(matches!(error, AgentIdentityError::TaskRefused(500)));
    assert_eq!(server.seen().len(), 4);

    for status in [302, 400, 401, 403, 404, 408, 409] {
        let server = issuer(move |_, _| answer(status, "")).await;
        let error = TestAgent::new().establish(&server).await.unwrap_err();
        assert!(matches!(error, AgentIdentityError::TaskRefused(found) if found == status));
        assert_eq!(server.seen().len(), 2, "{status}");
    }
}

#[tokio::test]
async fn unreachable_issuer_is_a_transport_error() {
    let server = ready().await;
    let settings = TestAgent::new().settings(&server);
    drop(server);
    // The listener closes when its task is dropped.
    tokio::task::yield_now().await;
    let error = AgentIdentity::establish(&settings, &http())
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        AgentIdentityError::Exchange(ExchangeError::Unreachable(_) | ExchangeError::Interrupted(_))
    ));
}

#[tokio::test]
async fn headers_of_an_agent_are_sensitive() {
    let (server, agent) = (ready().await, TestAgent::new());
    let identity: Arc<dyn Credentials> = Arc::new(agent.establish(&server).await.unwrap());
    let headers = identity.headers().await.unwrap();
    assert!(headers["authorization"].is_sensitive());
}

#[test]
fn timestamps_are_written_in_whole_utc_seconds() {
    let at = |seconds: u64, millis| {
        rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis))
    };
    assert_eq!(at(0, 0), "1970-01-01T00:00:00Z");
    assert_eq!(at(951_827_696, 999), "2000-02-29T12:34:56Z");
    assert_eq!(at(1_767_323_045, 1), "2026-01-02T03:04:05Z");
}
