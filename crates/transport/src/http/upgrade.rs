//! What makes a websocket of a request (RFC 6455 section 4.2), and short answers.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;

use crate::websocket::accept_key;

/// Tells whether a request asks for a websocket.
pub fn wants_websocket(headers: &HeaderMap) -> bool {
    has(headers, header::CONNECTION, "upgrade") && has(headers, header::UPGRADE, "websocket")
}

/// Agrees to a websocket, if it is one of the version that there is.
pub(super) fn switch(headers: &HeaderMap) -> Response<Full<Bytes>> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let version = has(headers, header::SEC_WEBSOCKET_VERSION, "13");
    let (Some(key), true) = (key, version) else {
        return plain(
            StatusCode::BAD_REQUEST,
            "expected websocket version 13 with a key",
        );
    };
    let mut response = plain(StatusCode::SWITCHING_PROTOCOLS, "");
    let reply = response.headers_mut();
    reply.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    reply.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&accept_key(key.as_bytes())) {
        reply.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

fn has(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// Answers with a line of text, or with nothing.
pub(super) fn plain(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let body = body.into();
    let empty = body.is_empty();
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    if !empty {
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}
