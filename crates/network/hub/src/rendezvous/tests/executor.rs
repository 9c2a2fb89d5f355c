//! What an executor sees.

use bytes::Bytes;
use http::StatusCode;
use tokio_tungstenite::tungstenite::Message;

use super::rig::{Broken, Rig, data, environment, resume};
use crate::circuit::Ending;

#[tokio::test(start_paused = true)]
async fn a_lost_executor_closes_its_harnesses_and_is_not_present() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut one = rig.stream(&mut executor, "one").await;
    let mut two = rig.stream(&mut executor, "two").await;
    executor.send(data("one", 0, 5)).await;
    assert!(rig.store.is_attached());
    executor.cut().await;
    assert_eq!(
        one.next().await,
        Ok(data("one", 0, 5)),
        "sent before the end"
    );
    assert_eq!(one.next().await, Err(Some(1012)));
    assert_eq!(two.next().await, Err(Some(1012)));
    assert!(!rig.store.is_attached());
    assert!(rig.counts("exec_hub_sockets{role=\"executor\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn an_executor_is_attached_before_its_upgrade_is_answered() {
    let rig = Rig::new();
    let admission = rig.admit(&rig.executor_url("reg-1")).await.unwrap();
    assert!(rig.store.is_attached());
    assert_eq!(rig.rendezvous.switch.attached().len(), 1);
    // A harness may be faster than the rest of the upgrade.
    let mut harness = rig.harness().await;
    harness.send(resume("s")).await;
    let mut executor = rig.open(admission).await;
    assert_eq!(executor.next().await, Ok(resume("s")));
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_fails_after_it_was_admitted_detaches_the_executor() {
    let rig = Rig::new();
    let admission = rig.admit(&rig.executor_url("reg-1")).await.unwrap();
    drop(admission);
    assert!(rig.rendezvous.switch.attached().is_empty());
    rig.until_detached().await;
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_the_store_did_not_take_is_refused_and_not_present() {
    for broken in [Broken::Fails, Broken::Hangs] {
        let rig = Rig::new();
        *rig.store.broken.lock().unwrap() = Some(broken);
        let refused = rig.admit(&rig.executor_url("reg-1")).await.unwrap_err();
        // The executor keeps its URL and tries again.
        let expected = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(refused.status(), expected, "{broken:?}");
        assert!(rig.rendezvous.switch.attached().is_empty());
        // A presence that stays keeps those who wait for the environment away for good.
        rig.until_detached().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_socket_of_the_same_registration_replaces_the_old_one() {
    let rig = Rig::new();
    let mut old = rig.executor().await;
    let mut harness = rig.stream(&mut old, "s").await;
    let mut new = rig.executor().await;
    assert_eq!(old.next().await, Err(Some(1012)));
    assert_eq!(harness.next().await, Err(Some(1012)));
    old.cut().await;
    assert!(
        rig.store.is_attached(),
        "the old socket leaves the new one alone"
    );
    let mut harness = rig.stream(&mut new, "s").await;
    new.send(data("s", 0, 1)).await;
    assert_eq!(harness.next().await, Ok(data("s", 0, 1)));
}

#[tokio::test(start_paused = true)]
async fn garbage_and_text_of_an_executor_are_dropped() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut harness = rig.stream(&mut executor, "s").await;
    executor.send(Bytes::from_static(b"garbage")).await;
    executor.send_message(Message::Text("text".into())).await;
    executor.send(data("nobody", 0, 1)).await;
    executor.send(data("s", 0, 1)).await;
    assert_eq!(harness.next().await, Ok(data("s", 0, 1)));
    assert!(rig.counts("exec_hub_frames_dropped_total{reason=\"garbage\"} 2"));
    assert!(rig.counts("exec_hub_frames_dropped_total{reason=\"unknown_stream\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn a_url_is_good_while_its_registration_is_current() {
    let rig = Rig::new();
    assert!(rig.admit(&rig.executor_url("reg-1")).await.is_ok());
    let refused = rig.admit(&rig.executor_url("reg-2")).await.unwrap_err();
    assert_eq!(refused.status(), StatusCode::GONE);
}

#[tokio::test(start_paused = true)]
async fn forged_urls_are_refused_by_role() {
    let rig = Rig::new();
    let status = async |url: &str| rig.admit(url).await.unwrap_err().status();
    let executor = rig.executor_url("reg-1").replace("env-1", "env-2");
    assert_eq!(status(&executor).await, StatusCode::FORBIDDEN);
    let harness = rig.harness_url().replace("env-1", "env-2");
    assert_eq!(status(&harness).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn supersession_closes_the_socket_and_its_url() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut harness = rig.stream(&mut executor, "s").await;
    let next: crate::store::RegistrationId = "reg-2".parse().unwrap();
    *rig.store.current.lock().unwrap() = next;
    let exchange = &rig.rendezvous.exchange;
    exchange.supersede(environment(), &*rig.store).await;
    assert_eq!(executor.next().await, Err(Some(1012)));
    assert_eq!(harness.next().await, Err(Some(1012)));
    let refused = rig.admit(&rig.executor_url("reg-1")).await.unwrap_err();
    assert_eq!(refused.status(), StatusCode::GONE);
}

#[tokio::test(start_paused = true)]
async fn a_registration_superseded_during_the_upgrade_is_closed() {
    let rig = Rig::new();
    let admission = rig.admit(&rig.executor_url("reg-1")).await.unwrap();
    *rig.store.current.lock().unwrap() = "reg-2".parse().unwrap();
    let exchange = &rig.rendezvous.exchange;
    exchange.supersede(environment(), &*rig.store).await;
    let mut executor = rig.open(admission).await;
    assert_eq!(executor.next().await, Err(Some(1012)));
    assert!(rig.rendezvous.switch.attached().is_empty());
}

#[tokio::test(start_paused = true)]
async fn everybody_is_told_when_the_hub_stops() {
    let rig = Rig::new();
    let mut executor = rig.executor().await;
    let mut harness = rig.stream(&mut executor, "s").await;
    rig.stop.send(true).unwrap();
    rig.rendezvous.switch.close_all(Ending::Stopping);
    assert_eq!(executor.next().await, Err(Some(1012)));
    assert_eq!(harness.next().await, Err(Some(1012)));
    let refused = rig.admit(&rig.harness_url()).await.unwrap_err();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn an_executor_admitted_just_before_the_hub_stops_is_told_so() {
    let rig = Rig::new();
    let admission = rig.admit(&rig.executor_url("reg-1")).await.unwrap();
    rig.stop.send(true).unwrap();
    rig.rendezvous.switch.close_all(Ending::Stopping);
    assert_eq!(rig.open(admission).await.next().await, Err(Some(1012)));
}
