use futures_util::future::FutureExt;

use super::*;
use crate::plan::{Files, Network, Plan};

/// A hand that can be told apart.
#[derive(Debug, Eq, PartialEq)]
struct Numbered(u32);

fn bounds() -> Bounds {
    Bounds {
        of_one_plan: 2,
        in_all: 3,
        waiting: 2,
        watches: 1,
        idle: Duration::from_secs(60),
        life: Duration::from_secs(60),
    }
}

/// Keys that differ.
fn key(number: usize) -> Arc<Key> {
    let network = if number == 0 {
        Network::Host
    } else {
        Network::None
    };
    let files = if number == 2 {
        Files::View(crate::plan::View {
            base: crate::plan::Access::Read,
            layers: Vec::new(),
            forbidden: Vec::new(),
            links: Vec::new(),
        })
    } else {
        Files::All
    };
    Arc::new(Key::now(&Arc::new(Plan { files, network })))
}

async fn started(pool: &Arc<Pool<Numbered>>, number: usize, hand: u32) -> Lease<Numbered> {
    let mut lease = pool.take(&key(number)).await.unwrap();
    assert_eq!(lease.hand(), None);
    lease.put(Numbered(hand));
    lease
}

#[tokio::test]
async fn a_hand_serves_equal_plans_and_no_others() {
    let pool = Pool::new(bounds());
    started(&pool, 0, 1).await.keep();
    let mut other = pool.take(&key(1)).await.unwrap();
    assert_eq!(other.hand(), None);
    let mut same = pool.take(&key(0)).await.unwrap();
    assert_eq!(same.hand(), Some(&mut Numbered(1)));
    let mut second = pool.take(&key(0)).await.unwrap();
    assert_eq!(second.hand(), None);
    assert_eq!(pool.count(), 3);
}

#[tokio::test]
async fn who_finds_all_hands_busy_gets_the_first_that_is_given_back() {
    let pool = Pool::new(bounds());
    let [one, two] = [started(&pool, 0, 1).await, started(&pool, 0, 2).await];
    let key = key(0);
    let mut first = Box::pin(pool.take(&key));
    let mut second = Box::pin(pool.take(&key));
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());
    two.keep();
    assert_eq!(first.await.unwrap().hand(), Some(&mut Numbered(2)));
    // The first has ended by now, and so has its hand: there is a place for another.
    assert_eq!(second.await.unwrap().hand(), None);
    drop(one);
    assert_eq!(pool.count(), 0);
}

#[tokio::test]
async fn the_place_of_a_hand_that_is_gone_goes_to_who_waits() {
    let pool = Pool::new(bounds());
    let held = [
        started(&pool, 0, 1).await,
        started(&pool, 0, 2).await,
        started(&pool, 1, 3).await,
    ];
    let (same, other) = (key(0), key(2));
    let mut same = Box::pin(pool.take(&same));
    let mut other = Box::pin(pool.take(&other));
    assert!((&mut same).now_or_never().is_none());
    assert!((&mut other).now_or_never().is_none());
    let [one, two, three] = held;
    // The first in line cannot have it: its plan has two already.
    drop(three);
    let mut lease = other.now_or_never().unwrap().unwrap();
    assert_eq!(lease.hand(), None);
    drop(one);
    assert_eq!(same.now_or_never().unwrap().unwrap().hand(), None);
    drop((two, lease));
}

#[tokio::test]
async fn a_hand_of_another_plan_goes_if_it_is_given_back_while_somebody_waits() {
    let pool = Pool::new(bounds());
    let one = started(&pool, 0, 1).await;
    let _others = [started(&pool, 0, 2).await, started(&pool, 1, 3).await];
    let key = key(2);
    let mut waiting = Box::pin(pool.take(&key));
    assert!((&mut waiting).now_or_never().is_none());
    one.keep();
    assert_eq!(waiting.now_or_never().unwrap().unwrap().hand(), None);
    assert_eq!(pool.count(), 2);
}

