//! What is not an answer, and whether to ask again.

use std::{error::Error, time::Duration};

use http::header::{HeaderValue, LOCATION};
use tokio::{net::TcpListener, time::Instant};

use super::*;
use crate::{
    api::{Code, Secret, Validate},
    credentials::CredentialPipe,
    http::ExchangeError,
};

#[tokio::test]
async fn connect_is_retried_for_what_may_pass() {
    let offline = r#"{"error":{"code":"environment_offline","message":"off"}}"#;
    let detail = r#"{"detail":{"code":"environment_offline"}}"#;
    let other = r#"{"error":{"code":"other"}}"#;
    let table = [
        (302, "", false),
        (400, "", false),
        (401, "", false),
        (403, offline, false),
        (404, "", false),
        (408, "", true),
        (409, offline, true),
        (409, detail, true),
        (409, other, false),
        (409, "", false),
        (418, offline, false),
        (429, "", true),
        (500, "", true),
        (502, "", true),
        (503, "", true),
        (599, "", true),
        (200, "no json", false),
        (204, "", false),
    ];
    for (status, body, again) in table {
        let error = connect(status, body).await.unwrap_err();
        assert_eq!(error.may_connect_again(), again, "{status} {body}: {error}");
        let denied = matches!(error, RegistryError::Denied { .. });
        assert_eq!(denied, matches!(status, 401 | 403), "{status}");
    }
}

#[tokio::test]
async fn register_is_not_retried_when_it_is_ambiguous() {
    let conflict = r#"{"error":{"code":"registration_conflict"}}"#;
    let unavailable = r#"{"error":{"code":"authentication_service_unavailable"}}"#;
    let table = [
        (302, ""),
        (400, ""),
        (401, ""),
        (403, conflict),
        (404, ""),
        (409, conflict),
        (429, ""),
        (500, conflict),
        (502, conflict),
        (502, ""),
        (503, unavailable),
        (503, r#"{"detail":"registration_conflict"}"#),
        (503, ""),
        (200, ""),
    ];
    for (status, body) in table {
        let server = Server::start(move |_, _| answer(status, body)).await;
        let made = registry(&server).register(&environment(), &key()).await;
        assert!(made.is_err());
        assert_eq!(server.seen().len(), 1, "{status} {body}");
    }
}

#[tokio::test]
async fn register_waits_out_a_conflict_and_says_the_same_again() {
    let server = Server::start(|number, _| match number {
        0 => answer(503, r#"{"error":{"code":"registration_conflict"}}"#),
        1 => answer(
            502,
            r#"{"detail":{"code":"authentication_service_unavailable"}}"#,
        ),
        _ => json(200, &registered()),
    })
    .await;
    let begun = Instant::now();
    let made = registry(&server).register(&environment(), &key()).await;
    assert_eq!(made.unwrap().executor_registration_id, "reg-1");
    assert!(begun.elapsed() >= Duration::from_millis(1500));
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|request| request.body == seen[0].body));
}

