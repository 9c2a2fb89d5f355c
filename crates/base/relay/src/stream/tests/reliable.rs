//! Reliable streams against crafted frames and chosen losses.

use super::*;
use crate::{
    frame::NOTHING_RECEIVED,
    limits::{MAX_SEGMENTS, MESSAGE_BYTES, RECORD_BYTES, WINDOW_BYTES, WINDOW_RECORDS},
    stream::RelayStreamError,
};

/// Passes all frames of one stream to the other.
fn transfer(from: &mut RelayStream, to: &mut RelayStream, now: Instant) -> usize {
    let frames = frames(from, now);
    let count = frames.len();
    for frame in frames {
        to.handle_frame(frame, now).unwrap();
    }
    count
}

#[test]
fn short_messages_share_a_record_and_long_ones_are_segmented() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    push(&mut a, b"one");
    push(&mut a, b"two");
    push(&mut a, &vec![7; 2 * RECORD_BYTES]);
    push(&mut a, b"three");
    let sent = frames(&mut a, epoch());
    let places: Vec<_> = sent
        .iter()
        .map(|frame| {
            assert_eq!((frame.ack, frame.ack_bits), (NOTHING_RECEIVED, 0));
            let data = data(frame);
            (data.seq, data.segment_index, data.segment_count)
        })
        .collect();
    assert_eq!(
        places,
        [(0, 0, 1), (1, 0, 3), (2, 1, 3), (3, 2, 3), (4, 0, 1)]
    );
    for frame in sent {
        b.handle_frame(frame, epoch()).unwrap();
    }
    let received = messages(&mut b);
    assert_eq!(received.len(), 4);
    assert_eq!(received[..2], [&b"one"[..], b"two"]);
    assert_eq!(received[2].len(), 2 * RECORD_BYTES);
}

#[test]
fn longest_message_uses_the_maximum_number_of_segments() {
    assert_eq!(
        (MESSAGE_BYTES + 4).div_ceil(RECORD_BYTES),
        usize::try_from(MAX_SEGMENTS).unwrap()
    );
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    a.push(|buffer| buffer.resize(buffer.len() + MESSAGE_BYTES, 7))
        .unwrap();
    while transfer(&mut a, &mut b, epoch()) > 0 {
        transfer(&mut b, &mut a, epoch());
    }
    assert_eq!(b.poll_message().unwrap().len(), MESSAGE_BYTES);
}

#[test]
fn inconsistent_segments_end_the_stream() {
    // Records as (plaintext, index, count). The last one is refused.
    let long = with_prefix(&[7; 10]);
    let cases: [&[(&[u8], u32, u32)]; 8] = [
        &[(&long[..5], 0, 1)],
        &[(&long[..5], 1, 2)],
        &[(&long[..5], 0, 2), (&long[5..], 0, 1)],
        &[(&long[..5], 0, 3), (&long[5..], 2, 3)],
        &[(&long[..5], 0, 2), (&long[5..], 1, 3)],
        &[(&long[..5], 0, 2), (&long[5..9], 1, 2)],
        &[(&long[..5], 0, 3), (&long[5..], 1, 3)],
        &[(&long, 0, 2)],
    ];
    for case in cases {
        let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Reliable);
        let mut results = Vec::new();
        for (plaintext, index, count) in case {
            let mut data = seal(&mut sealer, plaintext);
            (data.segment_index, data.segment_count) = (*index, *count);
            let mut frame = frame(data);
            frame.ack = NOTHING_RECEIVED;
            results.push(stream.handle_frame(frame, epoch()));
        }
        let last = u32::try_from(case.len()).unwrap() - 1;
        assert_eq!(results.pop(), Some(Err(RelayStreamError::Segments(last))));
        assert!(results.iter().all(Result::is_ok));
    }
}

