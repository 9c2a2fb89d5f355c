//! Entry point of the fuzz target `proxy_request`: anything that a client or a server could send.
//!
//! The first byte selects the parser, the rest is its input. Heads that the proxy writes are parsed
//! again with `httparse` alone, as another server would. Not here: the target itself and its corpus
//! (`fuzz/`).

use std::fmt::Debug;

use httparse::{EMPTY_HEADER, Header};

use crate::{
    http::{
        exchange::ChunkedBody,
        message::{BodyKind, ProxyRequest, ProxyResponse, RequestKind},
        message_head::BodyFraming,
    },
    limits,
    socks::{self, ParseResult},
    target_host::TargetHost,
};

/// Parses one input with the parser that its first byte selects.
///
/// # Panics
/// When an invariant does not hold.
pub fn proxy_request(input: &[u8]) {
    let Some((&selector, input)) = input.split_first() else {
        return;
    };
    match selector % 4 {
        0 => check_request(input),
        1 => check_response(input),
        2 => check_chunks(input),
        _ => check_messages(input),
    }
}

/// Checks that a forwarded request names its host once, has one body framing, and ends with its
/// head.
pub(crate) fn check_request(head: &[u8]) {
    let Ok(request) = ProxyRequest::parse(head) else {
        return;
    };
    let host = request.host.to_string();
    assert_eq!(TargetHost::parse(&host).ok().as_ref(), Some(&request.host));
    let RequestKind::Plain { framing, .. } = &request.kind else {
        return assert!(
            request.write_head().is_empty(),
            "CONNECT must not be forwarded"
        );
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
        BodyFraming::Chunked => check_framing(parsed.headers, &[], &[b"chunked"]),
        BodyFraming::Length(0) if values(parsed.headers, "content-length").is_empty() => {
            check_framing(parsed.headers, &[], &[]);
        }
        BodyFraming::Length(length) => {
            check_framing(parsed.headers, &[length.to_string().as_bytes()], &[]);
        }
        BodyFraming::UntilClose => {
            panic!("a request cannot be framed by the end of the connection")
        }
    }
}

/// Checks that a forwarded response has at most one body framing and ends with its head.
pub(crate) fn check_response(head: &[u8]) {
    let Ok(response) = ProxyResponse::parse(head) else {
        return;
    };
    for request in REQUESTS {
        let Ok(request) = ProxyRequest::parse(request) else {
            panic!("{request:?} must be a valid request");
        };
        let Ok(body_kind) = response.body_kind(&request) else {
            continue;
        };
        let written = response.write_head(body_kind);
        let mut space = [EMPTY_HEADER; limits::MAX_FIELDS + 4];
        let mut parsed = httparse::Response::new(&mut space);
        let end = parsed.parse(&written);
        assert_eq!(end, Ok(httparse::Status::Complete(written.len())));
        let lengths = values(parsed.headers, "content-length");
        let codings = values(parsed.headers, "transfer-encoding");
        assert!(lengths.len() <= 1, "at most one length is allowed");
        assert!(
            lengths.is_empty() || codings.is_empty(),
            "only one framing is allowed"
        );
        match body_kind {
            BodyKind::Body(BodyFraming::Length(length)) => {
                assert_eq!(lengths, [length.to_string().as_bytes()]);
            }
            BodyKind::Body(BodyFraming::Chunked) => {
                assert!(!codings.is_empty(), "chunks must be announced")
            }
            BodyKind::Interim | BodyKind::Switch => {
                assert!(
                    lengths.is_empty() && codings.is_empty(),
                    "no body may follow"
                );
            }
            BodyKind::Empty | BodyKind::Body(BodyFraming::UntilClose) => {}
        }
        check_hop_by_hop(parsed.headers);
    }
}

/// Checks that the end of a chunked body does not depend on how its bytes are split.
pub(crate) fn check_chunks(body: &[u8]) {
    let end = chunked_body_end(body, body.len().max(1));
    assert_eq!(chunked_body_end(body, 1), end);
    assert_eq!(chunked_body_end(body, 7), end);
}

/// Returns the end of a body that arrives in pieces. `None` if it is refused or incomplete.
fn chunked_body_end(body: &[u8], piece: usize) -> Option<usize> {
    let mut chunks = ChunkedBody::new();
    let mut used = 0;
    for piece in body.chunks(piece) {
        let consumed = chunks.advance(piece).ok()?;
        assert!(consumed <= piece.len(), "consumed more than available");
        used += consumed;
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
        let is_hop_by_hop =
            name.starts_with("proxy-") || ["te", "keep-alive"].contains(&name.as_str());
        assert!(!is_hop_by_hop, "{name} is hop-by-hop");
    }
}

/// Requests that affect the body of a response.
const REQUESTS: [&[u8]; 3] = [
    b"GET http://a/ HTTP/1.1\r\n\r\n",
    b"GET http://a/ HTTP/1.0\r\n\r\n",
    b"HEAD http://a/ HTTP/1.1\r\n\r\n",
];

/// Checks that a message does not depend on how its bytes are split, and that its host is
/// normalised.
pub(crate) fn check_messages(bytes: &[u8]) {
    check_prefixes(bytes, socks::parse_greeting);
    check_prefixes(bytes, socks::parse_request);
    if let Ok(Some((request, _))) = socks::parse_request(bytes) {
        check_host(&request.host);
    }
    if let Ok((host, port, data)) = socks::parse_datagram(bytes) {
        check_host(&host);
        assert!(data.len() < bytes.len(), "a datagram has a header");
        let Some(address) = host.address() else {
            return;
        };
        let mut written = Vec::new();
        socks::write_datagram((address, port).into(), data, &mut written);
        assert_eq!(socks::parse_datagram(&written), Ok((host, port, data)));
    }
}

/// Checks that every prefix of a complete message needs more bytes, and that trailing bytes do not
/// matter.
fn check_prefixes<T: Debug + PartialEq>(bytes: &[u8], parse: fn(&[u8]) -> ParseResult<T>) {
    let Ok(Some((value, length))) = parse(bytes) else {
        return;
    };
    assert!(length <= bytes.len(), "consumed more than available");
    assert_eq!(parse(&bytes[..length]), Ok(Some((value, length))));
    for end in 0..length {
        assert_eq!(parse(&bytes[..end]), Ok(None), "prefix of {end} bytes");
    }
}

fn check_host(host: &TargetHost) {
    assert_eq!(TargetHost::parse(host.as_str()).as_ref(), Ok(host));
    assert_eq!(TargetHost::parse(&host.to_string()).as_ref(), Ok(host));
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn corpus_holds_every_invariant() {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/proxy_request");
        let files: Vec<_> = fs::read_dir(corpus).unwrap().map(Result::unwrap).collect();
        assert!(files.len() > 12, "fuzz corpus is missing");
        for file in files {
            println!("{}", file.path().display());
            proxy_request(&fs::read(file.path()).unwrap());
        }
    }
}
