use std::{sync::Arc, time::Duration};

use super::{epoch, key, new, presence};
use crate::store::{
    AttachError, Authorization, EnvironmentId, Owned, RedbStore, RegisterError, Store, TokenHash,
};

fn store() -> (tempfile::TempDir, Arc<RedbStore>) {
    let directory = tempfile::tempdir().unwrap();
    let store = RedbStore::open(directory.path(), epoch()).unwrap();
    (directory, Arc::new(store))
}

#[tokio::test]
async fn the_current_registration_is_the_last_one() {
    let (_directory, store) = store();
    let environment = "env".parse().unwrap();
    assert_eq!(store.registration(&environment).await.unwrap(), None);
    let mine = key();
    let first = store
        .register(new("env", "alice", &mine, epoch()))
        .await
        .unwrap();
    let second = store
        .register(new("env", "alice", &mine, epoch()))
        .await
        .unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!(
        store.registration(&environment).await.unwrap(),
        Some(second)
    );
}

#[tokio::test]
async fn an_environment_has_one_owner_until_it_is_removed() {
    let (_directory, store) = store();
    store
        .register(new("env", "alice", &key(), epoch()))
        .await
        .unwrap();
    let foreign = store.register(new("env", "bob", &key(), epoch())).await;
    assert!(matches!(foreign, Err(RegisterError::Foreign)));
    let environment = "env".parse().unwrap();
    assert!(store.remove(&environment).await.unwrap());
    assert!(!store.remove(&environment).await.unwrap());
    store
        .register(new("env", "bob", &key(), epoch()))
        .await
        .unwrap();
}

#[tokio::test]
async fn of_many_first_registrations_one_makes_the_owner() {
    let (_directory, store) = store();
    let mine = key();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32 {
        let (store, mine) = (Arc::clone(&store), mine.clone());
        let principal = format!("p{n}");
        tasks.spawn(async move { store.register(new("env", &principal, &mine, epoch())).await });
    }
    let results = tasks.join_all().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
}

#[tokio::test]
async fn only_the_current_registration_is_attached_and_only_the_last_socket_detaches() {
    let (_directory, store) = store();
    let mine = key();
    let old = store
        .register(new("env", "alice", &mine, epoch()))
        .await
        .unwrap();
    store.attach(presence(&old)).await.unwrap();
    let current = store
        .register(new("env", "alice", &mine, epoch()))
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
async fn a_standby_waits_for_an_executor_that_left_and_for_one_whose_hub_was_restarted() {
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
    let here = presence(&current);
    store.attach(here.clone()).await.unwrap();
    store.detach(&here, at(1000)).await.unwrap();
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
async fn removing_an_environment_forgets_its_presence() {
    let (_directory, store) = store();
    let current = store
        .register(new("env", "alice", &key(), epoch()))
        .await
        .unwrap();
    let here = presence(&current);
    store.attach(here.clone()).await.unwrap();
    store.remove(&here.environment).await.unwrap();
    assert_eq!(store.presence(&here.environment).await.unwrap(), None);
    assert!(matches!(
        store.attach(here).await,
        Err(AttachError::Superseded)
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_who_redeem_a_token_exactly_one_wins() {
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
        let won = [one.await.unwrap(), two.await.unwrap()];
        assert_eq!(won.iter().flatten().count(), 1, "{n}");
    }
}

#[tokio::test]
async fn an_expired_authorization_is_worth_nothing() {
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
    let mine = key();
    for n in [3, 1, 2, 0] {
        let environment = format!("env-{n}");
        store
            .register(new(&environment, "alice", &mine, epoch()))
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
    let mine = key();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..1000 {
        let (store, mine) = (Arc::clone(&store), mine.clone());
        tasks.spawn(async move {
            let environment = format!("env-{n}");
            store
                .register(new(&environment, "alice", &mine, epoch()))
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
async fn of_many_who_claim_an_environment_one_owns_it_whichever_way_they_came() {
    let (_directory, store) = store();
    let (mine, environment) = (key(), "env".parse().unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32 {
        let (store, mine, environment) = (
            Arc::clone(&store),
            mine.clone(),
            EnvironmentId::clone(&environment),
        );
        let principal = format!("p{n}");
        tasks.spawn(async move {
            if n % 2 == 0 {
                let registered = store.register(new("env", &principal, &mine, epoch()));
                registered.await.is_ok()
            } else {
                let principal = principal.parse().unwrap();
                store.claim(&environment, &principal).await.is_ok()
            }
        });
    }
    let results = tasks.join_all().await;
    assert_eq!(results.iter().filter(|won| **won).count(), 1);
    assert!(store.owner(&environment).await.unwrap().is_some());
}

#[tokio::test]
async fn what_was_only_claimed_is_listed_and_removed_like_the_rest() {
    let (_directory, store) = store();
    let (environment, alice) = ("env".parse().unwrap(), "alice".parse().unwrap());
    store.claim(&environment, &alice).await.unwrap();
    store.claim(&environment, &alice).await.unwrap();
    assert_eq!(store.registration(&environment).await.unwrap(), None);
    let listed = store.environments(None, 10).await.unwrap();
    let expected = Owned {
        environment: environment.clone(),
        owner: alice,
        current: None,
    };
    assert_eq!(listed, [expected]);
    assert!(store.remove(&environment).await.unwrap());
    assert_eq!(store.owner(&environment).await.unwrap(), None);
}
