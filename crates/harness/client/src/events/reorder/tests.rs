use bytes::Bytes;
use exec_core::output_log::{ExitInfo, LogEvent, OutputChunk};
use exec_wire::{
    base64_bytes::Base64Bytes,
    id::OutputSeq,
    process::{ExitCause, OutputPage, OutputStream, PageChunk, ResourceUsage},
};

use super::{EventReorder, EventsError};

fn output(seq: u64) -> LogEvent {
    sized(seq, 1)
}

fn sized(seq: u64, length: usize) -> LogEvent {
    let data = Bytes::from(vec![b'x'; length]);
    LogEvent::Output(OutputChunk {
        seq: OutputSeq(seq),
        stream: OutputStream::Stdout,
        data,
    })
}

fn exited(seq: u64) -> LogEvent {
    let exit = ExitInfo {
        code: 3,
        signal: None,
        cause: ExitCause::Unknown,
        usage: None,
        sandbox_denied: false,
    };
    LogEvent::Exited(OutputSeq(seq), exit)
}

fn page(chunks: &[u64], next_seq: u64) -> OutputPage {
    let chunk = |seq: &u64| PageChunk {
        seq: OutputSeq(*seq),
        stream: OutputStream::Stdout,
        chunk: Base64Bytes(Bytes::from_static(b"x")),
        at_ms: None,
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

fn numbers(reorder: &mut EventReorder) -> Vec<u64> {
    std::iter::from_fn(|| reorder.poll_event())
        .map(|event| event.seq().0)
        .collect()
}

#[test]
fn events_are_ordered_and_deduplicated() {
    let mut reorder = EventReorder::new();
    for seq in [2, 4, 1, 1, 2, 3] {
        reorder.handle_event(output(seq)).unwrap();
    }
    assert_eq!(numbers(&mut reorder), [1, 2, 3, 4]);
    assert_eq!(reorder.gap(), None);
}

#[test]
fn gap_is_filled_by_a_page() {
    let mut reorder = EventReorder::new();
    reorder.handle_event(output(1)).unwrap();
    reorder.handle_event(output(4)).unwrap();
    assert_eq!(reorder.gap(), Some(OutputSeq(1)));
    reorder.handle_page(page(&[2, 3, 4], 5)).unwrap();
    assert_eq!(numbers(&mut reorder), [1, 2, 3, 4]);
}

#[test]
fn only_missing_number_is_the_exit() {
    let mut reorder = EventReorder::new();
    reorder
        .handle_event(LogEvent::Closed(OutputSeq(4)))
        .unwrap();
    reorder.handle_page(ended(&[1, 3], 5)).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| reorder.poll_event()).collect();
    assert_eq!(
        events,
        [
            output(1),
            exited(2),
            output(3),
            LogEvent::Closed(OutputSeq(4))
        ]
    );
}

#[test]
fn unfilled_gap_is_reported_as_lost() {
    let mut reorder = EventReorder::new();
    reorder.handle_event(output(9)).unwrap();
    assert_eq!(
        reorder.handle_page(page(&[5, 6, 7, 8, 9], 10)),
        Err(EventsError::Lost(OutputSeq(1), OutputSeq(4)))
    );
    let mut reorder = EventReorder::new();
    reorder
        .handle_event(LogEvent::Closed(OutputSeq(5)))
        .unwrap();
    assert_eq!(
        reorder.handle_page(ended(&[1], 6)),
        Err(EventsError::Lost(OutputSeq(2), OutputSeq(4)))
    );
}

#[test]
fn events_beyond_the_limit_are_dropped_and_asked_for_again() {
    let many = (2..65_538).map(output).collect::<Vec<_>>();
    let large = (2..6).map(|seq| sized(seq, 1 << 20)).collect();
    for waiting in [many, large] {
        let mut reorder = EventReorder::new();
        let count = waiting.len() as u64;
        for event in waiting {
            reorder.handle_event(event).unwrap();
        }
        let dropped = OutputSeq(count + 2);
        reorder.handle_event(output(dropped.0)).unwrap();
        assert_eq!(reorder.seen(), dropped);
        reorder.handle_event(output(1)).unwrap();
        assert_eq!(reorder.last(), OutputSeq(count + 1));
        assert_eq!(reorder.gap(), Some(reorder.last()));
        reorder.handle_event(output(dropped.0)).unwrap();
        assert_eq!((reorder.last(), reorder.gap()), (dropped, None));
    }
}

#[test]
fn oversized_chunk_is_reported() {
    let mut reorder = EventReorder::new();
    reorder.handle_event(sized(1, 1 << 20)).unwrap();
    assert_eq!(
        reorder.handle_event(sized(2, (1 << 20) + 1)),
        Err(EventsError::Oversized(OutputSeq(2)))
    );
}

#[test]
fn long_page_does_not_overflow() {
    let mut reorder = EventReorder::new();
    reorder.handle_event(output(1001)).unwrap();
    let all: Vec<u64> = (1..=1001).collect();
    reorder.handle_page(page(&all, 1002)).unwrap();
    assert_eq!(numbers(&mut reorder), all);
}

#[test]
fn unnumbered_close_comes_last() {
    let mut reorder = EventReorder::new();
    for event in [output(1), exited(2), LogEvent::Closed(OutputSeq(0))] {
        reorder.handle_event(event).unwrap();
    }
    assert_eq!(numbers(&mut reorder), [1, 2, 3]);
}

#[test]
fn exit_from_a_page_is_complete() {
    let mut reorder = EventReorder::new();
    let usage = ResourceUsage {
        wall_ms: 7,
        ..ResourceUsage::default()
    };
    let page = OutputPage {
        exit_code: Some(137),
        signal: Some("SIGKILL".to_owned()),
        cause: Some(ExitCause::Terminated),
        usage: Some(usage),
        ..ended(&[1], 4)
    };
    assert_eq!(reorder.handle_page(page), Ok(()));
    let exit = std::iter::from_fn(|| reorder.poll_event()).find_map(|event| match event {
        LogEvent::Exited(_, exit) => Some(exit),
        LogEvent::Output(_) | LogEvent::Closed(_) => None,
    });
    let expected = ExitInfo {
        code: 137,
        signal: Some("SIGKILL"),
        cause: ExitCause::Terminated,
        usage: Some(usage),
        sandbox_denied: false,
    };
    assert_eq!(exit, Some(expected));
}

#[test]
fn events_after_an_exit_do_not_wait_for_the_last_page() {
    let mut reorder = EventReorder::new();
    let part = OutputPage {
        exited: true,
        exit_code: Some(3),
        exit_seq: Some(OutputSeq(2)),
        ..page(&[1, 3], 4)
    };
    assert_eq!(
        reorder.handle_partial_page(part, OutputSeq(0)),
        Ok(OutputSeq(3))
    );
    assert_eq!(numbers(&mut reorder), [1, 2, 3]);
}

#[test]
fn exit_must_not_reuse_an_output_number() {
    let reused_number = |seq| OutputPage {
        exited: true,
        exit_code: Some(3),
        exit_seq: Some(OutputSeq(seq)),
        ..page(&[2], 3)
    };
    let mut reorder = EventReorder::new();
    assert_eq!(
        reorder.handle_partial_page(page(&[1], 2), OutputSeq(0)),
        Ok(OutputSeq(1))
    );
    let fault = reorder.handle_partial_page(reused_number(1), OutputSeq(1));
    assert!(matches!(fault, Err(EventsError::Malformed(_))), "{fault:?}");
}
