//! Tests of the store's guarantees, with both sides on different nodes.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::*;
use crate::{
    nats::NatsStore,
    store::{
        AttachError, Authorization, AuthorizeError, ClaimError, InviteClaim, RegisterError,
        TokenHash,
    },
};

async fn two_stores(broker: &Broker) -> ([Node; 2], [Arc<NatsStore>; 2]) {
    let nodes = [
        Node::join(&broker.config()).await,
        Node::join(&broker.config()).await,
    ];
    let stores = [nodes[0].mesh.store(), nodes[1].mesh.store()];
    (nodes, stores)
}

fn presence(node: &Node, registration: &Registration) -> Presence {
    Presence {
        environment: registration.environment.clone(),
        registration: registration.id.clone(),
        node: node.mesh.name().clone(),
        connection: ConnectionId::generate(),
    }
}

fn authorization(expires_at: Timestamp) -> Authorization {
    Authorization {
        environment: "env".parse().unwrap(),
        registration: "reg".parse().unwrap(),
        harness_key: key(),
        principal: "alice".parse().unwrap(),
        expires_at,
    }
}

#[tokio::test]
async fn registration_on_one_node_is_current_on_the_other() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    let environment = "env".parse().unwrap();
    assert_eq!(two.registration(&environment).await.unwrap(), None);
    let mine = key();
    let first = one.register(new("env", "alice", &mine)).await.unwrap();
    assert_eq!(
        two.registration(&environment).await.unwrap(),
        Some(first.clone())
    );
    let second = two.register(new("env", "alice", &mine)).await.unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!(one.registration(&environment).await.unwrap(), Some(second));
}

#[tokio::test]
async fn environment_has_one_owner_on_all_nodes_until_removed() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    one.register(new("env", "alice", &key())).await.unwrap();
    let foreign = two.register(new("env", "bob", &key())).await;
    assert!(matches!(
        foreign,
        Err(RegisterError::Claim(ClaimError::Foreign))
    ));
    let environment = "env".parse().unwrap();
    assert!(two.remove(&environment).await.unwrap());
    assert!(!one.remove(&environment).await.unwrap());
    one.register(new("env", "bob", &key())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_concurrent_registrations_becomes_owner() {
    let broker = Broker::start().await;
    let (_nodes, stores) = two_stores(&broker).await;
    let mine = key();
    let mut tasks = JoinSet::new();
    for n in 0..16 {
        let (store, mine) = (Arc::clone(&stores[n % 2]), mine.clone());
        tasks.spawn(async move { store.register(new("env", &format!("p{n}"), &mine)).await });
    }
    let results = tasks.join_all().await;
    let owners = results.iter().filter(|result| result.is_ok()).count();
    let foreign = results
        .iter()
        .filter(|result| matches!(result, Err(RegisterError::Claim(ClaimError::Foreign))))
        .count();
    assert_eq!((owners, foreign), (1, 15));
}

#[tokio::test]
async fn registrations_are_listed_in_order_and_in_pages() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    for name in ["c", "a", "d", "b", "a-2"] {
        one.register(new(name, "alice", &key())).await.unwrap();
    }
    one.remove(&"b".parse().unwrap()).await.unwrap();
    let page = |after: Option<&'static str>, limit| {
        let two = Arc::clone(&two);
        async move {
            let after = after.map(|id| id.parse().unwrap());
            let page = two.environments(after.as_ref(), limit).await.unwrap();
            page.iter()
                .map(|found| found.environment.to_string())
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(page(None, 3).await, ["a", "a-2", "c"]);
    assert_eq!(page(Some("c"), 3).await, ["d"]);
    assert_eq!(page(Some("b"), 1).await, ["c"]);
}

#[tokio::test]
async fn all_nodes_sign_with_one_key() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    let (first, second) = tokio::join!(one.signing_key(), two.signing_key());
    assert_eq!(first.unwrap(), second.unwrap());
    let late = Node::join(&broker.config()).await;
    assert_eq!(
        late.mesh.store().signing_key().await.unwrap(),
        one.signing_key().await.unwrap()
    );
}