#[test]
fn ack_is_delayed_until_eight_records_25_ms_or_another_frame() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    for _ in 0..7 {
        push(&mut a, b"x");
        transfer(&mut a, &mut b, epoch());
    }
    assert_eq!(frames(&mut b, epoch()), []);
    assert_eq!(b.poll_timeout(), Some(epoch() + ms(25)));
    b.handle_timeout(epoch() + ms(25)).unwrap();
    let acks = frames(&mut b, epoch() + ms(25));
    assert_eq!(acks.len(), 1);
    assert_eq!((acks[0].body.clone(), acks[0].ack), (FrameBody::Ack, 6));

    for _ in 0..8 {
        push(&mut a, b"x");
        transfer(&mut a, &mut b, epoch());
    }
    assert_eq!(frames(&mut b, epoch())[0].ack, 14);

    push(&mut a, b"x");
    transfer(&mut a, &mut b, epoch());
    push(&mut b, b"y");
    let acks = frames(&mut b, epoch());
    assert_eq!((data(&acks[0]).seq, acks[0].ack), (0, 15));
    b.handle_timeout(epoch() + ms(30)).unwrap();
    assert_eq!(frames(&mut b, epoch() + ms(30)), [], "acknowledged once");
}

#[test]
fn gap_is_retransmitted_immediately_and_once_per_round_trip() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    let mut sent = Vec::new();
    for n in 0..5u8 {
        push(&mut a, &[n]);
        sent.extend(frames(&mut a, epoch()));
    }
    let lost = sent.remove(1);
    let now = epoch() + ms(10);
    for frame in sent {
        b.handle_frame(frame, now).unwrap();
    }
    let acks = frames(&mut b, now);
    assert_eq!((acks[0].ack, acks[0].ack_bits), (0, 0b1110));
    a.handle_frame(acks[0].clone(), now + ms(10)).unwrap();
    let retransmitted = frames(&mut a, now + ms(10));
    assert_eq!(retransmitted, [lost], "exactly the lost frame");
    a.handle_frame(acks[0].clone(), now + ms(11)).unwrap();
    assert_eq!(frames(&mut a, now + ms(11)), []);
    a.handle_frame(acks[0].clone(), now + ms(40)).unwrap();
    assert_eq!(frames(&mut a, now + ms(40)), retransmitted);
    b.handle_frame(retransmitted[0].clone(), now).unwrap();
    assert_eq!(messages(&mut b), [[0], [1], [2], [3], [4]].map(Vec::from));
}

#[test]
fn retransmission_timer_resends_the_oldest_record_with_backoff() {
    let (mut a, _) = stream_pair(DeliveryMode::Reliable);
    for n in 0..5u8 {
        push(&mut a, &[n]);
        frames(&mut a, epoch());
    }
    let mut now = epoch();
    for wait in [1000, 2000, 4000, 5000, 5000] {
        now += ms(wait);
        assert_eq!(
            a.poll_timeout().unwrap().min(now),
            now,
            "no earlier timeout"
        );
        a.handle_timeout(now).unwrap();
        let retransmitted: Vec<_> = frames(&mut a, now)
            .into_iter()
            .filter(|frame| frame.body != FrameBody::Heartbeat)
            .collect();
        assert_eq!(retransmitted.len(), 1);
        assert_eq!(data(&retransmitted[0]).seq, 0);
    }
}

#[test]
fn losses_after_a_probe_are_retransmitted_without_a_timeout() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    for n in 0..40u8 {
        push(&mut a, &[n]);
        frames(&mut a, epoch());
    }
    // All are lost. After one probe the rest follows at the rate of acknowledgements.
    let mut now = epoch() + ms(1000);
    a.handle_timeout(now).unwrap();
    let mut received = Vec::new();
    for _ in 0..10 {
        transfer(&mut a, &mut b, now);
        now += ms(30);
        b.handle_timeout(now).unwrap();
        transfer(&mut b, &mut a, now);
        received.extend(messages(&mut b));
    }
    assert_eq!(received.len(), 40);
    assert!(now < epoch() + ms(1400));
}

