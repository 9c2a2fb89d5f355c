use std::time::Duration;

use super::{epoch, key, new, presence};
use crate::store::{Attendance, ClaimError, Record, RegisterError, Registration, Timestamp};

fn register(
    previous: &Record,
    connected: bool,
    by: &exec_relay::identity::PublicKey,
    at: Timestamp,
) -> Result<Record, RegisterError> {
    let seen = Attendance {
        connected: connected.then(|| presence(current(previous))),
        ..Attendance::default()
    };
    let new = new("env", "alice", by, at);
    let (record, made) = Record::register(Some(previous), &seen, new)?;
    assert_eq!(record.current.as_ref(), Some(&made));
    Ok(record)
}

fn first(by: &exec_relay::identity::PublicKey) -> Record {
    let new = new("env", "alice", by, epoch());
    Record::register(None, &Attendance::default(), new)
        .unwrap()
        .0
}

fn current(record: &Record) -> &Registration {
    record.current.as_ref().unwrap()
}

fn after(seconds: u64) -> Timestamp {
    epoch().plus(Duration::from_secs(seconds))
}

#[test]
fn the_newest_executor_wins_and_the_loser_waits_while_it_is_connected() {
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
fn the_loser_waits_while_its_successor_may_come_back() {
    let (old, young) = (key(), key());
    let second = register(&first(&old), true, &young, after(100)).unwrap();
    let left = Attendance {
        connected: None,
        left_at: after(1000),
    };
    let register = |at| Record::register(Some(&second), &left, new("env", "alice", &old, at));
    for seconds in [1001, 1029] {
        let refused = register(after(seconds));
        assert!(matches!(refused, Err(RegisterError::Conflict)), "{seconds}");
    }
    assert!(register(after(1030)).is_ok());
}

#[test]
fn the_same_executor_registers_again_at_any_time() {
    let mine = key();
    let first = first(&mine);
    let again = register(&first, true, &mine, after(1)).unwrap();
    assert_ne!(current(&again).id, current(&first).id);
    assert!(again.superseded.is_empty());
}

#[test]
fn a_presence_of_an_older_registration_does_not_hold_the_place() {
    let (old, young) = (key(), key());
    let first = first(&old);
    let second = register(&first, true, &young, after(0)).unwrap();
    let stale = Attendance {
        connected: Some(presence(current(&first))),
        ..Attendance::default()
    };
    let back = new("env", "alice", &old, after(30));
    assert!(Record::register(Some(&second), &stale, back).is_ok());
}

#[test]
fn of_three_executors_both_losers_wait() {
    let keys = [key(), key(), key()];
    let first = first(&keys[0]);
    let second = register(&first, true, &keys[1], after(1)).unwrap();
    let third = register(&second, true, &keys[2], after(2)).unwrap();
    for loser in &keys[..2] {
        let refused = register(&third, true, loser, after(1000));
        assert!(matches!(refused, Err(RegisterError::Conflict)));
    }
}

#[test]
fn losers_are_remembered_up_to_a_bound() {
    let mut record = first(&key());
    for seconds in 0..20 {
        record = register(&record, true, &key(), after(seconds)).unwrap();
        assert!(record.superseded.len() <= Record::MAX_SUPERSEDED);
    }
    assert_eq!(record.superseded.len(), Record::MAX_SUPERSEDED);
    assert_eq!(record.superseded.last().unwrap().at, after(19));
}

#[test]
fn somebody_else_registers_nothing_here() {
    let (first, nobody) = (first(&key()), Attendance::default());
    let refused = Record::register(
        Some(&first),
        &nobody,
        new("env", "bob", &key(), after(9999)),
    );
    assert!(matches!(refused, Err(RegisterError::Foreign)));
}

#[test]
fn who_claims_an_environment_owns_it_without_a_registration() {
    let (alice, bob) = ("alice".parse().unwrap(), "bob".parse().unwrap());
    let nobody = Attendance::default();
    let claimed = Record::claim(None, &alice).unwrap().unwrap();
    assert_eq!((&claimed.owner, &claimed.current), (&alice, &None));
    assert_eq!(Record::claim(Some(&claimed), &alice).unwrap(), None);
    let foreign = Record::claim(Some(&claimed), &bob);
    assert!(matches!(foreign, Err(ClaimError::Foreign)));
    let foreign = Record::register(Some(&claimed), &nobody, new("env", "bob", &key(), epoch()));
    assert!(matches!(foreign, Err(RegisterError::Foreign)));
    let registered = register_first(&claimed);
    assert_eq!(current(&registered).owner, alice);
}

fn register_first(claimed: &Record) -> Record {
    let new = new("env", "alice", &key(), epoch());
    Record::register(Some(claimed), &Attendance::default(), new)
        .unwrap()
        .0
}
