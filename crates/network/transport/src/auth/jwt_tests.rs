//! Validation rules of signed tokens, through [`AuthPolicy::check`]. The tests build tokens by
//! hand, so that they can be invalid in every way and share no code with the verifier.

use std::time::Duration;

use base64_simd::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::{Sha256, Sha512};

use super::{AuthPolicy, AuthRejection, UnixSeconds};
use super::{JwtRules, SecretTooShort};
use crate::link::Principal;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const NOW: u64 = 1_800_000_000;
const SKEW: u64 = 30;

fn rules(issuer: Option<&str>, audience: Option<&str>) -> AuthPolicy {
    let (issuer, audience) = (issuer.map(str::to_owned), audience.map(str::to_owned));
    AuthPolicy::SignedBearer(
        JwtRules::new(SECRET, issuer, audience, Duration::from_secs(SKEW)).unwrap(),
    )
}

fn check_token(auth: &AuthPolicy, token: &str) -> Result<(), AuthRejection> {
    auth.check(Some(format!("Bearer {token}").as_bytes()), UnixSeconds(NOW))
        .map(drop)
}

fn signed<M: Mac + hmac::digest::KeyInit>(key: &[u8], header: &str, claims: &str) -> String {
    let message = format!("{}.{}", encode(header), encode(claims));
    let mac = <M as Mac>::new_from_slice(key)
        .unwrap()
        .chain_update(&message);
    format!("{message}.{}", encode(mac.finalize().into_bytes()))
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode_to_string(bytes)
}

