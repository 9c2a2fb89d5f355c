//! Tests of the guarantees of every store, on the embedded one, and of supersession.

use std::{fs, os::unix::fs::PermissionsExt as _, sync::Arc, time::Duration};

use exec_relay::identity::{NoiseIdentity, NoisePublicKey};
use redb::TableDefinition;

use super::{
    AttachError, Authorization, ClaimError, ConnectionId, EnvironmentId, EnvironmentRecord,
    InviteClaim, NewRegistration, NodeName, OwnedEnvironment, Presence, PresenceRecord, RedbStore,
    RegisterError, Registration, RegistrationId, SigningKey, Store, StoreOpenError, Timestamp,
    TokenHash,
};

fn epoch() -> Timestamp {
    Timestamp::from_seconds(1_700_000_000)
}

fn key() -> NoisePublicKey {
    NoiseIdentity::generate().public_key().clone()
}

fn new(environment: &str, principal: &str, key: &NoisePublicKey, at: Timestamp) -> NewRegistration {
    NewRegistration {
        environment: environment.parse().unwrap(),
        id: RegistrationId::generate(),
        executor_key: key.clone(),
        principal: principal.parse().unwrap(),
        at,
    }
}

fn presence(registration: &Registration) -> Presence {
    Presence {
        environment: registration.environment.clone(),
        registration: registration.id.clone(),
        node: "n1".parse::<NodeName>().unwrap(),
        connection: ConnectionId::generate(),
    }
}

fn store() -> (tempfile::TempDir, Arc<RedbStore>) {
    let directory = tempfile::tempdir().unwrap();
    let store = RedbStore::open(directory.path(), epoch()).unwrap();
    (directory, Arc::new(store))
}

#[tokio::test]
async fn last_registration_is_current() {
    let (_directory, store) = store();
    let environment = "env".parse().unwrap();
    assert_eq!(store.registration(&environment).await.unwrap(), None);
    let own_key = key();
    let first = store
        .register(new("env", "alice", &own_key, epoch()))
        .await
        .unwrap();
    let second = store
        .register(new("env", "alice", &own_key, epoch()))
        .await
        .unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!(
        store.registration(&environment).await.unwrap(),
        Some(second)
    );
}

#[tokio::test]
async fn environment_has_one_owner_until_removed() {
    let (_directory, store) = store();
    store
        .register(new("env", "alice", &key(), epoch()))
        .await
        .unwrap();
    let foreign = store.register(new("env", "bob", &key(), epoch())).await;
    assert!(matches!(
        foreign,
        Err(RegisterError::Claim(ClaimError::Foreign))
    ));
    let environment = "env".parse().unwrap();
    assert!(store.remove(&environment).await.unwrap());
    assert!(!store.remove(&environment).await.unwrap());
    store
        .register(new("env", "bob", &key(), epoch()))
        .await
        .unwrap();
}

#[tokio::test]
async fn one_of_many_concurrent_registrations_becomes_owner() {
    let (_directory, store) = store();
    let own_key = key();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32 {
        let (store, own_key) = (Arc::clone(&store), own_key.clone());
        let principal = format!("p{n}");
        tasks.spawn(async move {
            store
                .register(new("env", &principal, &own_key, epoch()))
                .await
        });
    }
    let results = tasks.join_all().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
}

#[tokio::test]
async fn only_current_registration_attaches_and_only_last_websocket_detaches() {
    let (_directory, store) = store();
    let own_key = key();
    let old = store
        .register(new("env", "alice", &own_key, epoch()))
        .await
        .unwrap();
    store.attach(presence(&old)).await.unwrap();
    let current = store
        .register(new("env", "alice", &own_key, epoch()))
        .await
        .unwrap();
    let late = store.attach(presence(&old)).await;
    assert!(matches!(late, Err(AttachError::Superseded)));

    let (one, two) = (presence(&current), presence(&current));
    store.attach(one.clone()).await.unwrap();
    store.attach(two.clone()).await.unwrap();
    store.detach(&one, epoch()).await.unwrap();
    assert_eq!(
        store.presence(&one.environment).await.unwrap(),
        Some(two.clone())
    );
    store.detach(&two, epoch()).await.unwrap();
    assert_eq!(store.presence(&one.environment).await.unwrap(), None);
}