#[test]
fn ack_of_an_unsent_record_ends_the_stream() {
    for (ack, bits, last) in [(1, 0, 1), (NOTHING_RECEIVED, 0b10, 1), (0, 1 << 31, 32)] {
        let (mut a, _) = stream_pair(DeliveryMode::Reliable);
        push(&mut a, b"x");
        frames(&mut a, epoch());
        let mut frame = RelayFrame::new(id(), FrameBody::Heartbeat);
        (frame.ack, frame.ack_bits) = (ack, bits);
        assert_eq!(
            a.handle_frame(frame, epoch()),
            Err(RelayStreamError::AckOfUnsent(last))
        );
    }
    let (mut a, _) = stream_pair(DeliveryMode::Reliable);
    let mut frame = RelayFrame::new(id(), FrameBody::Heartbeat);
    assert_eq!(
        a.handle_frame(frame.clone(), epoch()),
        Err(RelayStreamError::AckOfUnsent(0))
    );
    let (mut a, _) = stream_pair(DeliveryMode::Reliable);
    frame.ack = NOTHING_RECEIVED;
    a.handle_frame(frame, epoch()).unwrap();
}

#[test]
fn slow_reader_applies_backpressure_to_the_sender() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    let message = vec![7; 50_000];
    for _ in 0..400 {
        push(&mut a, &message);
    }
    let mut now = epoch();
    let mut sent = 0;
    for _ in 0..300 {
        now += ms(30);
        a.handle_timeout(now).unwrap();
        b.handle_timeout(now).unwrap();
        sent += transfer(&mut a, &mut b, now);
        transfer(&mut b, &mut a, now);
    }
    assert!(a.unacknowledged() > 80);
    assert!(a.unacknowledged() * 50_020 <= WINDOW_BYTES);
    let waiting = 400 - a.buffered() / 50_004;
    assert!(waiting * 50_000 < WINDOW_BYTES + (1 << 20) + 100_000);
    // Nine seconds without capacity cost a few probes and no other retransmissions.
    assert!(sent < waiting + 10, "{sent} frames for {waiting} records");
    // Everything arrives as soon as the application reads.
    let mut received = 0;
    for _ in 0..200 {
        received += messages(&mut b).len();
        transfer(&mut b, &mut a, now);
        transfer(&mut a, &mut b, now);
    }
    assert_eq!(received, 400);
}

#[test]
fn unread_tiny_messages_are_bounded_and_not_lost() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    for _ in 0..1_000_000 {
        push(&mut a, b"x");
    }
    let mut now = epoch();
    for _ in 0..20 {
        now += ms(30);
        b.handle_timeout(now).unwrap();
        transfer(&mut a, &mut b, now);
        transfer(&mut b, &mut a, now);
    }
    let mut received = messages(&mut b).len();
    assert!(received < 1_000_000);
    for _ in 0..200 {
        now += ms(30);
        a.handle_timeout(now).unwrap();
        b.handle_timeout(now).unwrap();
        transfer(&mut b, &mut a, now);
        transfer(&mut a, &mut b, now);
        received += messages(&mut b).len();
    }
    assert_eq!(received, 1_000_000);
}

#[test]
fn send_window_limits_the_number_of_records() {
    let (mut a, _) = stream_pair(DeliveryMode::Reliable);
    for _ in 0..WINDOW_RECORDS + 10 {
        push(&mut a, b"x");
        // One record each, because there is nothing to share a record with.
        frames(&mut a, epoch());
    }
    assert_eq!(a.unacknowledged(), WINDOW_RECORDS);
    assert_eq!(a.buffered(), 10 * 5);
}

#[test]
fn records_outside_the_window_are_dropped_and_acknowledged_immediately() {
    let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Reliable);
    sealer.skip_to(65);
    let mut far = frame(seal(&mut sealer, &with_prefix(b"x")));
    far.ack = NOTHING_RECEIVED;
    stream.handle_frame(far, epoch()).unwrap();
    let acks = frames(&mut stream, epoch());
    assert_eq!((acks[0].ack, acks[0].ack_bits), (NOTHING_RECEIVED, 0));
}

