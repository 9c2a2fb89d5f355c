//! Reads a handshake as the server and as the client.

use http::{Method, Request, StatusCode, Version, header};

use super::{
    AllowedHosts,
    handshake::{check_request, switch},
};
use crate::connect::fuzz_answer;

const MAX_HEADERS: usize = 100;

/// Parses a request and decides on it; parses the same bytes as an answer.
///
/// # Panics
/// When a request becomes a websocket that must not.
pub fn http_handshake(data: &[u8]) {
    fuzz_answer(data);
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    if !matches!(parsed.parse(data), Ok(httparse::Status::Complete(_))) {
        return;
    }
    let mut builder = Request::builder()
        .method(parsed.method.unwrap_or_default())
        .uri(parsed.path.unwrap_or_default())
        .version(match parsed.version {
            Some(1) => Version::HTTP_11,
            _ => Version::HTTP_10,
        });
    for header in parsed.headers.iter() {
        builder = builder.header(header.name, header.value);
    }
    let Ok(request) = builder.body(()) else {
        return;
    };
    let hosts = AllowedHosts::new(["box.example"]);
    if check_request(&request, &hosts).is_err() {
        return;
    }
    let headers = request.headers();
    let count = |name| headers.get_all(name).iter().count();
    assert_eq!(request.version(), Version::HTTP_11);
    assert!(!headers.contains_key(header::ORIGIN), "no web page");
    assert_eq!(count(header::HOST), 1, "one host");
    assert!(count(header::AUTHORIZATION) <= 1, "one authorization");
    let response = switch(&request);
    let agreed = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    assert_eq!(
        agreed,
        response
            .headers()
            .contains_key(header::SEC_WEBSOCKET_ACCEPT)
    );
    if agreed {
        assert_eq!(*request.method(), Method::GET);
        assert_eq!(count(header::SEC_WEBSOCKET_KEY), 1, "one key");
        assert_eq!(headers[header::SEC_WEBSOCKET_VERSION], "13");
        assert!(!headers.contains_key(header::TRANSFER_ENCODING), "no body");
    }
}