#[tokio::test]
async fn standby_waits_after_a_disconnect_and_after_a_hub_restart() {
    let (directory, store) = store();
    let at = |seconds| epoch().plus(Duration::from_secs(seconds));
    let (old, young) = (key(), key());
    store
        .register(new("env", "alice", &old, at(0)))
        .await
        .unwrap();
    let current = store
        .register(new("env", "alice", &young, at(100)))
        .await
        .unwrap();
    let connected = presence(&current);
    store.attach(connected.clone()).await.unwrap();
    store.detach(&connected, at(1000)).await.unwrap();
    let early = store.register(new("env", "alice", &old, at(1029))).await;
    assert!(matches!(early, Err(RegisterError::Conflict)));
    drop(store);

    let store = RedbStore::open(directory.path(), at(2000)).unwrap();
    let early = store.register(new("env", "alice", &old, at(2029))).await;
    assert!(matches!(early, Err(RegisterError::Conflict)));
    let late = store.register(new("env", "alice", &old, at(2030))).await;
    assert!(late.is_ok());
}

#[tokio::test]
async fn removing_an_environment_removes_its_presence() {
    let (_directory, store) = store();
    let current = store
        .register(new("env", "alice", &key(), epoch()))
        .await
        .unwrap();
    let connected = presence(&current);
    store.attach(connected.clone()).await.unwrap();
    store.remove(&connected.environment).await.unwrap();
    assert_eq!(store.presence(&connected.environment).await.unwrap(), None);
    assert!(matches!(
        store.attach(connected).await,
        Err(AttachError::Superseded)
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_redeems_of_a_token_have_one_winner() {
    let (_directory, store) = store();
    let environment = "env".parse().unwrap();
    let authorization = Authorization {
        registration: "reg".parse().unwrap(),
        harness_key: key(),
        principal: "alice".parse().unwrap(),
        expires_at: epoch().plus(Duration::from_secs(60)),
        environment,
    };
    for n in 0..200 {
        let token = TokenHash::of(&authorization.environment, &format!("token-{n}"));
        store
            .authorize(token, authorization.clone(), epoch())
            .await
            .unwrap();
        let redeem = |store: Arc<RedbStore>| {
            tokio::spawn(async move { store.redeem(token, epoch()).await.unwrap() })
        };
        let (one, two) = (redeem(Arc::clone(&store)), redeem(Arc::clone(&store)));
        let results = [one.await.unwrap(), two.await.unwrap()];
        assert_eq!(results.iter().flatten().count(), 1, "{n}");
    }
}

#[tokio::test]
async fn expired_authorization_cannot_be_redeemed() {
    let (_directory, store) = store();
    let authorization = Authorization {
        environment: "env".parse().unwrap(),
        registration: "reg".parse().unwrap(),
        harness_key: key(),
        principal: "alice".parse().unwrap(),
        expires_at: epoch().plus(Duration::from_secs(60)),
    };
    let token = TokenHash::of(&authorization.environment, "token");
    store
        .authorize(token, authorization.clone(), epoch())
        .await
        .unwrap();
    assert_eq!(
        store.redeem(token, authorization.expires_at).await.unwrap(),
        None
    );
}

#[tokio::test]
async fn registrations_are_listed_page_by_page() {
    let (_directory, store) = store();
    let own_key = key();
    for n in [3, 1, 2, 0] {
        let environment = format!("env-{n}");
        store
            .register(new(&environment, "alice", &own_key, epoch()))
            .await
            .unwrap();
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = store.environments(after.as_ref(), 3).await.unwrap();
        assert!(page.len() <= 3);
        let Some(last) = page.last() else { break };
        after = Some(last.environment.clone());
        seen.extend(page.into_iter().map(|one| one.environment.to_string()));
    }
    assert_eq!(seen, ["env-0", "env-1", "env-2", "env-3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_executors_register_at_once() {
    let (_directory, store) = store();
    let own_key = key();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..1000 {
        let (store, own_key) = (Arc::clone(&store), own_key.clone());
        tasks.spawn(async move {
            let environment = format!("env-{n}");
            store
                .register(new(&environment, "alice", &own_key, epoch()))
                .await
                .unwrap();
        });
    }
    // An executor gives up after ten seconds.
    tokio::time::timeout(Duration::from_secs(10), tasks.join_all())
        .await
        .unwrap();
    assert_eq!(store.environments(None, 2000).await.unwrap().len(), 1000);
}

#[tokio::test]
async fn concurrent_claims_and_registrations_have_one_winner() {
    let (_directory, store) = store();
    let (own_key, environment) = (key(), "env".parse().unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32 {
        let (store, own_key, environment) = (
            Arc::clone(&store),
            own_key.clone(),
            EnvironmentId::clone(&environment),
        );
        let principal = format!("p{n}");
        tasks.spawn(async move {
            if n % 2 == 0 {
                let registered = store.register(new("env", &principal, &own_key, epoch()));
                registered.await.is_ok()
            } else {
                let principal = principal.parse().unwrap();
                store.claim(&environment, &principal).await.is_ok()
            }
        });
    }
    let results = tasks.join_all().await;
    assert_eq!(results.iter().filter(|has_won| **has_won).count(), 1);
    assert!(store.owner(&environment).await.unwrap().is_some());
}

#[tokio::test]
async fn claimed_environment_is_listed_and_removable() {
    let (_directory, store) = store();
    let (environment, alice) = ("env".parse().unwrap(), "alice".parse().unwrap());
    store.claim(&environment, &alice).await.unwrap();
    store.claim(&environment, &alice).await.unwrap();
    assert_eq!(store.registration(&environment).await.unwrap(), None);
    let listed = store.environments(None, 10).await.unwrap();
    let expected = OwnedEnvironment {
        environment: environment.clone(),
        owner: alice,
        current: None,
    };
    assert_eq!(listed, [expected]);
    assert!(store.remove(&environment).await.unwrap());
    assert_eq!(store.owner(&environment).await.unwrap(), None);
}

fn register(
    previous: &EnvironmentRecord,
    connected: bool,
    by: &exec_relay::identity::NoisePublicKey,
    at: Timestamp,
) -> Result<EnvironmentRecord, RegisterError> {
    let seen = PresenceRecord {
        connected: connected.then(|| presence(current(previous))),
        ..PresenceRecord::default()
    };
    let new = new("env", "alice", by, at);
    let (record, registration) = EnvironmentRecord::register(Some(previous), &seen, new)?;
    assert_eq!(record.current.as_ref(), Some(&registration));
    Ok(record)
}

fn first(by: &exec_relay::identity::NoisePublicKey) -> EnvironmentRecord {
    let new = new("env", "alice", by, epoch());
    EnvironmentRecord::register(None, &PresenceRecord::default(), new)
        .unwrap()
        .0
}

fn current(record: &EnvironmentRecord) -> &Registration {
    record.current.as_ref().unwrap()
}

fn after(seconds: u64) -> Timestamp {
    epoch().plus(Duration::from_secs(seconds))
}

#[test]
fn newest_executor_wins_and_superseded_one_waits_while_it_is_connected() {
    let (old, young) = (key(), key());
    let first = first(&old);
    let second = register(&first, true, &young, after(100)).unwrap();
    assert_eq!(current(&second).executor_key, young);
    for (seconds, connected) in [(101, false), (129, false), (101, true), (100_000, true)] {
        let refused = register(&second, connected, &old, after(seconds));
        assert!(
            matches!(refused, Err(RegisterError::Conflict)),
            "{seconds} {connected}"
        );
    }
    let third = register(&second, false, &old, after(130)).unwrap();
    assert_eq!(current(&third).executor_key, old);
    let refused = register(&third, true, &young, after(131));
    assert!(matches!(refused, Err(RegisterError::Conflict)));
}

#[test]
fn superseded_executor_waits_while_successor_may_reconnect() {
    let (old, young) = (key(), key());
    let second = register(&first(&old), true, &young, after(100)).unwrap();
    let disconnected = PresenceRecord {
        connected: None,
        left_at: after(1000),
    };
    let register = |at| {
        EnvironmentRecord::register(Some(&second), &disconnected, new("env", "alice", &old, at))
    };
    for seconds in [1001, 1029] {
        let refused = register(after(seconds));
        assert!(matches!(refused, Err(RegisterError::Conflict)), "{seconds}");
    }
    assert!(register(after(1030)).is_ok());
}

#[test]
fn same_executor_may_register_again_anytime() {
    let own_key = key();
    let first = first(&own_key);
    let again = register(&first, true, &own_key, after(1)).unwrap();
    assert_ne!(current(&again).id, current(&first).id);
    assert!(again.superseded.is_empty());
}

#[test]
fn presence_of_an_older_registration_does_not_block() {
    let (old, young) = (key(), key());
    let first = first(&old);
    let second = register(&first, true, &young, after(0)).unwrap();
    let stale = PresenceRecord {
        connected: Some(presence(current(&first))),
        ..PresenceRecord::default()
    };
    let back = new("env", "alice", &old, after(30));
    assert!(EnvironmentRecord::register(Some(&second), &stale, back).is_ok());
}

#[test]
fn all_superseded_executors_wait() {
    let keys = [key(), key(), key()];
    let first = first(&keys[0]);
    let second = register(&first, true, &keys[1], after(1)).unwrap();
    let third = register(&second, true, &keys[2], after(2)).unwrap();
    for superseded in &keys[..2] {
        let refused = register(&third, true, superseded, after(1000));
        assert!(matches!(refused, Err(RegisterError::Conflict)));
    }
}

#[test]
fn superseded_executors_are_bounded() {
    let mut record = first(&key());
    for seconds in 0..20 {
        record = register(&record, true, &key(), after(seconds)).unwrap();
        assert!(record.superseded.len() <= EnvironmentRecord::MAX_SUPERSEDED);
    }
    assert_eq!(record.superseded.len(), EnvironmentRecord::MAX_SUPERSEDED);
    assert_eq!(record.superseded.last().unwrap().at, after(19));
}

#[test]
fn another_principal_cannot_register() {
    let (first, absent) = (first(&key()), PresenceRecord::default());
    let refused = EnvironmentRecord::register(
        Some(&first),
        &absent,
        new("env", "bob", &key(), after(9999)),
    );
    assert!(matches!(
        refused,
        Err(RegisterError::Claim(ClaimError::Foreign))
    ));
}

#[test]
fn claim_grants_ownership_without_a_registration() {
    let (alice, bob) = ("alice".parse().unwrap(), "bob".parse().unwrap());
    let absent = PresenceRecord::default();
    let claimed = EnvironmentRecord::claim(None, &alice).unwrap().unwrap();
    assert_eq!((&claimed.owner, &claimed.current), (&alice, &None));
    assert_eq!(
        EnvironmentRecord::claim(Some(&claimed), &alice).unwrap(),
        None
    );
    let foreign = EnvironmentRecord::claim(Some(&claimed), &bob);
    assert!(matches!(foreign, Err(ClaimError::Foreign)));
    let foreign =
        EnvironmentRecord::register(Some(&claimed), &absent, new("env", "bob", &key(), epoch()));
    assert!(matches!(
        foreign,
        Err(RegisterError::Claim(ClaimError::Foreign))
    ));
    let registered = register_first(&claimed);
    assert_eq!(current(&registered).owner, alice);
}

fn register_first(claimed: &EnvironmentRecord) -> EnvironmentRecord {
    let new = new("env", "alice", &key(), epoch());
    EnvironmentRecord::register(Some(claimed), &PresenceRecord::default(), new)
        .unwrap()
        .0
}

#[tokio::test]
async fn restart_keeps_owners_registrations_and_key_but_not_presence() {
    let directory = tempfile::tempdir().unwrap();
    let store = RedbStore::open(directory.path(), epoch()).unwrap();
    let signing_key = store.signing_key().await.unwrap();
    let registration = store
        .register(new("env", "alice", &key(), epoch()))
        .await
        .unwrap();
    store.attach(presence(&registration)).await.unwrap();
    drop(store);

    let store = RedbStore::open(directory.path(), epoch()).unwrap();
    assert_eq!(store.signing_key().await.unwrap(), signing_key);
    let found = store.registration(&registration.environment).await.unwrap();
    assert_eq!(found.as_ref(), Some(&registration));
    assert_eq!(
        store.presence(&registration.environment).await.unwrap(),
        None
    );
    assert!(
        store
            .register(new("env", "bob", &key(), epoch()))
            .await
            .is_err()
    );
}

#[test]
fn two_hubs_cannot_share_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let _store = RedbStore::open(directory.path(), epoch()).unwrap();
    let second = RedbStore::open(directory.path(), epoch());
    assert!(
        matches!(second, Err(StoreOpenError::InUse { .. })),
        "{second:?}"
    );
}

#[test]
fn store_files_are_private() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a/b");
    drop(RedbStore::open(&directory, epoch()).unwrap());
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory.join("hub.redb")), 0o600);
    assert_eq!(mode(directory), 0o700);
}

#[test]
fn foreign_file_is_rejected_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.redb");
    for content in [&b"not a database"[..], &[0; 8192], &[0xff; 100_000]] {
        fs::write(&path, content).unwrap();
        let opened = RedbStore::open(directory.path(), epoch());
        assert!(
            matches!(opened, Err(StoreOpenError::NotOurs { .. })),
            "{opened:?}"
        );
        assert_eq!(fs::read(&path).unwrap(), content);
    }
}

#[test]
fn damaged_file_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.redb");
    drop(RedbStore::open(directory.path(), epoch()).unwrap());
    let mut content = fs::read(&path).unwrap();
    content.truncate(content.len() / 2);
    fs::write(&path, &content).unwrap();
    let opened = RedbStore::open(directory.path(), epoch());
    assert!(
        matches!(opened, Err(StoreOpenError::NotOurs { .. })),
        "{opened:?}"
    );
}

