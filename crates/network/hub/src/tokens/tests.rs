//! Tests of the token file, its reload in a running hub, and the `Authorization` header.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, thread, time::Duration};

use http::{HeaderMap, header::AUTHORIZATION};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::{
    ActiveTokens, AuthenticateError, HubTokenFileError, JwtAuthority, JwtError, NewToken,
    TokenAuthenticator, TokenEditError, TokenFileHealth, TokenId, create, file, list, revoke,
};
use crate::{
    principal::{AuthEvidence, EnvironmentGlobs, Role, RoleSet},
    store::Timestamp,
};

fn epoch() -> Timestamp {
    Timestamp::from_seconds(1_700_000_000)
}

fn after(seconds: u64) -> Timestamp {
    epoch().plus(Duration::from_secs(seconds))
}

fn token(principal: &str) -> NewToken {
    NewToken {
        principal: principal.parse().unwrap(),
        roles: RoleSet::default(),
        environments: EnvironmentGlobs::default(),
        expires_at: None,
    }
}

fn present(authorization: &str) -> http::HeaderMap {
    let mut headers = http::HeaderMap::new();
    headers.insert(http::header::AUTHORIZATION, authorization.parse().unwrap());
    headers
}

fn bearer(token: &str) -> http::HeaderMap {
    present(&format!("Bearer {token}"))
}

fn authenticator(path: &std::path::Path) -> TokenAuthenticator {
    TokenAuthenticator::new(ActiveTokens::open(path).unwrap(), None)
}

#[test]
fn requests_without_a_valid_token_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (entry, secret) = create(&path, token("alice"), epoch()).unwrap();
    let hub = authenticator(&path);
    let refused = |headers: &HeaderMap| hub.authenticate(headers, epoch()).err();

    assert_eq!(refused(&HeaderMap::new()), Some(AuthenticateError::Missing));
    let odd = ["", "Bearer", "Bearer ", "Basic YTpi", secret.expose()];
    for value in odd {
        assert_eq!(
            refused(&present(value)),
            Some(AuthenticateError::Header),
            "{value}"
        );
    }
    let cut = &secret.expose()[..secret.expose().len() - 1];
    let hash = entry.digest.to_hex();
    for foreign in [cut, "exh_", "x", hash.as_str(), "a.b.c"] {
        assert_eq!(
            refused(&bearer(foreign)),
            Some(AuthenticateError::Unknown),
            "{foreign}"
        );
    }
    let mut twice = bearer(secret.expose());
    twice.append(
        AUTHORIZATION,
        format!("Bearer {}", secret.expose()).parse().unwrap(),
    );
    assert_eq!(refused(&twice), Some(AuthenticateError::Header));

    let principal = hub.authenticate(&present(&format!("bearer  {} ", secret.expose())), epoch());
    assert_eq!(
        principal.unwrap().evidence,
        AuthEvidence::Token(entry.id.to_string())
    );
}

#[test]
fn token_is_refused_after_its_expiry() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let new = NewToken {
        expires_at: Some(after(60)),
        ..token("alice")
    };
    let (_, secret) = create(&path, new, epoch()).unwrap();
    let hub = authenticator(&path);
    let presented = bearer(secret.expose());
    assert!(hub.authenticate(&presented, after(59)).is_ok());
    let late = hub.authenticate(&presented, after(60)).err();
    assert_eq!(late, Some(AuthenticateError::Expired));
}

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

