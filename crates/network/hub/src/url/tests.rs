use exec_relay::identity::NoiseIdentity;
use http::StatusCode;

use super::{PublicUrl, PublicUrlError, RendezvousUrlError, UrlClaims, UrlSigner};
use crate::{
    limits,
    store::{EnvironmentId, RegistrationId, SigningKey, Timestamp},
};

const NOW: Timestamp = Timestamp::from_seconds(1_800_000_000);

fn signer(seed: u8) -> UrlSigner {
    UrlSigner::new(&SigningKey::from_bytes(&[seed; SigningKey::LEN]).unwrap())
}

fn names() -> (EnvironmentId, RegistrationId) {
    ("env-1".parse().unwrap(), "reg-1".parse().unwrap())
}

fn executor_url(signer: &UrlSigner) -> String {
    let (environment, registration) = names();
    signer.executor_url("ws://h:1", &environment, &registration)
}

fn harness_url(signer: &UrlSigner, harness: &NoiseIdentity) -> String {
    let (environment, registration) = names();
    signer.harness_url(
        "ws://h:1",
        &environment,
        &registration,
        harness.public_key(),
        NOW,
    )
}

fn check(signer: &UrlSigner, url: &str, now: Timestamp) -> Result<UrlClaims, RendezvousUrlError> {
    let url = url::Url::parse(url).unwrap();
    signer.check(url.path(), url.query(), now)
}

#[test]
fn url_grants_exactly_its_claims() {
    let signer = signer(1);
    let (environment, registration) = names();
    let executor = UrlClaims::Executor {
        environment: environment.clone(),
        registration: registration.clone(),
    };
    assert_eq!(check(&signer, &executor_url(&signer), NOW), Ok(executor));
    let harness = NoiseIdentity::generate();
    let harness_tag = |url: &str| match check(&signer, url, NOW).unwrap() {
        UrlClaims::Harness {
            environment: to,
            registration: of,
            harness,
        } => {
            assert_eq!((to, of), (environment.clone(), registration.clone()));
            harness
        }
        executor @ UrlClaims::Executor { .. } => panic!("{executor:?}"),
    };
    let (one, two) = (
        harness_url(&signer, &harness),
        harness_url(&signer, &harness),
    );
    assert_ne!(one, two);
    assert_eq!(
        harness_tag(&one),
        harness_tag(&two),
        "the tag depends only on the key"
    );
    assert_ne!(
        harness_tag(&one),
        harness_tag(&harness_url(&signer, &NoiseIdentity::generate()))
    );
}

#[test]
fn harness_url_expires_and_executor_url_does_not() {
    let signer = signer(1);
    let end = Timestamp::from_seconds(u64::MAX);
    assert!(check(&signer, &executor_url(&signer), end).is_ok());
    let url = harness_url(&signer, &NoiseIdentity::generate());
    let over = NOW.plus(limits::HARNESS_URL_LIFETIME);
    let last = Timestamp::from_millis(over.millis() - 1);
    assert!(check(&signer, &url, last).is_ok());
    assert_eq!(check(&signer, &url, over), Err(RendezvousUrlError::Expired));
    assert_eq!(
        RendezvousUrlError::Expired.status(),
        StatusCode::UNAUTHORIZED
    );
}