#[tokio::test]
async fn opened_store_is_complete_despite_damage_anywhere() {
    const PLACES: usize = 64;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.redb");
    let store = RedbStore::open(directory.path(), epoch()).unwrap();
    let key = key();
    let environment = |number: usize| format!("env{number}");
    for number in 0..20 {
        let new = new(&environment(number), "alice", &key, epoch());
        store.register(new).await.unwrap();
    }
    drop(store);
    let content = fs::read(&path).unwrap();
    let used = content.iter().rposition(|byte| *byte != 0).unwrap();
    let mut refused = 0;
    for number in 0..PLACES {
        let mut damaged = content.clone();
        let at = number * used / PLACES;
        for byte in damaged.iter_mut().skip(at).take(512) {
            *byte ^= 0x55;
        }
        fs::write(&path, damaged).unwrap();
        let store = match RedbStore::open(directory.path(), epoch()) {
            Ok(store) => store,
            Err(error) => {
                assert!(matches!(error, StoreOpenError::NotOurs { .. }), "{error:?}");
                refused += 1;
                continue;
            }
        };
        for number in 0..20 {
            let name = environment(number);
            let known = store.registration(&name.parse().unwrap()).await.unwrap();
            assert!(known.is_some(), "{name} is lost by damage at {at}");
            let new = new(&name, "alice", &key, epoch());
            store.register(new).await.unwrap();
        }
    }
    assert!(refused > 0, "no damage was detected");
}

