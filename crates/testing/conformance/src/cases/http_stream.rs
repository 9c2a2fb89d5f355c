//! HTTP requests with a streamed response body.

use std::time::Duration;

use exec_env::http::{HttpBody, HttpError, HttpRequest, HttpResponse};
use futures_util::{StreamExt, TryStreamExt, future::join};

use crate::{
    bounded_wait::within,
    difference::Difference,
    pattern,
    subject::Subject,
    upstream_server::{UpstreamRequest, UpstreamServer},
};

const LARGE: usize = 8 << 20;

/// Sends a request and answers it with the head of a response.
async fn begin(
    subject: &Subject,
    upstream: &UpstreamServer,
    length: usize,
) -> (HttpResponse<HttpBody>, UpstreamRequest) {
    let asked = subject
        .http
        .stream(HttpRequest::new("GET", &upstream.url("/")));
    let answer = async {
        let mut exchange = upstream.accept().await;
        exchange
            .begin("200 OK", "x-streamed: yes\r\n", length)
            .await;
        exchange
    };
    let (response, exchange) = join(within("response head arrives", asked), answer).await;
    (response.expect("response arrives"), exchange)
}

async fn rest(body: HttpBody) -> Result<Vec<u8>, HttpError> {
    let parts = body.try_fold(Vec::new(), |mut all, part| async move {
        all.extend_from_slice(&part);
        Ok(all)
    });
    within("body ends", parts).await
}

pub async fn streamed_body_arrives_as_it_is_sent(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let (mut response, mut exchange) = begin(subject, &upstream, 6).await;
    assert_eq!(response.status, 200);
    let streamed = response
        .headers
        .iter()
        .find(|header| header.name == "x-streamed");
    assert_eq!(streamed.map(|header| &*header.value), Some("yes"));
    for part in [b"one", b"two"] {
        exchange.send(part).await;
        let came = within("body chunk arrives", response.body.next()).await;
        assert_eq!(&came.unwrap().unwrap()[..], part);
    }
    let end = within("body ends", response.body.next()).await;
    assert!(end.is_none(), "{end:?}");
}

pub async fn an_empty_body_can_be_streamed(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let (response, _exchange) = begin(subject, &upstream, 0).await;
    assert!(rest(response.body).await.unwrap().is_empty());
}

pub async fn large_streamed_body_arrives_complete(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let (response, mut exchange) = begin(subject, &upstream, LARGE).await;
    let content = pattern::bytes(LARGE);
    let (body, ()) = join(rest(response.body), exchange.send(&content)).await;
    assert!(body.unwrap() == content, "body differs from the sent bytes");
}

pub async fn bodies_are_streamed_concurrently(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let (first, mut one) = begin(subject, &upstream, 3).await;
    let (second, mut two) = begin(subject, &upstream, 3).await;
    two.send(b"two").await;
    assert_eq!(rest(second.body).await.unwrap(), b"two");
    one.send(b"one").await;
    assert_eq!(rest(first.body).await.unwrap(), b"one");
}

pub async fn truncated_streamed_body_is_an_error(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let (mut response, mut exchange) = begin(subject, &upstream, 10).await;
    exchange.send(b"some").await;
    drop(exchange);
    let part = within("body chunk arrives", response.body.next()).await;
    assert_eq!(&part.unwrap().unwrap()[..], b"some");
    let end = within("body fails", response.body.next()).await;
    assert!(matches!(end, Some(Err(HttpError::Host(_)))), "{end:?}");
    assert!(
        within("call completes", response.body.next())
            .await
            .is_none()
    );
}

pub async fn streamed_body_times_out(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let asked = subject.http.stream(HttpRequest {
        // Long enough for the head to arrive on a busy machine.
        timeout: Some(Duration::from_secs(1)),
        ..HttpRequest::new("GET", &upstream.url("/"))
    });
    let answer = async {
        let mut exchange = upstream.accept().await;
        exchange.begin("200 OK", "", 10).await;
        exchange
    };
    let (response, exchange) = join(within("response head arrives", asked), answer).await;
    let body = rest(response.unwrap().body).await;
    assert!(matches!(body, Err(HttpError::Host(_))), "{body:?}");
    exchange.closed().await;
}

pub async fn missing_response_fails_the_streamed_request(subject: &Subject) {
    let url = UpstreamServer::new().await.url("/");
    let asked = subject.http.stream(HttpRequest::new("GET", &url));
    let response = within("request fails", asked).await;
    assert!(matches!(response, Err(HttpError::Host(_))), "{response:?}");
}

pub async fn unread_body_does_not_block_other_calls(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let (response, exchange) = begin(subject, &upstream, LARGE).await;
    let content = pattern::bytes(LARGE);
    let send = async {
        let mut exchange = exchange;
        exchange.send(&content).await;
    };
    let other = async {
        for _ in 0..20 {
            let told = subject
                .start(subject.sh("echo there", &[]))
                .await
                .finish()
                .await;
            assert_eq!(told.stdout(), b"there\n");
        }
    };
    let read = async {
        other.await;
        rest(response.body).await
    };
    let (body, ()) = join(read, send).await;
    assert!(body.unwrap() == content, "nothing is lost by waiting");
}

pub async fn dropping_a_body_ends_the_download(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let (mut response, mut exchange) = begin(subject, &upstream, usize::MAX >> 1).await;
    exchange.send(b"some").await;
    let part = within("body chunk arrives", response.body.next()).await;
    assert!(part.unwrap().is_ok());
    drop(response);
    if subject.differs(Difference::NoHttpCancel) {
        return exchange.send(&pattern::bytes(LARGE)).await;
    }
    exchange.send_until_closed().await;
}

pub async fn dropping_a_stalled_body_ends_the_download(subject: &Subject) {
    let upstream = UpstreamServer::new().await;
    let (response, mut exchange) = begin(subject, &upstream, 10).await;
    drop(response);
    if subject.differs(Difference::NoHttpCancel) {
        return exchange.send(b"to the end").await;
    }
    exchange.closed().await;
}
