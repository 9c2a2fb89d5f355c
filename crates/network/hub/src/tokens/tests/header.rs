use http::{HeaderMap, header::AUTHORIZATION};

use super::{after, authenticator, bearer, epoch, present, token};
use crate::{
    principal::Evidence,
    tokens::{AuthenticateError, NewToken, create},
};

#[test]
fn nobody_gets_in_without_a_token() {
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

    let let_in = hub.authenticate(&present(&format!("bearer  {} ", secret.expose())), epoch());
    assert_eq!(
        let_in.unwrap().evidence,
        Evidence::Token(entry.id.to_string())
    );
}

#[test]
fn a_token_ends_at_its_time() {
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
