use bytes::Bytes;
use exec_wire::process::{ExitCause, OutputStream};

use super::*;
use crate::output_log::{ExitInfo, RetentionLimits};

fn log() -> FollowedLog {
    FollowedLog::new(OutputLog::new(RetentionLimits {
        bytes: 4,
        chunks: 100,
    }))
}

fn write(log: &mut FollowedLog, data: impl Into<Bytes>) {
    let data = data.into();
    log.record(|log| log.append(OutputStream::Stdout, data));
}

fn next(log: &mut FollowedLog, id: FollowerId) -> Option<u64> {
    match log.poll_event(id, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(followed) => followed.event.map(|event| event.seq().0),
        Poll::Pending => None,
    }
}

const PAUSING: FollowOptions = FollowOptions {
    start: FollowStart::Now,
    backpressure: BackpressureMode::Pause,
};
const SKIPPING: FollowOptions = FollowOptions {
    start: FollowStart::After(OutputSeq(0)),
    backpressure: BackpressureMode::Skip,
};

#[test]
fn pausing_follower_loses_nothing_and_skipping_follower_misses_events() {
    let mut log = log();
    let (pausing, skipping) = (log.follow(PAUSING), log.follow(SKIPPING));
    for _ in 0..3 {
        write(&mut log, "abcd");
    }
    assert_eq!(
        [next(&mut log, pausing), next(&mut log, pausing)],
        [Some(1), Some(2)]
    );
    assert_eq!(
        next(&mut log, skipping),
        Some(3),
        "the earlier chunks were evicted once consumed"
    );
    assert_eq!(
        [next(&mut log, pausing), next(&mut log, pausing)],
        [Some(3), None]
    );
}

#[test]
fn lagging_follower_pauses_the_writer_until_it_catches_up() {
    let mut log = log();
    let id = log.follow(PAUSING);
    write(&mut log, vec![0; limits::FOLLOW_WINDOW_BYTES]);
    assert!(log.is_backpressured());
    let followed = log.poll_event(id, &mut Context::from_waker(Waker::noop()));
    assert!(matches!(
        followed,
        Poll::Ready(FollowedEvent {
            backpressure_ended: true,
            ..
        })
    ));
    assert!(!log.is_backpressured());
    write(&mut log, vec![0; limits::FOLLOW_WINDOW_BYTES]);
    log.unfollow(id);
    assert!(!log.is_backpressured());
}

#[test]
fn unacknowledged_output_is_retained_and_pauses_the_writer() {
    let mut log = log();
    let hold = log.retain_unacked(OutputSeq(0));
    write(&mut log, vec![0; limits::UNACKNOWLEDGED_BYTES - 1]);
    assert!(!log.is_backpressured());
    write(&mut log, "a");
    assert!(log.is_backpressured());
    assert_eq!(log.log().page(OutputSeq(0), None).chunks.len(), 2);
    assert!(log.acknowledge(hold, OutputSeq(1)));
    assert!(!log.is_backpressured());
    assert_eq!(log.log().page(OutputSeq(0), None).chunks.len(), 1);
    assert!(!log.acknowledge(hold, OutputSeq(1)), "already acknowledged");
    assert!(!log.acknowledge(hold, OutputSeq(99)), "not recorded yet");
    write(&mut log, vec![0; limits::UNACKNOWLEDGED_BYTES]);
    assert!(log.is_backpressured(), "later output is unacknowledged");
    log.unfollow(hold);
    assert!(!log.is_backpressured());
}

#[test]
fn many_tiny_unacknowledged_events_pause_the_writer() {
    let mut log = log();
    let hold = log.retain_unacked(OutputSeq(0));
    for _ in 1..limits::RETAINED_OUTPUT_CHUNKS {
        write(&mut log, "a");
    }
    assert!(!log.is_backpressured());
    write(&mut log, "a");
    assert!(log.is_backpressured());
    assert!(log.acknowledge(hold, OutputSeq(1)));
    assert!(!log.is_backpressured());
}

#[test]
fn late_hold_starts_at_the_oldest_retained_output() {
    let mut log = log();
    for _ in 0..limits::RETAINED_OUTPUT_CHUNKS {
        write(&mut log, "abcd");
    }
    let hold = log.retain_unacked(OutputSeq(0));
    assert!(!log.is_backpressured(), "evicted output does not count");
    assert_eq!(log.lag(), 4);
    write(&mut log, "abcd");
    assert_eq!(log.lag(), 8);
    assert_eq!(log.log().retained_bytes(), 8);
    log.acknowledge(hold, OutputSeq(u64::MAX));
    assert_eq!(log.lag(), 0);
    assert_eq!(log.log().retained_bytes(), 4);
    write(&mut log, "abcd");
    assert_eq!(log.lag(), 4, "later output is unacknowledged");
}

#[test]
fn hold_and_follower_keep_separate_cursors() {
    let mut log = log();
    let (hold, follower) = (log.retain_unacked(OutputSeq(0)), log.follow(PAUSING));
    write(&mut log, "abcd");
    write(&mut log, "efgh");
    assert_eq!(next(&mut log, follower), Some(1));
    log.acknowledge(hold, OutputSeq(2));
    assert_eq!(
        log.log().retained_bytes(),
        4,
        "the follower has consumed one chunk"
    );
    assert_eq!(next(&mut log, follower), Some(2));
    write(&mut log, "ijkl");
    assert_eq!(next(&mut log, follower), Some(3));
    write(&mut log, "mnop");
    assert_eq!(
        log.log().retained_bytes(),
        8,
        "the third chunk is unacknowledged"
    );
}

#[test]
fn following_ends_after_the_close_event() {
    let mut log = log();
    let id = log.follow(PAUSING);
    log.record(|log| {
        log.record_exit(ExitInfo {
            code: 0,
            signal: None,
            cause: ExitCause::Exit,
            usage: None,
            sandbox_denied: false,
        });
        log.record_close();
    });
    assert_eq!([next(&mut log, id), next(&mut log, id)], [Some(1), Some(2)]);
    let end = log.poll_event(id, &mut Context::from_waker(Waker::noop()));
    assert!(matches!(
        end,
        Poll::Ready(FollowedEvent { event: None, .. })
    ));
}

#[test]
fn hold_protects_output_that_only_the_archive_has() {
    let retention = RetentionLimits {
        bytes: 4,
        chunks: 100,
    };
    let mut log = FollowedLog::new(OutputLog::with_archive(retention));
    for _ in 0..5 {
        write(&mut log, "abcd");
    }
    let hold = log.retain_unacked(OutputSeq(0));
    assert_eq!(log.protected_after(), Some(OutputSeq(0)));
    assert!(!log.acknowledge(hold, OutputSeq(3)), "it never pauses");
    assert_eq!(log.protected_after(), Some(OutputSeq(3)));
    log.unfollow(hold);
    assert_eq!(log.protected_after(), None);
}
