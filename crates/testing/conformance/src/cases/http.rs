//! HTTP requests with a buffered response body.

use std::time::Duration;

use bytes::Bytes;
use exec_env::http::{HttpError, HttpRequest, HttpResponse};
use exec_wire::http::{HttpHeader, HttpResponseHeader, RedirectPolicy};
use futures_util::future::join;

use crate::{
    bounded_wait::within, difference::Difference, subject::Subject, upstream_server::UpstreamServer,
};

async fn request(
    subject: &Subject,
    request: HttpRequest,
) -> Result<HttpResponse<Bytes>, HttpError> {
    within("response arrives", subject.http.request(request)).await
}

fn header(name: &str, value: &str) -> HttpHeader {
    HttpHeader {
        name: name.to_owned(),
        value: value.to_owned(),
        value_env_var: None,
    }
}

fn found(response: &HttpResponse<Bytes>, name: &str) -> Vec<String> {
    let named = response.headers.iter().filter(|header| header.name == name);
    named
        .map(|HttpResponseHeader { value, .. }| value.clone())
        .collect()
}

pub async fn http_request_arrives_unchanged(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = HttpRequest {
        headers: vec![
            header("x-many", "one"),
            header("x-single", "alone"),
            header("X-Many", "two"),
        ],
        body: Some(Bytes::from_static(b"\0\xff body")),
        ..HttpRequest::new("pUrGe", &upstream.url("/path?query=1"))
    };
    let answer = upstream.answer("200 OK", "", b"");
    let (response, exchange) = join(request(subject, asked), answer).await;
    assert_eq!(response.unwrap().status, 200);
    assert!(
        exchange
            .head
            .starts_with("pUrGe /path?query=1 HTTP/1.1\r\n")
    );
    assert_eq!(exchange.values("x-many"), ["one", "two"]);
    assert_eq!(exchange.values("x-single"), ["alone"]);
    assert_eq!(exchange.body, b"\0\xff body");
}

pub async fn http_response_arrives_unchanged(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = HttpRequest::new("GET", &upstream.url("/"));
    let headers = "X-Many: one\r\nSet-Cookie: a=1\r\nX-Many: two\r\nX-Encoding: caf\u{e9}\r\n";
    let answer = upstream.answer("200 OK", headers, b"\0\xff body");
    let (response, _) = join(request(subject, asked), answer).await;
    let response = response.unwrap();
    assert_eq!(&response.body[..], b"\0\xff body");
    assert_eq!(found(&response, "x-many"), ["one", "two"]);
    assert_eq!(found(&response, "set-cookie"), ["a=1"]);
    // Header values that are not UTF-8 are left out.
    assert!(found(&response, "x-encoding").is_empty());
    assert_eq!(found(&response, "content-length"), ["7"]);
}

pub async fn http_body_is_not_decompressed(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = HttpRequest::new("GET", &upstream.url("/"));
    let answer = upstream.answer("200 OK", "content-encoding: gzip\r\n", b"not really");
    let (response, exchange) = join(request(subject, asked), answer).await;
    let response = response.unwrap();
    assert_eq!(&response.body[..], b"not really");
    assert_eq!(found(&response, "content-encoding"), ["gzip"]);
    assert!(
        exchange.values("accept-encoding").is_empty(),
        "client sent an unrequested accept-encoding header"
    );
}

pub async fn empty_http_body_is_sent(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = HttpRequest::new("GET", &upstream.url("/"));
    let (response, _) = join(request(subject, asked), upstream.answer("200 OK", "", b"")).await;
    assert!(response.unwrap().body.is_empty());
}

pub async fn http_error_status_is_a_response(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    for (line, status) in [("404 Not Found", 404), ("503 Service Unavailable", 503)] {
        let asked = HttpRequest::new("GET", &upstream.url("/"));
        let answer = upstream.answer(line, "", b"sorry");
        let (response, _) = join(request(subject, asked), answer).await;
        let response = response.unwrap();
        assert_eq!(
            (response.status, &response.body[..]),
            (status, &b"sorry"[..])
        );
    }
}

pub async fn redirect_is_followed(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = HttpRequest::new("GET", &upstream.url("/first"));
    let answers = async {
        upstream
            .answer("302 Found", "location: /second\r\n", b"")
            .await;
        upstream.answer("200 OK", "", b"landed").await
    };
    let (response, exchange) = join(request(subject, asked), answers).await;
    assert_eq!(&response.unwrap().body[..], b"landed");
    assert!(exchange.head.starts_with("GET /second "));
}

pub async fn redirect_can_be_returned_as_the_response(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = HttpRequest {
        redirects: RedirectPolicy::Stop,
        ..HttpRequest::new("GET", &upstream.url("/first"))
    };
    let answer = upstream.answer("302 Found", "location: /second\r\n", b"");
    let (response, _) = join(request(subject, asked), answer).await;
    let response = response.unwrap();
    assert_eq!(response.status, 302);
    assert_eq!(found(&response, "location"), ["/second"]);
}

