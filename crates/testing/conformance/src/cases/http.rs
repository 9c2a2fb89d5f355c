//! HTTP requests whose body is read whole.

use std::time::Duration;

use bytes::Bytes;
use exec_env::http::{HttpError, HttpRequest, HttpResponse};
use exec_wire::http::{HttpHeader, HttpResponseHeader, RedirectPolicy};
use futures_util::future::join;

use crate::{
    bounded_wait::within, difference::Difference, subject::Subject, upstream_server::Upstream,
};

async fn request(
    subject: &Subject,
    request: HttpRequest,
) -> Result<HttpResponse<Bytes>, HttpError> {
    within("it is answered", subject.http.request(request)).await
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

pub async fn a_request_arrives_as_it_was_made(subject: &Subject) {
    let upstream = Upstream::new().await;
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

pub async fn a_response_arrives_as_it_was_given(subject: &Subject) {
    let upstream = Upstream::new().await;
    let asked = HttpRequest::new("GET", &upstream.url("/"));
    let headers = "X-Many: one\r\nSet-Cookie: a=1\r\nX-Many: two\r\nX-Encoding: caf\u{e9}\r\n";
    let answer = upstream.answer("200 OK", headers, b"\0\xff body");
    let (response, _) = join(request(subject, asked), answer).await;
    let response = response.unwrap();
    assert_eq!(&response.body[..], b"\0\xff body");
    assert_eq!(found(&response, "x-many"), ["one", "two"]);
    assert_eq!(found(&response, "set-cookie"), ["a=1"]);
    // What is not text is left out.
    assert!(found(&response, "x-encoding").is_empty());
    assert_eq!(found(&response, "content-length"), ["7"]);
}

pub async fn a_body_is_not_decompressed(subject: &Subject) {
    let upstream = Upstream::new().await;
    let asked = HttpRequest::new("GET", &upstream.url("/"));
    let answer = upstream.answer("200 OK", "content-encoding: gzip\r\n", b"not really");
    let (response, exchange) = join(request(subject, asked), answer).await;
    let response = response.unwrap();
    assert_eq!(&response.body[..], b"not really");
    assert_eq!(found(&response, "content-encoding"), ["gzip"]);
    assert!(
        exchange.values("accept-encoding").is_empty(),
        "nobody asked for it"
    );
}

pub async fn an_empty_body_is_a_body(subject: &Subject) {
    let upstream = Upstream::new().await;
    let asked = HttpRequest::new("GET", &upstream.url("/"));
    let (response, _) = join(request(subject, asked), upstream.answer("200 OK", "", b"")).await;
    assert!(response.unwrap().body.is_empty());
}

pub async fn an_error_status_is_a_response(subject: &Subject) {
    let upstream = Upstream::new().await;
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

pub async fn a_redirection_is_followed(subject: &Subject) {
    let upstream = Upstream::new().await;
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

pub async fn a_redirection_can_be_the_response(subject: &Subject) {
    let upstream = Upstream::new().await;
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

pub async fn a_secret_does_not_follow_a_redirection_to_another_host(subject: &Subject) {
    let (upstream, other) = (Upstream::new().await, Upstream::new().await);
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

pub async fn a_request_takes_no_longer_than_it_may(subject: &Subject) {
    let upstream = Upstream::new().await;
    let asked = HttpRequest {
        // Long enough to connect on a loaded machine.
        timeout: Some(Duration::from_millis(500)),
        ..HttpRequest::new("GET", &upstream.url("/"))
    };
    // Silence instead of an answer, and in the middle of a body.
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

pub async fn a_body_that_is_cut_off_is_an_error(subject: &Subject) {
    let upstream = Upstream::new().await;
    let asked = HttpRequest::new("GET", &upstream.url("/"));
    let cut = async {
        let mut exchange = upstream.accept().await;
        exchange.begin("200 OK", "", 10).await;
        exchange.send(b"some").await;
    };
    let (response, ()) = join(request(subject, asked), cut).await;
    assert!(matches!(response, Err(HttpError::Host(_))), "{response:?}");
}

pub async fn a_host_that_is_not_there_is_an_error(subject: &Subject) {
    let url = Upstream::new().await.url("/");
    let response = request(subject, HttpRequest::new("GET", &url)).await;
    assert!(matches!(response, Err(HttpError::Host(_))), "{response:?}");
}

pub async fn a_request_that_cannot_be_made_is_refused(subject: &Subject) {
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

pub async fn a_header_can_end_with_a_variable_of_the_host(subject: &Subject) {
    let upstream = Upstream::new().await;
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

pub async fn a_request_that_is_given_up_is_over(subject: &Subject) {
    let upstream = Upstream::new().await;
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
