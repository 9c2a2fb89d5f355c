//! RFC 6455 conformance of a real server, from handshake to close.

mod case_list;

use std::sync::Arc;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split},
    sync::mpsc,
    time::timeout,
};

use self::case_list::{CLOSE, PONG, Reply, SECTIONS, SentFrame, TEXT, WebSocketCase, cases};
use crate::{
    client::Duplex,
    http_listener::upgrade,
    server::{Server, TIMEOUT, Transport, proc_line},
};

/// Masking key that changes every byte.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Websocket whose bytes are written by hand.
struct RawSocket {
    input: ReadHalf<Box<dyn Duplex>>,
    output: WriteHalf<Box<dyn Duplex>>,
}

impl RawSocket {
    async fn open(server: &Server) -> Self {
        let mut stream = server.stream().await;
        let head = upgrade(&mut stream, "").await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let (input, output) = split(stream);
        Self { input, output }
    }

    /// Reads one frame and returns its opcode and payload, or `None` when the connection has
    /// closed.
    async fn frame(input: &mut ReadHalf<Box<dyn Duplex>>) -> Option<(u8, Vec<u8>)> {
        let first = input.read_u8().await.ok()?;
        assert_eq!(first & 0x70, 0, "no reserved bits");
        let length = match input.read_u8().await.unwrap() {
            126 => u64::from(input.read_u16().await.unwrap()),
            127 => input.read_u64().await.unwrap(),
            length @ 0..126 => u64::from(length),
            masked => panic!("{masked:x}: a server does not mask"),
        };
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        input.read_exact(&mut payload).await.unwrap();
        Some((first & 0x0f, payload))
    }

    /// Sends a case and returns all frames until the connection closes. Writes and reads
    /// concurrently, since a large message does not fit into the buffers.
    async fn exchange(mut self, case: &WebSocketCase) -> Vec<(u8, Vec<u8>)> {
        let is_closed = matches!(case.replies.last(), Some(Reply::Close(_)));
        // Large payloads use a zero mask, which costs nothing.
        let mask = if case.number.starts_with("9.") {
            [0; 4]
        } else {
            MASK
        };
        let send = async {
            for write in case.writes(Some(mask)) {
                // A server that has closed need not read the rest.
                if self.output.write_all(&write).await.is_err() {
                    return;
                }
            }
            if !is_closed {
                let close = SentFrame::new(0x80 | CLOSE, 1000_u16.to_be_bytes());
                self.output
                    .write_all(&close.encode(Some(MASK)))
                    .await
                    .unwrap();
            }
        };
        let receive = async {
            let mut frames = Vec::new();
            while let Some(frame) = Self::frame(&mut self.input).await {
                frames.push(frame);
            }
            frames
        };
        let both = async { tokio::join!(send, receive).1 };
        let what = &case.number;
        timeout(TIMEOUT, both)
            .await
            .unwrap_or_else(|_| panic!("case {what}: the connection does not end"))
    }
}

