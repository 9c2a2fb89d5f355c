//! The token file, the running hub's view of it, and the `Authorization` header.

mod editing;
mod following;
mod header;
mod jwt;

use std::time::Duration;

use super::{Authenticator, NewToken, Tokens};
use crate::{
    principal::{Environments, Roles},
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
        roles: Roles::default(),
        environments: Environments::default(),
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

fn authenticator(path: &std::path::Path) -> Authenticator {
    Authenticator::new(Tokens::open(path).unwrap(), None)
}
