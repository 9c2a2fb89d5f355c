//! The process table, with scripted processes.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use exec_env::process::{
    CheckoutError, EvictionPolicy, ExecProcess, ProcessAllocation, ProcessNumber, ProcessTable,
    TableFull,
};
use exec_test_support::fake_process::{FakeProcess, ProcessCall};
use exec_wire::{id::OutputSeq, process::TerminateMode};

const WINDOW: Duration = Duration::from_millis(250);
const CAP: usize = 1000;

fn table(when_full: EvictionPolicy) -> ProcessTable {
    let mut suffixes = ["x", "y", "z"].into_iter().cycle();
    let suffix = move || suffixes.next().unwrap().to_owned();
    ProcessTable::new(NonZeroUsize::new(2).unwrap(), when_full, suffix)
}

/// Inserts a running process.
fn insert_process(table: &ProcessTable) -> (ProcessNumber, FakeProcess) {
    let allocated = table.allocate().unwrap();
    let number = allocated.number;
    let fake = FakeProcess::default();
    let process = fake.handle(allocated.id.clone());
    let removed = table.insert(allocated, &process, OutputSeq(0)).unwrap();
    assert!(removed.is_none());
    (number, fake)
}

fn one_more(table: &ProcessTable) -> (ProcessAllocation, Arc<dyn ExecProcess>) {
    let allocated = table.allocate().unwrap();
    let process = FakeProcess::default().handle(allocated.id.clone());
    (allocated, process)
}

#[test]
fn numbers_are_unique_and_part_of_the_id() {
    let table = table(EvictionPolicy::Refuse);
    let ids: Vec<String> = (0..3)
        .map(|_| table.allocate().unwrap().id.to_string())
        .collect();
    assert_eq!(ids, ["1-x", "2-y", "3-z"]);
    assert!(table.is_empty(), "nothing was inserted");
}

#[test]
fn overlong_suffix_is_rejected() {
    let table = ProcessTable::new(NonZeroUsize::MIN, EvictionPolicy::Refuse, || {
        "x".repeat(2000)
    });
    assert!(table.allocate().is_err());
}

#[tokio::test(start_paused = true)]
async fn windows_are_contiguous_and_the_end_is_reported_once() {
    let table = table(EvictionPolicy::Refuse);
    let (number, fake) = insert_process(&table);
    fake.print("one");
    let first = table
        .check_out(number)
        .unwrap()
        .collect(WINDOW, CAP)
        .await
        .unwrap();
    assert_eq!(
        (first.collected.bytes(), first.ended),
        (b"one".to_vec(), None)
    );
    fake.print("two");
    fake.exit(7);
    fake.close();
    let second = table
        .check_out(number)
        .unwrap()
        .collect(WINDOW, CAP)
        .await
        .unwrap();
    assert_eq!(second.collected.bytes(), b"two");
    assert_eq!(second.ended.map(|ended| ended.exit.code), Some(7));
    assert!(table.take_ended().is_empty());
    assert_eq!(
        table.check_out(number).unwrap_err(),
        CheckoutError::Unknown(number)
    );
}

#[tokio::test(start_paused = true)]
async fn output_remains_readable_after_the_end_was_reported() {
    let table = table(EvictionPolicy::Refuse);
    let (number, fake) = insert_process(&table);
    assert!(table.take_ended().is_empty());
    fake.print("all");
    fake.exit(0);
    fake.close();
    let ended = table.take_ended();
    assert_eq!((ended.len(), ended[0].number), (1, number));
    assert!(table.take_ended().is_empty());
    let window = table
        .check_out(number)
        .unwrap()
        .collect(WINDOW, CAP)
        .await
        .unwrap();
    assert_eq!(
        (window.collected.bytes(), window.ended),
        (b"all".to_vec(), None)
    );
    assert!(table.is_empty());
}

#[tokio::test(start_paused = true)]
async fn dropped_window_is_repeated_by_the_next() {
    let table = table(EvictionPolicy::Refuse);
    let (number, fake) = insert_process(&table);
    fake.print("text");
    {
        let mut session = table.check_out(number).unwrap();
        let short = tokio::time::timeout(WINDOW / 2, session.collect(WINDOW, CAP));
        assert!(short.await.is_err());
        assert_eq!(
            table.check_out(number).unwrap_err(),
            CheckoutError::Busy(number)
        );
    }
    let mut session = table.check_out(number).unwrap();
    let window = session.collect(WINDOW, CAP).await.unwrap();
    assert_eq!(window.collected.bytes(), b"text");
}

