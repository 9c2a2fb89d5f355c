use bytes::Bytes;
use exec_core::log::{Event, Exit, OutputChunk};
use exec_wire::{
    bytes::Base64,
    id::OutputSeq,
    process::{ExitCause, OutputPage, OutputStream, PageChunk, Usage},
};

use super::{Broken, Reorder};

fn output(seq: u64) -> Event {
    sized(seq, 1)
}

fn sized(seq: u64, length: usize) -> Event {
    let data = Bytes::from(vec![b'x'; length]);
    Event::Output(OutputChunk {
        seq: OutputSeq(seq),
        stream: OutputStream::Stdout,
        data,
    })
}

fn exited(seq: u64) -> Event {
    let exit = Exit {
        code: 3,
        signal: None,
        cause: ExitCause::Unknown,
        usage: None,
        sandbox_denied: false,
    };
    Event::Exited(OutputSeq(seq), exit)
}

fn page(chunks: &[u64], next_seq: u64) -> OutputPage {
    let chunk = |seq: &u64| PageChunk {
        seq: OutputSeq(*seq),
        stream: OutputStream::Stdout,
        chunk: Base64(Bytes::from_static(b"x")),
    };
    OutputPage {
        chunks: chunks.iter().map(chunk).collect(),
        next_seq: OutputSeq(next_seq),
        exited: false,
        exit_code: None,
        closed: false,
        failure: None,
        sandbox_denied: false,
        exit_seq: None,
        signal: None,
        cause: None,
        usage: None,
    }
}

fn ended(chunks: &[u64], next_seq: u64) -> OutputPage {
    OutputPage {
        exited: true,
        exit_code: Some(3),
        closed: true,
        ..page(chunks, next_seq)
    }
}

fn numbers(order: &mut Reorder) -> Vec<u64> {
    std::iter::from_fn(|| order.poll_event())
        .map(|event| event.seq().0)
        .collect()
}

#[test]
fn events_come_out_by_their_numbers_and_once() {
    let mut order = Reorder::new();
    for seq in [2, 4, 1, 1, 2, 3] {
        order.handle_event(output(seq)).unwrap();
    }
    assert_eq!(numbers(&mut order), [1, 2, 3, 4]);
    assert_eq!(order.gap(), None);
}

#[test]
fn a_gap_is_filled_by_a_page() {
    let mut order = Reorder::new();
    order.handle_event(output(1)).unwrap();
    order.handle_event(output(4)).unwrap();
    assert_eq!(order.gap(), Some(OutputSeq(1)));
    order.handle_page(page(&[2, 3, 4], 5)).unwrap();
    assert_eq!(numbers(&mut order), [1, 2, 3, 4]);
}

#[test]
fn the_one_number_that_is_no_output_is_the_exit() {
    let mut order = Reorder::new();
    order.handle_event(Event::Closed(OutputSeq(4))).unwrap();
    order.handle_page(ended(&[1, 3], 5)).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| order.poll_event()).collect();
    assert_eq!(
        events,
        [output(1), exited(2), output(3), Event::Closed(OutputSeq(4))]
    );
}

#[test]
fn a_gap_that_is_not_filled_is_a_loss() {
    let mut order = Reorder::new();
    order.handle_event(output(9)).unwrap();
    assert_eq!(
        order.handle_page(page(&[5, 6, 7, 8, 9], 10)),
        Err(Broken::Lost(OutputSeq(1), OutputSeq(4)))
    );
    let mut order = Reorder::new();
    order.handle_event(Event::Closed(OutputSeq(5))).unwrap();
    assert_eq!(
        order.handle_page(ended(&[1], 6)),
        Err(Broken::Lost(OutputSeq(2), OutputSeq(4)))
    );
}

#[test]
fn what_waits_for_a_gap_is_bounded() {
    let mut order = Reorder::new();
    for seq in 2..65_538 {
        order.handle_event(output(seq)).unwrap();
    }
    assert_eq!(
        order.handle_event(output(65_538)),
        Err(Broken::Overflow(OutputSeq(1)))
    );
    let mut order = Reorder::new();
    for seq in 2..6 {
        order.handle_event(sized(seq, 1 << 20)).unwrap();
    }
    assert_eq!(
        order.handle_event(output(6)),
        Err(Broken::Overflow(OutputSeq(1)))
    );
}

#[test]
fn a_chunk_that_is_too_large_is_named() {
    let mut order = Reorder::new();
    order.handle_event(sized(1, 1 << 20)).unwrap();
    assert_eq!(
        order.handle_event(sized(2, (1 << 20) + 1)),
        Err(Broken::Oversized(OutputSeq(2)))
    );
}

#[test]
fn a_long_page_does_not_overflow_what_it_fills() {
    let mut order = Reorder::new();
    order.handle_event(output(1001)).unwrap();
    let all: Vec<u64> = (1..=1001).collect();
    order.handle_page(page(&all, 1002)).unwrap();
    assert_eq!(numbers(&mut order), all);
}

#[test]
fn a_close_without_a_number_is_the_last() {
    let mut order = Reorder::new();
    for event in [output(1), exited(2), Event::Closed(OutputSeq(0))] {
        order.handle_event(event).unwrap();
    }
    assert_eq!(numbers(&mut order), [1, 2, 3]);
}

#[test]
fn an_exit_that_a_page_tells_of_is_whole() {
    let mut order = Reorder::new();
    let usage = Usage {
        wall_ms: 7,
        ..Usage::default()
    };
    let page = OutputPage {
        exit_code: Some(137),
        signal: Some("SIGKILL".to_owned()),
        cause: Some(ExitCause::Terminated),
        usage: Some(usage),
        ..ended(&[1], 4)
    };
    assert_eq!(order.handle_page(page), Ok(()));
    let exit = std::iter::from_fn(|| order.poll_event()).find_map(|event| match event {
        Event::Exited(_, exit) => Some(exit),
        Event::Output(_) | Event::Closed(_) => None,
    });
    let expected = Exit {
        code: 137,
        signal: Some("SIGKILL"),
        cause: ExitCause::Terminated,
        usage: Some(usage),
        sandbox_denied: false,
    };
    assert_eq!(exit, Some(expected));
}

#[test]
fn what_is_behind_an_exit_does_not_wait_for_the_last_part() {
    let mut order = Reorder::new();
    let part = OutputPage {
        exited: true,
        exit_code: Some(3),
        exit_seq: Some(OutputSeq(2)),
        ..page(&[1, 3], 4)
    };
    assert_eq!(order.handle_part(part, OutputSeq(0)), Ok(OutputSeq(3)));
    assert_eq!(numbers(&mut order), [1, 2, 3]);
}

#[test]
fn an_exit_does_not_take_the_number_of_output() {
    let lie = |seq| OutputPage {
        exited: true,
        exit_code: Some(3),
        exit_seq: Some(OutputSeq(seq)),
        ..page(&[2], 3)
    };
    let mut order = Reorder::new();
    assert_eq!(
        order.handle_part(page(&[1], 2), OutputSeq(0)),
        Ok(OutputSeq(1))
    );
    let fault = order.handle_part(lie(1), OutputSeq(1));
    assert!(matches!(fault, Err(Broken::Malformed(_))), "{fault:?}");
}