#[tokio::test]
async fn only_current_registration_attaches_and_only_last_websocket_detaches() {
    let broker = Broker::start().await;
    let ([first_node, second_node], [one, two]) = two_stores(&broker).await;
    let mine = key();
    let old = one.register(new("env", "alice", &mine)).await.unwrap();
    one.attach(presence(&first_node, &old)).await.unwrap();
    let current = two.register(new("env", "alice", &mine)).await.unwrap();
    let late = one.attach(presence(&first_node, &old)).await;
    assert!(matches!(late, Err(AttachError::Superseded)));

    let first = presence(&first_node, &current);
    let second = presence(&second_node, &current);
    one.attach(first.clone()).await.unwrap();
    assert_eq!(
        first_node.presence(&first.environment).await,
        Some(first.clone())
    );
    two.attach(second.clone()).await.unwrap();
    one.detach(&first, Timestamp::now()).await.unwrap();
    assert_eq!(
        first_node.presence(&first.environment).await,
        Some(second.clone())
    );
    assert_eq!(
        second_node.presence(&first.environment).await,
        Some(second.clone())
    );
    two.detach(&second, Timestamp::now()).await.unwrap();
    assert_eq!(first_node.presence(&first.environment).await, None);
}

#[tokio::test]
async fn standby_on_any_node_waits_after_a_disconnect() {
    let broker = Broker::start().await;
    let ([first_node, _second_node], [one, two]) = two_stores(&broker).await;
    let (old, young) = (key(), key());
    let at = |key, at| NewRegistration {
        at,
        ..new("env", "alice", key)
    };
    let long_ago = Timestamp::now().minus(Duration::from_secs(3600));
    one.register(at(&old, long_ago)).await.unwrap();
    let current = one.register(at(&young, long_ago)).await.unwrap();
    let presence = presence(&first_node, &current);
    one.attach(presence.clone()).await.unwrap();
    let left_at = Timestamp::now();
    one.detach(&presence, left_at).await.unwrap();
    let seen = two
        .presences()
        .presence_record(&presence.environment, left_at);
    let seen = seen.await.unwrap();
    assert!(seen.left_at >= left_at, "{seen:?} {left_at:?}");
    let early = two.register(at(&old, Timestamp::now())).await;
    assert!(matches!(early, Err(RegisterError::Conflict)));
    let late = Timestamp::now().plus(Duration::from_secs(30));
    two.register(at(&old, late)).await.unwrap();
}

#[tokio::test]
async fn standby_waits_for_the_executor_of_a_dead_node() {
    let broker = Broker::start().await;
    let ([first_node, second_node], [one, two]) = two_stores(&broker).await;
    let current = one.register(new("env", "alice", &key())).await.unwrap();
    let presence = presence(&first_node, &current);
    one.attach(presence.clone()).await.unwrap();
    eventually(async || second_node.mesh.gauges().nodes == 2).await;
    let before = Timestamp::now();
    drop(first_node);
    let presence_record = async || {
        let seen = two
            .presences()
            .presence_record(&presence.environment, Timestamp::now());
        seen.await.unwrap()
    };
    eventually(async || presence_record().await.connected.is_none()).await;
    let seen = presence_record().await;
    assert!(seen.left_at >= before, "{seen:?} {before:?}");
}

#[tokio::test]
async fn removing_an_environment_removes_its_presence() {
    let broker = Broker::start().await;
    let ([first_node, second_node], [one, two]) = two_stores(&broker).await;
    let current = one.register(new("env", "alice", &key())).await.unwrap();
    let presence = presence(&first_node, &current);
    one.attach(presence.clone()).await.unwrap();
    two.remove(&presence.environment).await.unwrap();
    assert_eq!(second_node.presence(&presence.environment).await, None);
    assert!(matches!(
        one.attach(presence).await,
        Err(AttachError::Superseded)
    ));
}