#[test]
fn heartbeats_keep_an_idle_stream_alive_and_silence_ends_it() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    assert_eq!(a.poll_timeout(), Some(epoch() + ms(10_000)));
    let mut now = epoch();
    for _ in 0..10 {
        now += ms(10_000);
        for end in [&mut a, &mut b] {
            end.handle_timeout(now).unwrap();
        }
        assert_eq!(transfer(&mut a, &mut b, now), 1);
        assert_eq!(transfer(&mut b, &mut a, now), 1);
    }
    assert_eq!(a.handle_timeout(now + ms(29_999)), Ok(()));
    assert_eq!(
        a.handle_timeout(now + ms(30_000)),
        Err(RelayStreamError::Silent)
    );
    // Without a connection the peer is not expected to send anything.
    b.handle_disconnect(now);
    assert_eq!(b.poll_timeout(), None);
    assert_eq!(b.handle_timeout(now + ms(60_000)), Ok(()));
    assert_eq!(frames(&mut b, now + ms(60_000)), []);
}

#[test]
fn reconnect_sends_resume_before_retransmissions() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    for n in 0..3u8 {
        push(&mut a, &[n]);
        let frame = frames(&mut a, epoch()).remove(0);
        if n != 1 {
            b.handle_frame(frame, epoch()).unwrap();
        }
    }
    push(&mut b, b"down");
    frames(&mut b, epoch());
    a.handle_disconnect(epoch());
    b.handle_disconnect(epoch());
    push(&mut a, &[3]);
    assert_eq!(frames(&mut a, epoch()), []);

    let now = epoch() + ms(500);
    a.handle_reconnect(now);
    let resume = frames(&mut a, now);
    assert_eq!(resume.len(), 1, "only Resume before the peer answers");
    assert_eq!(resume[0].body, FrameBody::Resume { next_seq: 3 });
    assert_eq!((resume[0].ack, resume[0].ack_bits), (NOTHING_RECEIVED, 0));
    b.handle_reconnect(now);
    b.handle_frame(resume[0].clone(), now).unwrap();
    let answer = frames(&mut b, now);
    assert_eq!(answer.len(), 2);
    assert_eq!((answer[0].ack, answer[0].ack_bits), (0, 0b10));
    assert_eq!(data(&answer[1]).seq, 0);
    for frame in answer {
        a.handle_frame(frame, now).unwrap();
    }
    let rest = frames(&mut a, now);
    let seqs: Vec<_> = rest
        .iter()
        .filter(|frame| frame.body != FrameBody::Ack)
        .map(|frame| data(frame).seq)
        .collect();
    assert_eq!(seqs, [1, 3]);
    for frame in rest {
        b.handle_frame(frame, now).unwrap();
    }
    assert_eq!(messages(&mut a), [&b"down"[..]]);
    assert_eq!(messages(&mut b), [[0], [1], [2], [3]].map(Vec::from));
}

#[test]
fn unanswered_resume_is_sent_again() {
    let (mut a, _) = stream_pair(DeliveryMode::Reliable);
    a.handle_disconnect(epoch());
    a.handle_reconnect(epoch());
    assert_eq!(frames(&mut a, epoch()).len(), 1);
    assert_eq!(a.poll_timeout(), Some(epoch() + ms(1000)));
    a.handle_timeout(epoch() + ms(1000)).unwrap();
    let resent = frames(&mut a, epoch() + ms(1000));
    assert_eq!(resent[0].body, FrameBody::Resume { next_seq: 0 });
}

#[test]
fn late_duplicate_resume_is_ignored() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Reliable);
    a.handle_reconnect(epoch());
    let resume = frames(&mut a, epoch()).remove(0);
    b.handle_frame(resume.clone(), epoch()).unwrap();
    transfer(&mut b, &mut a, epoch());
    push(&mut a, b"up");
    transfer(&mut a, &mut b, epoch());
    push(&mut b, b"down");
    assert_eq!(frames(&mut b, epoch()).len(), 1);
    b.handle_frame(resume, epoch()).unwrap();
    let answer = frames(&mut b, epoch());
    assert_eq!(answer.len(), 1, "no retransmission");
    assert_eq!((&answer[0].body, answer[0].ack), (&FrameBody::Ack, 0));
}
