use std::time::Duration;

use super::{epoch, key, new, presence};
use crate::store::{Record, RegisterError, Timestamp};

fn register(
    previous: &Record,
    connected: bool,
    by: &exec_relay::identity::PublicKey,
    at: Timestamp,
) -> Result<Record, RegisterError> {
    let presence = connected.then(|| presence(&previous.current));
    Record::register(
        Some(previous),
        presence.as_ref(),
        new("env", "alice", by, at),
    )
}

fn after(seconds: u64) -> Timestamp {
    epoch().plus(Duration::from_secs(seconds))
}

#[test]
fn the_newest_executor_wins_and_the_loser_waits_while_it_is_connected() {
    let (old, young) = (key(), key());
    let first = Record::register(None, None, new("env", "alice", &old, after(0))).unwrap();
    let second = register(&first, true, &young, after(100)).unwrap();
    assert_eq!(second.current.executor_key, young);
    for (seconds, connected) in [(101, false), (129, false), (101, true), (100_000, true)] {
        let refused = register(&second, connected, &old, after(seconds));
        assert!(
            matches!(refused, Err(RegisterError::Conflict)),
            "{seconds} {connected}"
        );
    }
    let third = register(&second, false, &old, after(130)).unwrap();
    assert_eq!(third.current.executor_key, old);
    let refused = register(&third, true, &young, after(131));
    assert!(matches!(refused, Err(RegisterError::Conflict)));
}

#[test]
fn the_same_executor_registers_again_at_any_time() {
    let mine = key();
    let first = Record::register(None, None, new("env", "alice", &mine, after(0))).unwrap();
    let again = register(&first, true, &mine, after(1)).unwrap();
    assert_ne!(again.current.id, first.current.id);
    assert!(again.superseded.is_empty());
}

#[test]
fn a_presence_of_an_older_registration_does_not_hold_the_place() {
    let (old, young) = (key(), key());
    let first = Record::register(None, None, new("env", "alice", &old, after(0))).unwrap();
    let second = register(&first, true, &young, after(0)).unwrap();
    let stale = presence(&first.current);
    let back = new("env", "alice", &old, after(30));
    assert!(Record::register(Some(&second), Some(&stale), back).is_ok());
}

#[test]
fn of_three_executors_both_losers_wait() {
    let keys = [key(), key(), key()];
    let first = Record::register(None, None, new("env", "alice", &keys[0], after(0))).unwrap();
    let second = register(&first, true, &keys[1], after(1)).unwrap();
    let third = register(&second, true, &keys[2], after(2)).unwrap();
    for loser in &keys[..2] {
        let refused = register(&third, true, loser, after(1000));
        assert!(matches!(refused, Err(RegisterError::Conflict)));
    }
}

#[test]
fn losers_are_remembered_up_to_a_bound() {
    let mut record = Record::register(None, None, new("env", "alice", &key(), after(0))).unwrap();
    for seconds in 0..20 {
        record = register(&record, true, &key(), after(seconds)).unwrap();
        assert!(record.superseded.len() <= Record::MAX_SUPERSEDED);
    }
    assert_eq!(record.superseded.len(), Record::MAX_SUPERSEDED);
    assert_eq!(record.superseded.last().unwrap().at, after(19));
}

#[test]
fn somebody_else_registers_nothing_here() {
    let first = Record::register(None, None, new("env", "alice", &key(), after(0))).unwrap();
    let refused = Record::register(Some(&first), None, new("env", "bob", &key(), after(9999)));
    assert!(matches!(refused, Err(RegisterError::Foreign)));
}