/// Compares the received frames. Messages of the suite are not JSON-RPC, so each is answered with
/// one error; `exec-transport` and `text_messages_arrive_unchanged` test their content. Pongs and
/// responses have different origins and may overtake each other.
fn verdict(case: &WebSocketCase, frames: &[(u8, Vec<u8>)]) -> Result<(), String> {
    let with_opcode = |opcode: u8| {
        frames
            .iter()
            .filter(move |(frame_opcode, _)| *frame_opcode == opcode)
    };
    let code = |payload: &[u8]| Some(u16::from_be_bytes([*payload.first()?, *payload.get(1)?]));
    let (mut messages, mut pongs, mut close) = (0, Vec::new(), Some(1000));
    for reply in &case.replies {
        match reply {
            Reply::Message(_) => messages += 1,
            Reply::Pong(payload) => pongs.push(payload.clone()),
            Reply::Close(code) => close = *code,
        }
    }
    let responses = with_opcode(TEXT)
        .filter(|(_, text)| String::from_utf8_lossy(text).contains(r#""id":-1"#))
        .count();
    let ponged: Vec<Vec<u8>> = with_opcode(PONG)
        .map(|(_, payload)| payload.clone())
        .collect();
    let closed: Vec<Option<u16>> = with_opcode(CLOSE)
        .map(|(_, payload)| code(payload))
        .collect();
    let is_last = frames.last().is_some_and(|(opcode, _)| *opcode == CLOSE);
    // A failed connection may have closed before an earlier message was answered.
    let all_answered = responses == messages || (closed != [Some(1000)] && responses < messages);
    match all_answered && ponged == pongs && closed == [close] && is_last {
        true => Ok(()),
        false => Err(format!(
            "{}: {responses} of {messages} messages, {} of {} pongs, close {closed:?} instead of {close:?}",
            case.number,
            ponged.len(),
            pongs.len(),
        )),
    }
}

async fn run_sections(sections: &[u8]) {
    let server = Server::start(Transport::WebSocket, &[]).await;
    let mut failed = Vec::new();
    for case in sections.iter().flat_map(|section| cases(*section)) {
        let frames = RawSocket::open(&server).await.exchange(&case).await;
        failed.extend(verdict(&case, &frames).err());
    }
    assert!(
        failed.is_empty(),
        "{} cases:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

#[test]
fn case_list_is_complete() {
    for (section, count) in SECTIONS {
        let mut numbers: Vec<String> = cases(section).into_iter().map(|case| case.number).collect();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "section {section}");
    }
}

#[tokio::test]
async fn messages_pings_and_reserved_bits() {
    run_sections(&[1, 2, 3, 4]).await;
}

#[tokio::test]
async fn fragmentation() {
    run_sections(&[5, 10]).await;
}

#[tokio::test]
async fn utf8_handling() {
    run_sections(&[6]).await;
}

#[tokio::test]
async fn close_handling() {
    run_sections(&[7]).await;
}

#[tokio::test]
async fn large_messages() {
    run_sections(&[9]).await;
}

/// Sends bytes and expects the connection to close with this code.
async fn expect_close(server: &Server, what: &str, bytes: &[u8], code: u16) {
    let mut socket = RawSocket::open(server).await;
    socket.output.write_all(bytes).await.unwrap();
    let end = async {
        let mut last = None;
        while let Some(frame) = RawSocket::frame(&mut socket.input).await {
            last = Some(frame);
        }
        last
    };
    let last = timeout(TIMEOUT, end)
        .await
        .expect("connection did not close in time");
    let (opcode, payload) = last.unwrap_or_else(|| panic!("{what}: no close frame"));
    assert_eq!(opcode, CLOSE, "{what}");
    assert_eq!(payload[..2], code.to_be_bytes(), "{what}");
    assert!(payload.len() > 2, "{what}: the close frame says why");
}

#[tokio::test]
async fn protocol_violations_close_with_their_code() {
    let server = Server::start(Transport::WebSocket, &[]).await;
    let mut not_minimal = vec![0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    not_minimal.extend([0; 4]);
    for (what, bytes, code) in [
        ("frame without a mask", &b"\x81\x02{}"[..], 1002),
        ("16-bit length below 126", b"\x82\xfe\0\x7d\0\0\0\0", 1002),
        ("64-bit length below 65536", &not_minimal, 1002),
        (
            "64-bit length with its highest bit",
            b"\x82\xff\x80\0\0\0\0\0\0\0\0\0\0\0",
            1002,
        ),
        (
            "header of more than 64 MiB",
            b"\x82\xff\0\0\0\0\x04\0\0\x01\0\0\0\0",
            1009,
        ),
        (
            "invalid text in the second fragment",
            b"\x01\x81\0\0\0\0{\0\x84\0\0\0\0\xff",
            1007,
        ),
    ] {
        expect_close(&server, what, bytes, code).await;
    }
}

#[tokio::test]
async fn text_messages_arrive_unchanged() {
    let server = Server::start(Transport::WebSocket, &[]).await;
    for method in ["κόσμε-µ@ßöäü", "\u{7f}\u{10ffff}", &"é".repeat(70_000)] {
        let text = format!(r#"{{"id":7,"method":"{method}"}}"#);
        let mut socket = RawSocket::open(&server).await;
        let frame = SentFrame::new(0x80 | TEXT, text).encode(Some(MASK));
        let answer = async {
            let sent = socket.output.write_all(&frame);
            let (sent, answer) = tokio::join!(sent, RawSocket::frame(&mut socket.input));
            sent.unwrap();
            String::from_utf8(answer.unwrap().1).unwrap()
        };
        let answer = timeout(TIMEOUT, answer).await.expect("no response in time");
        assert!(answer.contains(&format!("`{method}`")), "{answer}");
    }
}

#[tokio::test]
async fn partial_messages_use_bounded_memory() {
    let server = Server::start(Transport::WebSocket, &[]).await;
    let peak = || {
        let line = proc_line(server.pid(), "status", "VmHWM");
        line.trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    let before = peak();
    // Eight messages of 64 MiB, of which 32 MiB each are sent.
    let mut half_sent = vec![0x82, 0xff];
    half_sent.extend((64_u64 << 20).to_be_bytes());
    half_sent.extend([0; 4]);
    half_sent.resize(half_sent.len() + (32 << 20), b'x');
    let half_sent = Arc::new(half_sent);
    let (finished, mut sent) = mpsc::channel(8);
    for _ in 0..8 {
        let mut socket = RawSocket::open(&server).await;
        let (half_sent, finished) = (Arc::clone(&half_sent), finished.clone());
        tokio::spawn(async move {
            socket.output.write_all(&half_sent).await.unwrap();
            finished.send(socket).await.unwrap();
        });
    }
    // Two are read at a time; the others continue when these are gone.
    for _ in 0..4 {
        let pair = async { [sent.recv().await, sent.recv().await] };
        let pair = timeout(TIMEOUT, pair)
            .await
            .expect("fewer than two messages were read");
        assert!(pair.iter().all(Option::is_some));
        assert!(sent.try_recv().is_err(), "no third is read");
    }
    let grown = peak() - before;
    assert!(grown < 110 << 20, "{} MiB", grown >> 20);
}