#[test]
fn any_change_invalidates_the_url() {
    let signer = signer(1);
    let executor = executor_url(&signer);
    for (from, to) in [
        ("env-1?", "env-2?"),
        ("registration=reg-1", "registration=reg-2"),
        ("sig=", "sig=A"),
        ("sig=", "x=1&sig="),
        ("role=environment", "role=environment&role=environment"),
    ] {
        let forged = executor.replace(from, to);
        assert_ne!(forged, executor);
        let error = check(&signer, &forged, NOW).unwrap_err();
        assert!(error.status().is_client_error(), "{forged}: {error:?}");
    }
    let tampered = executor.replace("env-1?", "env-2?");
    assert_eq!(
        check(&signer, &tampered, NOW),
        Err(RendezvousUrlError::ForgedExecutor)
    );
    assert_eq!(
        RendezvousUrlError::ForgedExecutor.status(),
        StatusCode::FORBIDDEN
    );

    let harness = harness_url(&signer, &NoiseIdentity::generate());
    for (from, to) in [
        ("env-1?", "env-2?"),
        ("registration=reg-1", "registration=reg-2"),
        ("expires=18", "expires=19"),
        ("nonce=", "nonce=0"),
        ("sig=", "sig=A"),
        ("&nonce=", "&nonce=&x="),
    ] {
        let forged = harness.replace(from, to);
        let error = check(&signer, &forged, NOW).unwrap_err();
        let expected = [
            RendezvousUrlError::ForgedHarness,
            RendezvousUrlError::Unknown,
        ];
        assert!(expected.contains(&error), "{forged}: {error:?}");
    }
    assert_eq!(
        RendezvousUrlError::ForgedHarness.status(),
        StatusCode::UNAUTHORIZED
    );
}

#[test]
fn url_of_one_role_is_invalid_for_the_other() {
    let signer = signer(1);
    let executor = executor_url(&signer).replace("role=environment", "role=harness");
    assert_eq!(
        check(&signer, &executor, NOW),
        Err(RendezvousUrlError::ForgedHarness)
    );
    let harness = harness_url(&signer, &NoiseIdentity::generate());
    let harness = harness.replace("role=harness", "role=environment");
    assert_eq!(
        check(&signer, &harness, NOW),
        Err(RendezvousUrlError::ForgedExecutor)
    );
}

#[test]
fn url_of_another_hub_is_invalid() {
    let url = executor_url(&signer(1));
    assert_eq!(
        check(&signer(2), &url, NOW),
        Err(RendezvousUrlError::ForgedExecutor)
    );
}

#[test]
fn other_urls_are_unknown() {
    let signer = signer(1);
    let long = format!("/rendezvous/env-1?role=harness&sig={}", "A".repeat(2000));
    for url in [
        "/",
        "/rendezvous",
        "/rendezvous/env-1",
        "/rendezvous/env-1?role=",
        "/rendezvous/env-1?role=admin",
        "/rendezvous/env-1?sig=x",
        long.as_str(),
    ] {
        let found = check(&signer, &format!("ws://h:1{url}"), NOW);
        assert_eq!(found, Err(RendezvousUrlError::Unknown), "{url}");
    }
}

#[test]
fn public_url_takes_precedence_over_the_host_header() {
    let fixed = |url| PublicUrl::fixed(url).map(|url| url.websocket(Some("other:9")).unwrap());
    for (url, websocket) in [
        ("http://hub.example", "ws://hub.example"),
        (" https://hub.example:8443/ ", "wss://hub.example:8443"),
        ("https://proxy.example/hub/", "wss://proxy.example/hub"),
        ("wss://[::1]:9", "wss://[::1]:9"),
    ] {
        assert_eq!(fixed(url).as_deref(), Ok(websocket));
    }
    for bad in [
        "",
        "hub",
        "ftp://h",
        "http://u:p@h",
        "http://h?x",
        "http://h#x",
    ] {
        assert_eq!(fixed(bad), Err(PublicUrlError::Public), "{bad}");
    }
}

#[test]
fn valid_host_header_is_used_unchanged() {
    let url = |host| PublicUrl::tls().websocket(host);
    assert_eq!(url(Some("hub:8765")).as_deref(), Ok("wss://hub:8765"));
    assert_eq!(url(Some("[::1]:1")).as_deref(), Ok("wss://[::1]:1"));
    assert_eq!(
        PublicUrl::plain().websocket(Some("h")).as_deref(),
        Ok("ws://h")
    );
    for bad in [
        None,
        Some(""),
        Some("a/b"),
        Some("a b"),
        Some("u@h"),
        Some(":80"),
    ] {
        assert_eq!(url(bad), Err(PublicUrlError::Host), "{bad:?}");
    }
}
