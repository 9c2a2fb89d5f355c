use std::{fs, time::Duration};

use super::{authenticator, bearer, epoch, token};
use crate::tokens::{AuthenticateError, Health, Tokens, create, revoke};

#[tokio::test(start_paused = true)]
async fn the_running_hub_notices_within_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let hub = authenticator(&path);
    let tokens = hub.tokens().clone();
    let following = tokio::spawn(async move { tokens.follow().await });
    assert_eq!(hub.tokens().health(), Health::Missing);

    let (entry, secret) = create(&path, token("alice"), epoch()).unwrap();
    let presented = bearer(secret.expose());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(hub.authenticate(&presented, epoch()).is_ok());
    assert_eq!(hub.tokens().health(), Health::Current);

    revoke(&path, &entry.id).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = hub.authenticate(&presented, epoch()).err();
    assert_eq!(refused, Some(AuthenticateError::Unknown));
    following.abort();
}

#[test]
fn a_broken_file_leaves_the_last_good_one_in_force() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (_, secret) = create(&path, token("alice"), epoch()).unwrap();
    let hub = authenticator(&path);
    let good = fs::read(&path).unwrap();
    fs::write(&path, "[[token").unwrap();
    hub.tokens().look();
    assert!(hub.authenticate(&bearer(secret.expose()), epoch()).is_ok());
    assert!(matches!(hub.tokens().health(), Health::Stale(why) if why.contains("line 1")));

    fs::write(&path, good).unwrap();
    hub.tokens().look();
    assert_eq!(hub.tokens().health(), Health::Current);
}

#[test]
fn a_file_that_stays_away_takes_its_tokens_along() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (_, secret) = create(&path, token("alice"), epoch()).unwrap();
    let hub = authenticator(&path);
    fs::remove_file(&path).unwrap();
    hub.tokens().look();
    assert!(hub.authenticate(&bearer(secret.expose()), epoch()).is_ok());
    hub.tokens().look();
    assert!(hub.authenticate(&bearer(secret.expose()), epoch()).is_err());
    assert_eq!(hub.tokens().health(), Health::Missing);
}

#[test]
fn a_hub_does_not_start_on_a_broken_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    fs::write(&path, "nonsense").unwrap();
    assert!(Tokens::open(&path).is_err());
    assert!(Tokens::open(directory.path()).is_err());
}