fn hub(issuer: Option<&str>, audience: Option<&str>) -> (tempfile::TempDir, TokenAuthenticator) {
    let directory = tempfile::tempdir().unwrap();
    let tokens = ActiveTokens::open(&directory.path().join("none")).unwrap();
    let own = |name: Option<&str>| name.map(str::to_owned);
    let jwt = JwtAuthority::new(SECRET, own(issuer), own(audience)).unwrap();
    (directory, TokenAuthenticator::new(tokens, Some(jwt)))
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
fn principal_is_built_from_claims() {
    let (_directory, hub) = hub(None, None);
    let claims = json!({"sub": "ci", "exp": after(60).seconds(), "roles": ["harness", "admin"],
        "environments": ["box-*"], "other": 1});
    let principal = hub.authenticate(&bearer(&sign(&claims)), epoch()).unwrap();
    assert_eq!(principal.name.as_str(), "ci");
    assert_eq!(principal.roles, RoleSet::new([Role::Harness, Role::Admin]));
    assert!(principal.environments.matches(&"box-1".parse().unwrap()));

    let plain = json!({"sub": "ci", "exp": after(60).seconds()});
    let principal = hub.authenticate(&bearer(&sign(&plain)), epoch()).unwrap();
    assert_eq!(principal.roles, RoleSet::default());
    assert!(principal.environments.is_empty());
}

#[test]
fn forged_expired_and_foreign_jwts_are_refused() {
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
fn invalid_claims_are_refused() {
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
fn jwts_are_refused_without_a_secret() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = ActiveTokens::open(&directory.path().join("none")).unwrap();
    let hub = TokenAuthenticator::new(tokens, None);
    let token = sign(&json!({"sub": "ci", "exp": after(60).seconds()}));
    let refused = hub.authenticate(&bearer(&token), epoch()).err();
    assert_eq!(refused, Some(AuthenticateError::Unknown));
    assert!(JwtAuthority::new(&[7; 31], None, None).is_err());
}

#[test]
fn created_token_is_listed_and_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/tokens.toml");
    let new = NewToken {
        roles: RoleSet::new([Role::Admin, Role::Harness]),
        environments: EnvironmentGlobs::new(vec!["dev-*".to_owned()]).unwrap(),
        expires_at: Some(after(90)),
        ..token("alice")
    };
    let (entry, secret) = create(&path, new, epoch()).unwrap();
    let listed = list(&path).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].id, entry.id);
    assert_eq!(
        (listed[0].created_at, listed[0].expires_at),
        (epoch(), Some(after(90)))
    );

    let principal = authenticator(&path)
        .authenticate(&bearer(secret.expose()), after(89))
        .unwrap();
    assert_eq!(principal.name.as_str(), "alice");
    assert_eq!(principal.roles, RoleSet::new([Role::Harness, Role::Admin]));
    assert!(principal.environments.matches(&"dev-1".parse().unwrap()));
}

#[test]
fn token_file_contains_no_tokens_and_is_private() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (_, secret) = create(&path, token("alice"), epoch()).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains(secret.expose()) && text.contains("sha256"));
    assert!(!format!("{secret:?}").contains(secret.expose()));
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn revoking_a_token_keeps_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (alice, _) = create(&path, token("alice"), epoch()).unwrap();
    let (bob, _) = create(&path, token("bob"), epoch()).unwrap();
    assert_eq!(revoke(&path, &alice.id).unwrap().principal, alice.principal);
    assert!(matches!(
        revoke(&path, &alice.id),
        Err(TokenEditError::Unknown)
    ));
    let remaining = list(&path).unwrap();
    assert_eq!(
        remaining.iter().map(|entry| &entry.id).collect::<Vec<_>>(),
        [&bob.id]
    );
}

#[test]
fn concurrent_writers_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    thread::scope(|scope| {
        for n in 0..8 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..4 {
                    create(path, token(&format!("p{n}")), epoch()).unwrap();
                }
            });
        }
    });
    assert_eq!(list(&path).unwrap().len(), 32);
    let remaining: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(remaining.len(), 2, "the file and its lock: {remaining:?}");
}

#[test]
fn symbolic_link_is_followed_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    create(&real, token("alice"), epoch()).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    create(&link, token("bob"), epoch()).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(list(&real).unwrap().len(), 2);
}

#[test]
fn useless_token_is_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let expired = NewToken {
        expires_at: Some(epoch()),
        ..token("alice")
    };
    assert!(matches!(
        create(&path, expired, epoch()),
        Err(TokenEditError::Expired)
    ));
    let idle = NewToken {
        roles: RoleSet::new([]),
        ..token("alice")
    };
    assert!(matches!(
        create(&path, idle, epoch()),
        Err(TokenEditError::NoRoles)
    ));
    assert!(!path.exists());
}