#[tokio::test]
async fn a_request_that_nobody_got_may_be_sent_again() {
    // A port on which nobody listens any more.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = BaseUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let bearer = Bearer::new(Token::new("tok-1").unwrap());
    let registry = Registry::new(base, Arc::new(bearer), http()).unwrap();
    let error = registry.connect(&environment(), &key()).await.unwrap_err();
    assert!(
        error.was_not_sent() && error.may_register_again(),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_redirect_is_an_error_and_the_secret_stays_here() {
    let elsewhere = Server::start(|_, _| json(200, &registered())).await;
    let location = HeaderValue::try_from(elsewhere.url()).unwrap();
    let server = Server::start(move |_, _| {
        let mut moved = answer(308, "");
        moved.headers_mut().insert(LOCATION, location.clone());
        moved
    })
    .await;
    let error = registry(&server).register(&environment(), &key()).await;
    assert!(matches!(
        error,
        Err(RegistryError::Refused { status: 308, .. })
    ));
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_has_ten_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = BaseUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let bearer = Bearer::new(Token::new("tok-1").unwrap());
    let registry = Registry::new(base, Arc::new(bearer), http()).unwrap();
    let begun = Instant::now();
    let error = registry.register(&environment(), &key()).await.unwrap_err();
    assert!(matches!(
        error,
        RegistryError::Exchange(ExchangeError::Timeout(_))
    ));
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert!(error.may_connect_again() && !error.may_register_again());
}

#[tokio::test]
async fn what_a_registry_says_is_shown_and_cut() {
    let said = async |body: String| connect(404, body).await.unwrap_err().to_string();
    let envelope = said(r#"{"error":{"code":"gone","message":"not\u001b[2J here"}}"#.to_owned());
    assert_eq!(envelope.await, "registry refused: 404: gone: not [2J here");
    assert_eq!(
        said("plain".to_owned()).await,
        "registry refused: 404: plain"
    );
    assert_eq!(said(String::new()).await, "registry refused: 404");
    let opaque = said(r#"{"detail":"no"}"#.to_owned()).await;
    assert_eq!(opaque, r#"registry refused: 404: {"detail":"no"}"#);
    let long = said("ä".repeat(5000)).await;
    assert_eq!(long.chars().filter(|c| *c == 'ä').count(), 4096);
    let error = connect(401, "who?").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "registry refused the credentials: 401: who?"
    );
}

#[tokio::test]
async fn codes_are_known_and_not_only_shown() {
    let error = connect(409, r#"{"error":{"code":"environment_offline"}}"#).await;
    let RegistryError::Refused { code, .. } = error.unwrap_err() else {
        panic!();
    };
    assert_eq!(code, Some(Code::EnvironmentOffline));
}

/// Returns all that an error shows, however it is asked.
fn everything(error: &RegistryError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        text += &error.to_string();
        source = error.source();
    }
    text
}

#[tokio::test]
async fn bodies_are_hidden_behind_a_pipe() {
    let frame = r#"{"version":1,"environment_id":"env-1","token":"a","expires_at":99999999999}"#;
    let input = std::io::Cursor::new(format!("{frame}\n"));
    let opened = CredentialPipe::open(input, environment()).await;
    let (pipe, _end) = opened.unwrap();
    for (status, body) in [
        (401, "s3cret"),
        (404, r#"{"error":{"code":"s3cret","message":"s3cret"}}"#),
        (200, r#"{"environment_id":"s3cret"}"#),
        (200, r#""s3cret""#),
    ] {
        let server = Server::start(move |_, _| answer(status, body)).await;
        let registry = registry_with(&server, Arc::new(pipe.clone()));
        let error = registry.register(&environment(), &key()).await.unwrap_err();
        let shown = everything(&error);
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    // The code still counts.
    let body = r#"{"error":{"code":"registration_conflict"}}"#;
    let server = Server::start(move |number, _| match number {
        0 => answer(503, body),
        _ => json(200, &registered()),
    })
    .await;
    let registry = registry_with(&server, Arc::new(pipe));
    registry.register(&environment(), &key()).await.unwrap();
}

#[tokio::test]
async fn a_failed_validation_is_no_yes_and_shows_nothing() {
    let request = Validate {
        executor_registration_id: "reg-1".to_owned(),
        harness_public_key: key(),
        harness_key_authorization: Secret::new("auth-1"),
    };
    for (status, body) in [
        (500, r#"{"valid":true,"error":"s3cret"}"#),
        (302, r#"{"valid":true}"#),
        (403, "s3cret"),
        (200, r#"{"valid":"s3cret"}"#),
        (200, "{}"),
    ] {
        let server = Server::start(move |_, _| answer(status, body)).await;
        let registry = registry(&server);
        let validated = registry.validate(&environment(), "s", &request).await;
        let shown = everything(&validated.unwrap_err());
        assert!(!shown.contains("s3cret"), "{shown}");
        assert_eq!(server.seen().len(), 1);
    }
}
