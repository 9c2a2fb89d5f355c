//! Runs the case list of `exec-wire-tests` against both roles.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use self::case_list::{CLOSE, PONG, Reply, SECTIONS, SentFrame, WebSocketCase, cases};
use crate::{
    link::{Link, LinkRole},
    websocket::{FrameHeader, LinkOptions, UpgradedStream, apply_mask},
};

mod case_list {
    include!("../../../../../testing/wire-tests/src/websocket/case_list.rs");
}

/// Reads messages until the end, and sends pending control frames.
async fn serve(mut link: Link) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    loop {
        tokio::select! {
            message = link.reader.next() => match message {
                Ok(Some(message)) => messages.push(message.to_vec()),
                Ok(None) | Err(_) => break,
            },
            () = poll_fn(|cx| link.writer.poll_keepalive(cx)) => link.writer.flush().await.unwrap(),
        }
    }
    link.writer.close().await.unwrap();
    messages
}

/// Reads the peer's pongs and its close code.
async fn control_frames(mut stream: tokio::io::ReadHalf<DuplexStream>) -> Vec<Reply> {
    let (mut bytes, mut replies) = (BytesMut::new(), Vec::new());
    while stream.read_buf(&mut bytes).await.unwrap() > 0 {
        while let Some((header, size)) = FrameHeader::parse(&bytes).unwrap()
            && bytes.len() >= size + header.payload_len()
        {
            let opcode = bytes[0] & 0x0f;
            let mut payload = bytes.split_to(size + header.payload_len()).split_off(size);
            if let Some(mask) = header.mask {
                apply_mask(mask, &mut payload);
            }
            match opcode {
                PONG => replies.push(Reply::Pong(payload.to_vec())),
                CLOSE => replies.push(Reply::Close(
                    payload.first_chunk().map(|code| u16::from_be_bytes(*code)),
                )),
                other => panic!("opcode {other}"),
            }
        }
    }
    replies
}

async fn run(case: &WebSocketCase, role: LinkRole) -> Result<(), String> {
    let (near, far) = tokio::io::duplex(1 << 20);
    let stream = UpgradedStream::new(tokio::io::split(near), Bytes::new());
    let options = LinkOptions::of(role);
    let served = serve(stream.into_link(role, "test".to_owned(), options));
    let mask = (role == LinkRole::Server).then_some([0x37, 0xfa, 0x21, 0x3d]);
    let is_closed = matches!(case.replies.last(), Some(Reply::Close(_)));
    let (input, mut output) = tokio::io::split(far);
    let send = async {
        let mut writes = case.writes(mask);
        if !is_closed {
            let close = SentFrame::new(0x80 | CLOSE, 1000_u16.to_be_bytes());
            writes.push(close.encode(mask));
        }
        for write in writes {
            // A failed end need not read the rest.
            drop(output.write_all(&write).await);
        }
        // The stream stays open: violations must be detected without its end.
        output
    };
    let (messages, replies, _output) = tokio::join!(served, control_frames(input), send);
    let mut expected = case.replies.clone();
    if !is_closed {
        expected.push(Reply::Close(Some(1000)));
    }
    let is_message = |reply: &Reply| matches!(reply, Reply::Message(_));
    let messages: Vec<Reply> = messages.into_iter().map(Reply::Message).collect();
    let (expected_messages, control): (Vec<Reply>, Vec<Reply>) =
        expected.into_iter().partition(is_message);
    match messages == expected_messages && replies == control {
        true => Ok(()),
        false => Err(format!(
            "{} as {role:?}: {replies:?} instead of {control:?}",
            case.number
        )),
    }
}

#[tokio::test]
async fn both_ends_pass_the_case_list() {
    let mut failed = Vec::new();
    // Section 9 repeats other cases with megabytes of data; `exec-wire-tests` runs it.
    let sections = SECTIONS.into_iter().filter(|(section, _)| *section != 9);
    for case in sections.flat_map(|(section, _)| cases(section)) {
        for role in [LinkRole::Server, LinkRole::Client] {
            failed.extend(run(&case, role).await.err());
        }
    }
    assert!(
        failed.is_empty(),
        "{}:\n{}",
        failed.len(),
        failed.join("\n")
    );
}
