//! What holds for every head and body of HTTP that the parsers accept.
//!
//! Heads that the proxy writes are read back with `httparse` alone, as another server would.

use httparse::{EMPTY_HEADER, Header};

use super::{
    chunked::Chunks,
    field::Framing,
    request::{Kind, Request},
    response::{Response, Sequel},
};
use crate::{host::Host, limits};

/// A request that goes on names its host once, frames its body in one way and ends where its head
/// ends.
pub(crate) fn check_request(head: &[u8]) {
    let Ok(request) = Request::parse(head) else {
        return;
    };
    let host = request.host.to_string();
    assert_eq!(Host::parse(&host).ok().as_ref(), Some(&request.host));
    let Kind::Plain { framing, .. } = &request.kind else {
        return assert!(request.write_head().is_empty(), "CONNECT is not forwarded");
    };
    let written = request.write_head();
    let mut space = [EMPTY_HEADER; limits::MAX_FIELDS + 4];
    let mut parsed = httparse::Request::new(&mut space);
    let end = parsed.parse(&written);
    assert_eq!(end, Ok(httparse::Status::Complete(written.len())));
    assert_eq!(parsed.method, Some(request.method.as_str()));
    let expected = match request.port {
        80 => host,
        port => format!("{host}:{port}"),
    };
    assert_eq!(values(parsed.headers, "host"), [expected.as_bytes()]);
    assert_eq!(values(parsed.headers, "connection").len(), 1);
    check_hop_by_hop(parsed.headers);
    match framing {
        Framing::Chunked => check_framing(parsed.headers, &[], &[b"chunked"]),
        Framing::Length(0) if values(parsed.headers, "content-length").is_empty() => {
            check_framing(parsed.headers, &[], &[]);
        }
        Framing::Length(length) => {
            check_framing(parsed.headers, &[length.to_string().as_bytes()], &[]);
        }
        Framing::UntilClose => panic!("a request has no body until its end"),
    }
}

/// A response that goes on frames its body in at most one way and ends where its head ends.
pub(crate) fn check_response(head: &[u8]) {
    let Ok(response) = Response::parse(head) else {
        return;
    };
    for request in REQUESTS {
        let Ok(request) = Request::parse(request) else {
            panic!("{request:?} is a request");
        };
        let Ok(sequel) = response.sequel(&request) else {
            continue;
        };
        let written = response.write_head(sequel);
        let mut space = [EMPTY_HEADER; limits::MAX_FIELDS + 4];
        let mut parsed = httparse::Response::new(&mut space);
        let end = parsed.parse(&written);
        assert_eq!(end, Ok(httparse::Status::Complete(written.len())));
        let lengths = values(parsed.headers, "content-length");
        let codings = values(parsed.headers, "transfer-encoding");
        assert!(lengths.len() <= 1, "one length at most");
        assert!(lengths.is_empty() || codings.is_empty(), "one framing");
        match sequel {
            Sequel::Body(Framing::Length(length)) => {
                assert_eq!(lengths, [length.to_string().as_bytes()]);
            }
            Sequel::Body(Framing::Chunked) => assert!(!codings.is_empty(), "chunks are announced"),
            Sequel::Interim | Sequel::Switch => {
                assert!(lengths.is_empty() && codings.is_empty(), "no body follows");
            }
            Sequel::Nothing | Sequel::Body(Framing::UntilClose) => {}
        }
        check_hop_by_hop(parsed.headers);
    }
}

/// A chunked body ends at the same byte, or is refused, however its bytes come.
pub(crate) fn check_chunks(body: &[u8]) {
    let whole = chunks_end(body, body.len().max(1));
    assert_eq!(chunks_end(body, 1), whole);
    assert_eq!(chunks_end(body, 7), whole);
}

/// Returns where a body that comes in pieces ends. `None`: it is refused, or its end is missing.
fn chunks_end(body: &[u8], piece: usize) -> Option<usize> {
    let mut chunks = Chunks::new();
    let mut used = 0;
    for piece in body.chunks(piece) {
        let taken = chunks.advance(piece).ok()?;
        assert!(taken <= piece.len(), "no more is taken than there is");
        used += taken;
        if chunks.is_done() {
            break;
        }
    }
    chunks.is_done().then_some(used)
}

fn values<'a>(fields: &[Header<'a>], name: &str) -> Vec<&'a [u8]> {
    let named = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case(name));
    named.map(|field| field.value).collect()
}

fn check_framing(fields: &[Header<'_>], lengths: &[&[u8]], codings: &[&[u8]]) {
    assert_eq!(values(fields, "content-length"), lengths);
    assert_eq!(values(fields, "transfer-encoding"), codings);
}

fn check_hop_by_hop(fields: &[Header<'_>]) {
    for field in fields {
        let name = field.name.to_ascii_lowercase();
        let stays = name.starts_with("proxy-") || ["te", "keep-alive"].contains(&name.as_str());
        assert!(!stays, "{name} belongs to one connection");
    }
}

/// What a response may answer: it decides what comes after the head.
const REQUESTS: [&[u8]; 3] = [
    b"GET http://a/ HTTP/1.1\r\n\r\n",
    b"GET http://a/ HTTP/1.0\r\n\r\n",
    b"HEAD http://a/ HTTP/1.1\r\n\r\n",
];
