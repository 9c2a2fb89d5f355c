//! Rules that apply to every kind of token, and the capability token, through
//! [`AuthPolicy::check`].

use std::time::{Duration, UNIX_EPOCH};

use super::*;

const NOW: u64 = 1_800_000_000;

fn check_token(auth: &AuthPolicy, token: &str) -> Result<(), AuthRejection> {
    auth.check(Some(format!("Bearer {token}").as_bytes()), UnixSeconds(NOW))
        .map(drop)
}

#[test]
fn rejection_texts_match_the_protocol() {
    let texts = [
        (
            AuthRejection::MissingToken,
            "missing websocket bearer token",
        ),
        (AuthRejection::InvalidHeader, "invalid authorization header"),
        (
            AuthRejection::InvalidToken,
            "invalid websocket bearer token",
        ),
        (AuthRejection::InvalidJwt, "invalid websocket jwt"),
        (AuthRejection::ExpiredJwt, "expired websocket jwt"),
        (
            AuthRejection::JwtNotYetValid,
            "websocket jwt is not valid yet",
        ),
        (
            AuthRejection::IssuerMismatch,
            "websocket jwt issuer mismatch",
        ),
        (
            AuthRejection::AudienceMismatch,
            "websocket jwt audience mismatch",
        ),
    ];
    for (rejection, text) in texts {
        assert_eq!(rejection.to_string(), text);
    }
}

#[test]
fn open_ignores_the_header() {
    for header in [
        None,
        Some(b"".as_slice()),
        Some(b"\xff"),
        Some(b"Bearer anything"),
    ] {
        assert_eq!(AuthPolicy::Open.check(header, UnixSeconds(NOW)), Ok(None));
    }
    assert!(!AuthPolicy::Open.is_required());
}

#[test]
fn capability_token_admits_only_its_bearer() {
    let auth = AuthPolicy::CapabilityToken(TokenDigest::of_token("open sésame\n"));
    assert!(auth.is_required());
    assert_eq!(check_token(&auth, "open sésame"), Ok(()));
    assert_eq!(check_token(&auth, " open sésame\t"), Ok(()));
    for wrong in ["open", "Open sésame", "open sésame!", "open  sésame"] {
        assert_eq!(
            check_token(&auth, wrong),
            Err(AuthRejection::InvalidToken),
            "{wrong}"
        );
    }
    assert_eq!(check_token(&auth, " "), Err(AuthRejection::InvalidHeader));
    assert_eq!(
        auth.check(None, UnixSeconds(NOW)),
        Err(AuthRejection::MissingToken)
    );
}

#[test]
fn empty_capability_token_rejects_every_client() {
    let auth = AuthPolicy::CapabilityToken(TokenDigest::of_token(" \n"));
    assert_eq!(check_token(&auth, ""), Err(AuthRejection::InvalidHeader));
    assert_eq!(check_token(&auth, "x"), Err(AuthRejection::InvalidToken));
}

#[test]
fn unix_seconds_round_down() {
    let time = UNIX_EPOCH + Duration::from_millis(1_999);
    assert_eq!(UnixSeconds::from(time), UnixSeconds(1));
    assert_eq!(
        UnixSeconds::from(UNIX_EPOCH - Duration::from_secs(5)),
        UnixSeconds(0)
    );
}