pub async fn credentials_are_not_sent_to_another_host_on_redirect(subject: &Subject) {
    let (upstream, other) = (UpstreamServer::new().await, UpstreamServer::new().await);
    let asked = HttpRequest {
        headers: vec![
            header("authorization", "secret"),
            header("cookie", "secret"),
        ],
        ..HttpRequest::new("GET", &upstream.url("/"))
    };
    let location = format!("location: {}\r\n", other.url("/"));
    let answers = async {
        let first = upstream
            .answer("307 Temporary Redirect", &location, b"")
            .await;
        (first, other.answer("200 OK", "", b"").await)
    };
    let (response, (first, second)) = join(request(subject, asked), answers).await;
    assert_eq!(response.unwrap().status, 200);
    assert_eq!(first.values("authorization"), ["secret"]);
    assert!(!second.head.contains("secret"), "{}", second.head);
}

pub async fn http_request_times_out(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = HttpRequest {
        // Long enough to connect on a loaded machine.
        timeout: Some(Duration::from_millis(500)),
        ..HttpRequest::new("GET", &upstream.url("/"))
    };
    // The server stalls before the response, then in the middle of a body.
    let (response, exchange) = join(request(subject, asked.clone()), upstream.accept()).await;
    assert!(matches!(response, Err(HttpError::Host(_))), "{response:?}");
    exchange.closed().await;
    let begin = async {
        let mut exchange = upstream.accept().await;
        exchange.begin("200 OK", "", 10).await;
        exchange.send(b"some").await;
        exchange
    };
    let (response, exchange) = join(request(subject, asked), begin).await;
    assert!(matches!(response, Err(HttpError::Host(_))), "{response:?}");
    exchange.closed().await;
}

pub async fn truncated_http_body_is_an_error(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = HttpRequest::new("GET", &upstream.url("/"));
    let cut = async {
        let mut exchange = upstream.accept().await;
        exchange.begin("200 OK", "", 10).await;
        exchange.send(b"some").await;
    };
    let (response, ()) = join(request(subject, asked), cut).await;
    assert!(matches!(response, Err(HttpError::Host(_))), "{response:?}");
}

pub async fn unreachable_http_host_is_an_error(subject: &Subject) {
    let url = UpstreamServer::new().await.url("/");
    let response = request(subject, HttpRequest::new("GET", &url)).await;
    assert!(matches!(response, Err(HttpError::Host(_))), "{response:?}");
}

pub async fn invalid_http_request_is_refused(subject: &Subject) {
    let url = "http://127.0.0.1:1/";
    let with = |name: &str, value: &str| HttpRequest {
        headers: vec![header(name, value)],
        ..HttpRequest::new("GET", url)
    };
    let refused = [
        HttpRequest::new("GET IT", url),
        HttpRequest::new("", url),
        HttpRequest::new("GET", "nowhere"),
        HttpRequest::new("GET", "http://"),
        HttpRequest::new("GET", "ftp://127.0.0.1/"),
        HttpRequest::new("GET", "file:///etc/passwd"),
        with("a b", "value"),
        with("", "value"),
        with("name", "two\r\nlines"),
    ];
    for asked in refused {
        let text = format!("{asked:?}");
        let response = request(subject, asked).await;
        assert!(
            matches!(response, Err(HttpError::Refused(_))),
            "{text}: {response:?}"
        );
    }
}

pub async fn http_header_can_end_with_a_host_variable(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let with = |variable: &str| HttpRequest {
        headers: vec![HttpHeader {
            value_env_var: Some(variable.to_owned()),
            ..header("authorization", "Bearer ")
        }],
        ..HttpRequest::new("GET", &upstream.url("/"))
    };
    let asked = request(subject, with("EXEC_CONFORMANCE_PLAIN"));
    let (response, exchange) = join(asked, upstream.answer("200 OK", "", b"")).await;
    assert_eq!(response.unwrap().status, 200);
    assert_eq!(exchange.values("authorization"), ["Bearer plain"]);
    for variable in [
        "EXEC_CONFORMANCE_UNSET",
        "",
        "OPENAI_API_KEY",
        "aws_secret_access_key",
    ] {
        let response = request(subject, with(variable)).await;
        let Err(HttpError::Refused(text)) = response else {
            panic!("{variable}: {response:?}");
        };
        assert!(text.contains(variable), "{text}");
    }
}

pub async fn cancelled_http_request_is_aborted(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = subject
        .http
        .stream(HttpRequest::new("GET", &upstream.url("/")));
    let task = tokio::spawn(asked);
    let mut exchange = upstream.accept().await;
    task.abort();
    if subject.differs(Difference::NoHttpCancel) {
        return exchange.begin("200 OK", "", 0).await;
    }
    exchange.closed().await;
}