#[test]
fn invalid_file_is_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    fs::write(&path, "[[token]]\nid = 7\n").unwrap();
    assert!(matches!(
        create(&path, token("a"), epoch()),
        Err(TokenEditError::Read(_))
    ));
    let id = TokenId::new("x").unwrap();
    assert!(matches!(revoke(&path, &id), Err(TokenEditError::Read(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "[[token]]\nid = 7\n");
}

#[test]
fn errors_name_line_or_entry_and_never_quote_content() {
    const SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let good = format!(
        "[[token]]\nid = \"a\"\nprincipal = \"p\"\nsha256 = \"{SHA}\"\nroles = [\"admin\"]\n\
         created_at = 2026-01-01T00:00:00Z\n"
    );
    let path = Path::new("tokens.toml");
    assert_eq!(file::parse(&good, path).unwrap().len(), 1);
    assert!(file::parse("", path).unwrap().is_empty());

    let syntax = [
        (good.replace("\"admin\"", "\"root\""), 5),
        (good.replace("principal = \"p\"", "principal = \"a b\""), 3),
        (good.replace("roles", "role"), 5),
        (format!("{good}secret = \"exh_abc\"\n"), 7),
        ("[token]".to_owned(), 1),
        ("x".to_owned(), 1),
    ];
    for (text, expected) in syntax {
        let error = file::parse(&text, path).unwrap_err();
        assert!(!error.to_string().contains("exh_abc"), "{error}");
        let HubTokenFileError::Syntax { line, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(line, expected, "{text}");
    }
    let entries = [
        good.replace("\"a\"", "\"a b\""),
        good.replace(SHA, &SHA[1..]),
        good.replace(SHA, &SHA.replace('b', "x")),
        good.replace("[\"admin\"]", "[]"),
        good.replace("T00:00:00Z", ""),
        good.replace("00Z", "00"),
        format!("{good}environments = [\"[\"]\n"),
    ];
    for text in entries {
        let error = file::parse(&text, path).unwrap_err();
        assert!(
            matches!(error, HubTokenFileError::Entry { index: 1, .. }),
            "{error}"
        );
    }
    let twice = file::parse(&format!("{good}{good}"), path).unwrap_err();
    assert!(
        matches!(twice, HubTokenFileError::Entry { index: 2, .. }),
        "{twice}"
    );
}

#[tokio::test(start_paused = true)]
async fn running_hub_reloads_within_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let hub = authenticator(&path);
    let tokens = hub.tokens().clone();
    let following = tokio::spawn(async move { tokens.watch().await });
    assert_eq!(hub.tokens().health(), TokenFileHealth::Missing);

    let (entry, secret) = create(&path, token("alice"), epoch()).unwrap();
    let presented = bearer(secret.expose());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(hub.authenticate(&presented, epoch()).is_ok());
    assert_eq!(hub.tokens().health(), TokenFileHealth::Current);

    revoke(&path, &entry.id).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = hub.authenticate(&presented, epoch()).err();
    assert_eq!(refused, Some(AuthenticateError::Unknown));
    following.abort();
}

#[test]
fn invalid_file_keeps_the_previous_tokens_valid() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (_, secret) = create(&path, token("alice"), epoch()).unwrap();
    let hub = authenticator(&path);
    let good = fs::read(&path).unwrap();
    fs::write(&path, "[[token").unwrap();
    hub.tokens().reload_if_changed();
    assert!(hub.authenticate(&bearer(secret.expose()), epoch()).is_ok());
    assert!(matches!(hub.tokens().health(), TokenFileHealth::Stale(why) if why.contains("line 1")));

    fs::write(&path, good).unwrap();
    hub.tokens().reload_if_changed();
    assert_eq!(hub.tokens().health(), TokenFileHealth::Current);
}

#[test]
fn tokens_of_a_removed_file_become_invalid() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (_, secret) = create(&path, token("alice"), epoch()).unwrap();
    let hub = authenticator(&path);
    fs::remove_file(&path).unwrap();
    hub.tokens().reload_if_changed();
    assert!(hub.authenticate(&bearer(secret.expose()), epoch()).is_ok());
    hub.tokens().reload_if_changed();
    assert!(hub.authenticate(&bearer(secret.expose()), epoch()).is_err());
    assert_eq!(hub.tokens().health(), TokenFileHealth::Missing);
}

#[test]
fn hub_does_not_start_with_an_invalid_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    fs::write(&path, "nonsense").unwrap();
    assert!(ActiveTokens::open(&path).is_err());
    assert!(ActiveTokens::open(directory.path()).is_err());
}