#[tokio::test]
async fn the_hand_that_was_idle_for_the_longest_time_makes_room() {
    let pool = Pool::new(bounds());
    let [one, two, three] = [
        started(&pool, 0, 1).await,
        started(&pool, 0, 2).await,
        started(&pool, 1, 3).await,
    ];
    for lease in [two, three, one] {
        lease.keep();
    }
    let _new = started(&pool, 2, 4).await;
    assert_eq!(pool.count(), 3);
    let mut kept = pool.take(&key(0)).await.unwrap();
    assert_eq!(kept.hand(), Some(&mut Numbered(1)));
    let mut kept = pool.take(&key(1)).await.unwrap();
    assert_eq!(kept.hand(), Some(&mut Numbered(3)));
}

#[tokio::test]
async fn one_too_many_in_line_is_refused_unless_somebody_gave_up() {
    let pool = Pool::new(bounds());
    let _held = [started(&pool, 0, 1).await, started(&pool, 0, 2).await];
    let key = key(0);
    let mut line: Vec<_> = (0..2).map(|_| Box::pin(pool.take(&key))).collect();
    for waiting in &mut line {
        assert!(waiting.now_or_never().is_none());
    }
    let refused = pool.take(&key).await.unwrap_err();
    assert!(matches!(refused, FileError::Host(text) if text.contains("too many")));
    line.pop();
    assert!(pool.take(&key).now_or_never().is_none());
}

#[tokio::test]
async fn who_gave_up_is_passed_over() {
    let pool = Pool::new(bounds());
    let one = started(&pool, 0, 1).await;
    let _two = started(&pool, 0, 2).await;
    let key = key(0);
    let mut gone = Box::pin(pool.take(&key));
    let mut waiting = Box::pin(pool.take(&key));
    assert!((&mut gone).now_or_never().is_none());
    assert!((&mut waiting).now_or_never().is_none());
    drop(gone);
    one.keep();
    let mut lease = waiting.now_or_never().unwrap().unwrap();
    assert_eq!(lease.hand(), Some(&mut Numbered(1)));
}

#[tokio::test]
async fn a_hand_that_nobody_fetches_is_not_lost_to_the_count() {
    let pool = Pool::new(bounds());
    let [one, two] = [started(&pool, 0, 1).await, started(&pool, 0, 2).await];
    let key = key(0);
    let mut gone = Box::pin(pool.take(&key));
    assert!((&mut gone).now_or_never().is_none());
    one.keep();
    drop(gone);
    drop(two);
    assert_eq!(pool.count(), 0);
}

#[tokio::test]
async fn idle_hands_are_retired_when_their_time_comes() {
    let pool = Pool::new(bounds());
    let before = Instant::now();
    let busy = started(&pool, 0, 1).await;
    for (number, hand) in [(0, 2), (1, 3)] {
        started(&pool, number, hand).await.keep();
    }
    let after = Instant::now();
    let next = pool.expire(before).unwrap();
    assert!((before + bounds().idle..=after + bounds().idle).contains(&next));
    assert_eq!(pool.count(), 3);
    assert_eq!(pool.expire(after + bounds().idle), None);
    assert_eq!(pool.count(), 1);
    drop(busy);
}

#[tokio::test]
async fn nobody_has_to_ask_for_idle_hands_to_be_retired() {
    let idle = Duration::from_millis(1);
    let pool = Pool::new(Bounds { idle, ..bounds() });
    // Twice: whoever retires them ends when none is left.
    for _ in 0..2 {
        let ended = oneshot::channel();
        let mut lease = pool.take(&key(0)).await.unwrap();
        lease.put(Telling(Some(ended.0)));
        lease.keep();
        ended.1.await.unwrap();
        while pool.count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// A hand that tells its end.
struct Telling(Option<oneshot::Sender<()>>);

impl Drop for Telling {
    fn drop(&mut self) {
        if let Some(ended) = self.0.take() {
            ended.send(()).unwrap();
        }
    }
}