fn jwt_text(claims: &str) -> String {
    signed::<Hmac<Sha256>>(SECRET, r#"{"alg":"HS256","typ":"JWT"}"#, claims)
}

fn jwt(claims: &Value) -> String {
    jwt_text(&claims.to_string())
}

#[test]
fn header_rules_come_before_jwt_rules() {
    let auth = rules(None, None);
    assert_eq!(
        auth.check(None, UnixSeconds(NOW)),
        Err(AuthRejection::MissingToken)
    );
    let basic = Some(b"Basic dTpw".as_slice());
    assert_eq!(
        auth.check(basic, UnixSeconds(NOW)),
        Err(AuthRejection::InvalidHeader)
    );
}

#[test]
fn expiry_allows_exactly_the_configured_skew() {
    let (auth, expired) = (rules(None, None), Err(AuthRejection::ExpiredJwt));
    let cases = [
        (json!(NOW + 1), Ok(())),
        (json!(NOW), Ok(())),
        (json!(NOW - SKEW), Ok(())),
        (json!(NOW - SKEW - 1), expired),
        (json!(i64::MAX), Ok(())),
        (json!(0), expired),
        (json!(-1), expired),
        (json!(i64::MIN), expired),
    ];
    for (exp, expected) in cases {
        assert_eq!(
            check_token(&auth, &jwt(&json!({"exp": exp}))),
            expected,
            "exp {exp}"
        );
    }
}

#[test]
fn not_before_allows_exactly_the_configured_skew() {
    let (auth, early) = (rules(None, None), Err(AuthRejection::JwtNotYetValid));
    let cases = [
        (json!(NOW), Ok(())),
        (json!(NOW + SKEW), Ok(())),
        (json!(NOW + SKEW + 1), early),
        (json!(i64::MAX), early),
        (json!(i64::MIN), Ok(())),
        (json!(null), Ok(())),
        (json!(1.5), Err(AuthRejection::InvalidJwt)),
        (json!("1"), Err(AuthRejection::InvalidJwt)),
    ];
    for (nbf, expected) in cases {
        assert_eq!(
            check_token(&auth, &jwt(&json!({"exp": NOW, "nbf": nbf}))),
            expected,
            "nbf {nbf}"
        );
    }
}

#[test]
fn malformed_claims_are_an_invalid_jwt() {
    let auth = rules(None, None);
    let claims = [
        "{}",
        r#"{"nbf":1}"#,
        r#"{"exp":null}"#,
        r#"{"exp":1900000000.0}"#,
        r#"{"exp":1900000000.5}"#,
        r#"{"exp":19e8}"#,
        r#"{"exp":"1900000000"}"#,
        r#"{"exp":true}"#,
        r#"{"exp":[1900000000]}"#,
        r#"{"exp":99999999999999999999}"#,
        r#"{"exp":1,"exp":1900000000}"#,
        r#"{"exp":1900000000,"iss":7}"#,
        r#"{"exp":1900000000,"aud":7}"#,
        r#"{"exp":1900000000,"aud":["a",7]}"#,
        r#"{"exp":1900000000"#,
        "[]",
        "7",
        "",
    ];
    for claims in claims {
        assert_eq!(
            check_token(&auth, &jwt_text(claims)),
            Err(AuthRejection::InvalidJwt),
            "{claims}"
        );
    }
}

#[test]
fn other_claims_are_ignored() {
    let token = jwt(&json!({"exp": NOW, "sub": 7, "iat": "x", "iss": "anyone", "aud": ["any"]}));
    assert_eq!(check_token(&rules(None, None), &token), Ok(()));
}

#[test]
fn issuer_must_match_the_configured_one() {
    let (auth, mismatch) = (
        rules(Some("harness"), None),
        Err(AuthRejection::IssuerMismatch),
    );
    assert_eq!(
        check_token(&auth, &jwt(&json!({"exp": NOW, "iss": "harness"}))),
        Ok(())
    );
    assert_eq!(
        check_token(&auth, &jwt(&json!({"exp": NOW, "iss": "Harness"}))),
        mismatch
    );
    assert_eq!(
        check_token(&auth, &jwt(&json!({"exp": NOW, "iss": null}))),
        mismatch
    );
    assert_eq!(check_token(&auth, &jwt(&json!({"exp": NOW}))), mismatch);
}

#[test]
fn audience_must_contain_the_configured_one() {
    let (auth, mismatch) = (
        rules(None, Some("box")),
        Err(AuthRejection::AudienceMismatch),
    );
    let cases = [
        (json!("box"), Ok(())),
        (json!(["box"]), Ok(())),
        (json!(["other", "box"]), Ok(())),
        (json!("other"), mismatch),
        (json!("boxes"), mismatch),
        (json!(["other"]), mismatch),
        (json!([]), mismatch),
        (json!(null), mismatch),
    ];
    for (aud, expected) in cases {
        assert_eq!(
            check_token(&auth, &jwt(&json!({"exp": NOW, "aud": aud}))),
            expected,
            "aud {aud}"
        );
    }
    assert_eq!(check_token(&auth, &jwt(&json!({"exp": NOW}))), mismatch);
}

#[test]
fn rules_are_checked_in_order() {
    let auth = rules(Some("harness"), Some("box"));
    let late = json!({"exp": 0, "nbf": NOW * 2});
    assert_eq!(
        check_token(&auth, &jwt(&late)),
        Err(AuthRejection::ExpiredJwt)
    );
    let early = json!({"exp": NOW, "nbf": NOW * 2});
    assert_eq!(
        check_token(&auth, &jwt(&early)),
        Err(AuthRejection::JwtNotYetValid)
    );
    let without_issuer = json!({"exp": NOW});
    assert_eq!(
        check_token(&auth, &jwt(&without_issuer)),
        Err(AuthRejection::IssuerMismatch)
    );
}

#[test]
fn only_hs256_with_our_secret_is_a_valid_signature() {
    let auth = rules(None, None);
    let claims = json!({"exp": NOW + 60}).to_string();
    let hs256 = |header: &str| signed::<Hmac<Sha256>>(SECRET, header, &claims);
    let good = hs256(r#"{"alg":"HS256"}"#);
    assert_eq!(check_token(&auth, &good), Ok(()));

    let (message, signature) = good.rsplit_once('.').unwrap();
    let none = format!("{}.{}", encode(r#"{"alg":"none"}"#), encode(&claims));
    let invalid_tokens = [
        ("alg none, no signature", format!("{none}.")),
        ("alg none, two parts", none.clone()),
        ("alg none, old signature", format!("{none}.{signature}")),
        ("alg none, signed", hs256(r#"{"alg":"none"}"#)),
        ("RS256 header over our HMAC", hs256(r#"{"alg":"RS256"}"#)),
        ("ES256 header over our HMAC", hs256(r#"{"alg":"ES256"}"#)),
        ("HS512 header over HS256", hs256(r#"{"alg":"HS512"}"#)),
        (
            "true HS512",
            signed::<Hmac<Sha512>>(SECRET, r#"{"alg":"HS512"}"#, &claims),
        ),
        ("HS512 signature, HS256 header", {
            signed::<Hmac<Sha512>>(SECRET, r#"{"alg":"HS256"}"#, &claims)
        }),
        ("lower-case alg", hs256(r#"{"alg":"hs256"}"#)),
        ("no alg", hs256(r#"{"typ":"JWT"}"#)),
        (
            "critical extension",
            hs256(r#"{"alg":"HS256","crit":["b64"],"b64":false}"#),
        ),
        ("null crit", hs256(r#"{"alg":"HS256","crit":null}"#)),
        ("empty crit", hs256(r#"{"alg":"HS256","crit":[]}"#)),
        (
            "other secret",
            signed::<Hmac<Sha256>>(&[b'x'; 32], r#"{"alg":"HS256"}"#, &claims),
        ),
        ("no signature", format!("{message}.")),
        ("cut signature", format!("{message}.{}", &signature[..20])),
        ("padded signature", format!("{good}=")),
        (
            "other claims",
            good.replace(&encode(&claims), &encode(r#"{"exp":1900000001}"#)),
        ),
        ("four parts", format!("{good}.{signature}")),
        ("no JWT", "x".to_owned()),
        ("three dots", "...".to_owned()),
    ];
    for (what, token) in invalid_tokens {
        assert_eq!(
            check_token(&auth, &token),
            Err(AuthRejection::InvalidJwt),
            "{what}"
        );
    }
}

#[test]
fn secret_is_trimmed_and_has_a_minimum_length() {
    let make = |secret: &[u8]| JwtRules::new(secret, None, None, Duration::ZERO);
    let padded = [b" \t", SECRET, b"\r\n"].concat();
    let auth = AuthPolicy::SignedBearer(make(&padded).unwrap());
    assert_eq!(check_token(&auth, &jwt(&json!({"exp": NOW}))), Ok(()));
    assert_eq!(make(&SECRET[1..]).err(), Some(SecretTooShort));
    assert_eq!(
        make(&[b" ", &SECRET[1..], b"\n"].concat()).err(),
        Some(SecretTooShort)
    );
    assert_eq!(make(b"").err(), Some(SecretTooShort));
    assert!(make(&[0xff; 32]).is_ok(), "a secret need not be text");
}

#[test]
fn debug_hides_the_secret() {
    let debug = format!("{:?}", rules(Some("harness"), None));
    assert!(
        debug.contains("harness") && !debug.contains("0123"),
        "{debug}"
    );
    assert!(!debug.contains("48, 49"), "{debug}");
}

#[test]
fn jwt_subject_becomes_the_principal() {
    let auth = rules(None, None);
    for (claims, subject) in [
        (json!({"exp": NOW, "sub": "ann"}), Some("ann")),
        (json!({"exp": NOW, "sub": 7}), None),
        (json!({"exp": NOW, "sub": null}), None),
        (json!({"exp": NOW}), None),
    ] {
        let header = format!("Bearer {}", jwt(&claims));
        let principal = auth.check(Some(header.as_bytes()), UnixSeconds(NOW));
        let expected = subject.map(|name| Principal(name.into()));
        assert_eq!(principal, Ok(expected), "{claims}");
    }
}
