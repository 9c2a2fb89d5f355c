use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::{after, bearer, epoch};
use crate::{
    principal::{Role, Roles},
    tokens::{AuthenticateError, Authenticator, JwtAuthority, JwtError, Tokens},
};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

fn hub(issuer: Option<&str>, audience: Option<&str>) -> (tempfile::TempDir, Authenticator) {
    let directory = tempfile::tempdir().unwrap();
    let tokens = Tokens::open(&directory.path().join("none")).unwrap();
    let own = |name: Option<&str>| name.map(str::to_owned);
    let jwt = JwtAuthority::new(SECRET, own(issuer), own(audience)).unwrap();
    (directory, Authenticator::new(tokens, Some(jwt)))
}

fn sign(claims: &Value) -> String {
    sign_with(claims, Algorithm::HS256, SECRET)
}

fn sign_with(claims: &Value, algorithm: Algorithm, secret: &[u8]) -> String {
    encode(
        &Header::new(algorithm),
        claims,
        &EncodingKey::from_secret(secret),
    )
    .unwrap()
}

#[test]
fn claims_make_the_principal() {
    let (_directory, hub) = hub(None, None);
    let claims = json!({"sub": "ci", "exp": after(60).seconds(), "roles": ["harness", "admin"],
        "environments": ["box-*"], "other": 1});
    let principal = hub.authenticate(&bearer(&sign(&claims)), epoch()).unwrap();
    assert_eq!(principal.name.as_str(), "ci");
    assert_eq!(principal.roles, Roles::new([Role::Harness, Role::Admin]));
    assert!(principal.environments.name(&"box-1".parse().unwrap()));

    let plain = json!({"sub": "ci", "exp": after(60).seconds()});
    let principal = hub.authenticate(&bearer(&sign(&plain)), epoch()).unwrap();
    assert_eq!(principal.roles, Roles::default());
    assert!(principal.environments.is_empty());
}

#[test]
fn forged_expired_and_foreign_tokens_are_refused() {
    let (_directory, hub) = hub(Some("us"), Some("hub"));
    let good = json!({"sub": "ci", "exp": after(60).seconds(), "iss": "us", "aud": "hub"});
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        sign(&claims)
    };
    assert!(hub.authenticate(&bearer(&sign(&good)), epoch()).is_ok());

    let mut unsigned = sign(&good);
    unsigned.truncate(unsigned.rfind('.').unwrap() + 1);
    let refused = [
        unsigned,
        // {"alg":"none"}
        format!(
            "eyJhbGciOiJub25lIn0.{}.",
            sign(&good).split('.').nth(1).unwrap()
        ),
        sign_with(&good, Algorithm::HS512, SECRET),
        sign_with(
            &good,
            Algorithm::HS256,
            b"another secret of thirty-two bytes",
        ),
        with("exp", json!(1_600_000_000)),
        with("exp", json!("1900000000")),
        with("nbf", json!(after(600).seconds())),
        with("iss", json!("them")),
        with("aud", json!("elsewhere")),
        sign(&json!({"sub": "ci", "iss": "us", "aud": "hub"})),
    ];
    for token in refused {
        let refused = hub.authenticate(&bearer(&token), epoch()).err();
        assert_eq!(
            refused,
            Some(AuthenticateError::Jwt(JwtError::Refused)),
            "{token}"
        );
    }
}

#[test]
fn claims_that_make_no_principal_are_refused() {
    let (_directory, hub) = hub(None, None);
    let exp = after(60).seconds();
    for claims in [
        json!({"exp": exp}),
        json!({"sub": "", "exp": exp}),
        json!({"sub": "a b", "exp": exp}),
        json!({"sub": 7, "exp": exp}),
        json!({"sub": "ci", "exp": exp, "roles": ["root"]}),
        json!({"sub": "ci", "exp": exp, "roles": "admin"}),
        json!({"sub": "ci", "exp": exp, "roles": []}),
        json!({"sub": "ci", "exp": exp, "environments": []}),
        json!({"sub": "ci", "exp": exp, "environments": ["["]}),
        json!({"sub": "ci", "exp": exp, "environments": "*"}),
    ] {
        let refused = hub.authenticate(&bearer(&sign(&claims)), epoch()).err();
        assert_eq!(
            refused,
            Some(AuthenticateError::Jwt(JwtError::Claims)),
            "{claims}"
        );
    }
    let large = json!({"sub": "ci", "exp": exp, "pad": "x".repeat(9000)});
    let refused = hub.authenticate(&bearer(&sign(&large)), epoch()).err();
    assert_eq!(refused, Some(AuthenticateError::Jwt(JwtError::TooLarge)));
}

#[test]
fn without_a_secret_no_jwt_counts() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = Tokens::open(&directory.path().join("none")).unwrap();
    let hub = Authenticator::new(tokens, None);
    let token = sign(&json!({"sub": "ci", "exp": after(60).seconds()}));
    let refused = hub.authenticate(&bearer(&token), epoch()).err();
    assert_eq!(refused, Some(AuthenticateError::Unknown));
    assert!(JwtAuthority::new(&[7; 31], None, None).is_err());
}