#[test]
fn database_of_another_program_or_version_is_rejected() {
    const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.redb");
    drop(redb::Database::create(&path).unwrap());
    let opened = RedbStore::open(directory.path(), epoch())
        .unwrap_err()
        .to_string();
    assert!(
        opened.ends_with("file was created by another program"),
        "{opened}"
    );

    let database = redb::Database::create(&path).unwrap();
    let writing = database.begin_write().unwrap();
    let mut meta = writing.open_table(META).unwrap();
    meta.insert("format", &b"exec-hub/1"[..]).unwrap();
    drop(meta);
    writing.commit().unwrap();
    drop(database);
    let opened = RedbStore::open(directory.path(), epoch())
        .unwrap_err()
        .to_string();
    assert!(opened.contains("exec-hub/1"), "{opened}");
}

#[test]
fn debug_redacts_secrets() {
    let key = SigningKey::from_bytes(&[7; 32]).unwrap();
    assert_eq!(format!("{key:?}"), "SigningKey(..)");
    assert_eq!(SigningKey::from_bytes(&[7; 31]), None);
    assert_ne!(
        SigningKey::generate().unwrap(),
        SigningKey::generate().unwrap()
    );
}

#[tokio::test]
async fn mark_of_an_invite_survives_a_restart_and_goes_a_day_after_its_expiry() {
    let directory = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    let claim = |invite, claimant, at| InviteClaim {
        invite: [invite; 32],
        claimant: [claimant; 32],
        expires_at: epoch().plus(day),
        at,
    };
    {
        let store = RedbStore::open(directory.path(), epoch()).unwrap();
        assert!(store.redeem_invite(claim(1, 1, epoch())).await.unwrap());
    }
    let store = RedbStore::open(directory.path(), epoch()).unwrap();
    assert!(!store.redeem_invite(claim(1, 2, epoch())).await.unwrap());
    let before = epoch().plus(day * 2).minus(Duration::from_millis(1));
    assert!(store.redeem_invite(claim(2, 2, before)).await.unwrap());
    assert!(!store.redeem_invite(claim(1, 2, before)).await.unwrap());
    // Redeeming another one cleans up; the hub refuses an expired invite before it gets here.
    let after = epoch().plus(day * 2);
    assert!(store.redeem_invite(claim(3, 2, after)).await.unwrap());
    assert!(store.redeem_invite(claim(1, 2, after)).await.unwrap());
}