#[tokio::test]
async fn cancelled_attach_leaves_no_presence() {
    let broker = Broker::start().await;
    let ([first_node, second_node], [one, _two]) = two_stores(&broker).await;
    let current = one.register(new("env", "alice", &key())).await.unwrap();
    for _ in 0..20 {
        let presence = presence(&first_node, &current);
        let mut attach = one.attach(presence.clone());
        // Up to a few round trips: it is dropped before, between and after its writes.
        for _ in 0..4 {
            let polled = futures_util::poll!(&mut attach);
            if polled.is_ready() {
                one.detach(&presence, Timestamp::now()).await.unwrap();
                break;
            }
            one.registration(&presence.environment).await.unwrap();
        }
        drop(attach);
        assert_eq!(first_node.presence(&presence.environment).await, None);
        eventually(async || second_node.presence(&presence.environment).await.is_none()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_redeems_on_two_nodes_have_one_winner() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    let now = Timestamp::now();
    let authorization = authorization(now.plus(Duration::from_secs(60)));
    for n in 0..100 {
        let token = TokenHash::of(&authorization.environment, &format!("token-{n}"));
        one.authorize(token, authorization.clone(), now)
            .await
            .unwrap();
        let redeem = |store: &Arc<NatsStore>| {
            let store = Arc::clone(store);
            tokio::spawn(async move { store.redeem(token, now).await.unwrap() })
        };
        let (first, second) = (redeem(&one), redeem(&two));
        let results = [first.await.unwrap(), second.await.unwrap()];
        assert_eq!(
            results.iter().flatten().collect::<Vec<_>>(),
            [&authorization],
            "{n}"
        );
        assert_eq!(two.redeem(token, now).await.unwrap(), None, "{n}");
    }
}

#[tokio::test]
async fn expired_or_unknown_authorization_cannot_be_redeemed() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    let now = Timestamp::now();
    let authorization = authorization(now);
    let token = TokenHash::of(&authorization.environment, "token");
    assert_eq!(two.redeem(token, now).await.unwrap(), None);
    one.authorize(token, authorization, now).await.unwrap();
    assert_eq!(two.redeem(token, now).await.unwrap(), None);
}

#[tokio::test]
async fn hubs_with_different_prefixes_are_isolated() {
    let broker = Broker::start().await;
    let ours = Node::join(&broker.config()).await;
    let mut config = broker.config();
    config.prefix = "other".parse().unwrap();
    let theirs = Node::join(&config).await;
    let registration = ours.register("env").await;
    let _executor = ours.connect(&registration).await;
    assert_eq!(theirs.presence(&registration.environment).await, None);
    assert_eq!(
        theirs.dial(&registration).await.unwrap_err(),
        DialError::Offline
    );
    theirs
        .mesh
        .store()
        .register(new("env", "bob", &key()))
        .await
        .unwrap();
    assert_eq!(theirs.mesh.gauges().nodes.max(1), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_on_one_node_holds_on_the_other() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    let (environment, alice) = ("env".parse().unwrap(), "alice".parse().unwrap());
    one.claim(&environment, &alice).await.unwrap();
    two.claim(&environment, &alice).await.unwrap();
    let foreign = two.claim(&environment, &"bob".parse().unwrap()).await;
    assert!(matches!(foreign, Err(ClaimError::Foreign)));
    let foreign = two.register(new("env", "bob", &key())).await;
    assert!(matches!(
        foreign,
        Err(RegisterError::Claim(ClaimError::Foreign))
    ));
    assert_eq!(two.owner(&environment).await.unwrap(), Some(alice));
    assert_eq!(two.registration(&environment).await.unwrap(), None);
    assert_eq!(two.environments(None, 10).await.unwrap().len(), 1);
    two.register(new("env", "alice", &key())).await.unwrap();
    assert!(two.remove(&environment).await.unwrap());
    assert_eq!(one.owner(&environment).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_quota_holds_across_nodes() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    let alice = "alice".parse().unwrap();
    let most = crate::limits::ENVIRONMENTS_PER_PRINCIPAL;
    for n in 0..most {
        let environment = format!("env-{n}").parse().unwrap();
        one.claim(&environment, &alice).await.unwrap();
    }
    let more = "more".parse().unwrap();
    for _ in 0..2 {
        let claimed = two.claim(&more, &alice).await;
        assert!(matches!(claimed, Err(ClaimError::Limit)), "{claimed:?}");
        let registered = two.register(new("more", "alice", &key())).await;
        assert!(matches!(
            registered,
            Err(RegisterError::Claim(ClaimError::Limit))
        ));
    }
    two.register(new("env-7", "alice", &key())).await.unwrap();
    let foreign = two.register(new("env-7", "bob", &key())).await;
    assert!(matches!(
        foreign,
        Err(RegisterError::Claim(ClaimError::Foreign))
    ));
    two.register(new("more", "bob", &key())).await.unwrap();
    // A removal releases the quota of the principal and of the hub.
    let before = one.records().await.unwrap();
    for n in 0..10 {
        let environment = format!("env-{n}").parse().unwrap();
        assert!(two.remove(&environment).await.unwrap());
    }
    assert_eq!(one.records().await.unwrap(), before - 20);
    for n in 0..10 {
        let environment = format!("again-{n}").parse().unwrap();
        one.claim(&environment, &alice).await.unwrap();
    }
    let more = "still-more".parse().unwrap();
    let claimed = one.claim(&more, &alice).await;
    assert!(matches!(claimed, Err(ClaimError::Limit)), "{claimed:?}");
}

#[tokio::test]
async fn authorizations_per_principal_are_limited_per_node() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    let now = Timestamp::now();
    let mine = authorization(now.plus(Duration::from_secs(60)));
    let hash = |n: usize| TokenHash::of(&mine.environment, &n.to_string());
    let most = crate::limits::AUTHORIZATIONS_PER_PRINCIPAL;
    for n in 0..most {
        one.authorize(hash(n), mine.clone(), now).await.unwrap();
    }
    let more = one.authorize(hash(most), mine.clone(), now).await;
    assert!(matches!(more, Err(AuthorizeError::Limit)));
    let other = Authorization {
        principal: "bob".parse().unwrap(),
        ..mine.clone()
    };
    one.authorize(hash(most), other, now).await.unwrap();
    two.authorize(hash(most + 1), mine.clone(), now)
        .await
        .unwrap();
    assert!(one.redeem(hash(0), now).await.unwrap().is_some());
    one.authorize(hash(most + 2), mine.clone(), now)
        .await
        .unwrap();
}

#[tokio::test]
async fn of_claimants_on_two_nodes_exactly_one_redeems_an_invite() {
    let broker = Broker::start().await;
    let (_nodes, [one, two]) = two_stores(&broker).await;
    let at = Timestamp::now();
    for n in 0..20 {
        let claim = |claimant| InviteClaim {
            invite: [n; 32],
            claimant: [claimant; 32],
            expires_at: at.plus(Duration::from_secs(60)),
            at,
        };
        let redeem = |store: &Arc<NatsStore>, claimant| {
            let (store, claim) = (Arc::clone(store), claim(claimant));
            tokio::spawn(async move { store.redeem_invite(claim).await.unwrap() })
        };
        let (first, second) = (redeem(&one, 1), redeem(&two, 2));
        let won = (within(first).await.unwrap(), within(second).await.unwrap());
        assert_ne!(won.0, won.1, "{n}");
        // Both nodes agree for good, and the winner may repeat the request anywhere.
        for store in [&one, &two] {
            assert_eq!(store.redeem_invite(claim(1)).await.unwrap(), won.0);
            assert_eq!(store.redeem_invite(claim(2)).await.unwrap(), won.1);
            assert!(!store.redeem_invite(claim(3)).await.unwrap());
        }
    }
}