#[test]
fn ended_process_is_evicted_first() {
    for when_full in [
        EvictionPolicy::Refuse,
        EvictionPolicy::EvictLeastRecentlyUsed,
    ] {
        let table = table(when_full);
        let (_, _running) = insert_process(&table);
        let (ended, fake) = insert_process(&table);
        fake.exit(1);
        let (allocated, process) = one_more(&table);
        let removed = table.insert(allocated, &process, OutputSeq(0));
        let removed = removed.unwrap().unwrap();
        assert_eq!(removed.number, ended);
        assert_eq!(removed.ended.unwrap().exit.code, 1);
        assert_eq!(table.len(), 2);
    }
}

#[test]
fn full_table_rejects_under_the_refuse_policy() {
    let table = table(EvictionPolicy::Refuse);
    let _processes = [insert_process(&table), insert_process(&table)];
    let (allocated, process) = one_more(&table);
    let refused = table.insert(allocated, &process, OutputSeq(0)).unwrap_err();
    assert_eq!(refused, TableFull(NonZeroUsize::new(2).unwrap()));
}

#[test]
fn full_table_evicts_the_least_recently_used_process() {
    let table = table(EvictionPolicy::EvictLeastRecentlyUsed);
    let [(first, _), (second, fake)] = [insert_process(&table), insert_process(&table)];
    drop(table.check_out(first).unwrap());
    let (allocated, process) = one_more(&table);
    let third = allocated.number;
    let removed = table.insert(allocated, &process, OutputSeq(0)).unwrap();
    let removed = removed.unwrap();
    assert_eq!((removed.number, &removed.ended), (second, &None));
    drop(removed);
    assert!(fake.is_dropped(), "the table dropped it");
    // A process that is checked out is not evicted.
    let _sessions = [
        table.check_out(first).unwrap(),
        table.check_out(third).unwrap(),
    ];
    let (allocated, process) = one_more(&table);
    assert!(table.insert(allocated, &process, OutputSeq(0)).is_err());
}

#[test]
fn recently_used_processes_are_protected_from_eviction() {
    let table = table(EvictionPolicy::EvictLeastRecentlyUsed).with_protected(1);
    let [(first, _), (second, fake)] = [insert_process(&table), insert_process(&table)];
    fake.exit(0);
    assert_eq!(table.check_capacity(), Ok(()));
    let (allocated, process) = one_more(&table);
    let removed = table.insert(allocated, &process, OutputSeq(0)).unwrap();
    assert_eq!(
        removed.unwrap().number,
        first,
        "the ended one was used last"
    );
    table.check_out(second).unwrap().forget();
    assert_eq!(
        table.check_out(second).unwrap_err(),
        CheckoutError::Unknown(second)
    );
    let table = table.with_protected(2);
    let _processes = insert_process(&table);
    let full = TableFull(NonZeroUsize::new(2).unwrap());
    assert_eq!(table.check_capacity(), Err(full));
}

#[tokio::test(start_paused = true)]
async fn terminate_all_ends_and_removes_every_process() {
    let table = table(EvictionPolicy::Refuse);
    let [(first, one), (second, other)] = [insert_process(&table), insert_process(&table)];
    let mode = TerminateMode::Graceful { timeout_ms: 10 };
    let outcomes = table.terminate_all(mode).await;
    assert_eq!(outcomes, [(first, Ok(true)), (second, Ok(true))]);
    let calls = [ProcessCall::Terminate(mode), ProcessCall::Drop];
    assert_eq!([one.calls(), other.calls()], [&calls, &calls]);
    assert!(table.is_empty());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_table_drops_its_processes() {
    let table = table(EvictionPolicy::Refuse);
    let (_, fake) = insert_process(&table);
    let clone = table.clone();
    drop(table);
    assert!(!fake.is_dropped());
    drop(clone);
    assert!(fake.is_dropped());
}
