//! HTTP requests whose body is read as it comes.

use std::time::Duration;

use exec_env::http::{HttpBody, HttpError, HttpRequest, HttpResponse};
use futures_util::{StreamExt, TryStreamExt, future::join};

use crate::{
    bounded_wait::within,
    difference::Difference,
    pattern,
    subject::Subject,
    upstream_server::{Exchange, Upstream},
};

const LARGE: usize = 8 << 20;

/// Makes a request, and answers it with the head of a body.
async fn begin(
    subject: &Subject,
    upstream: &Upstream,
    length: usize,
) -> (HttpResponse<HttpBody>, Exchange) {
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
    let (response, exchange) = join(within("the head comes", asked), answer).await;
    (response.expect("it is answered"), exchange)
}

async fn rest(body: HttpBody) -> Result<Vec<u8>, HttpError> {
    let parts = body.try_fold(Vec::new(), |mut all, part| async move {
        all.extend_from_slice(&part);
        Ok(all)
    });
    within("the body ends", parts).await
}

pub async fn a_streamed_body_comes_as_it_is_sent(subject: &Subject) {
    let upstream = Upstream::new().await;
    let (mut response, mut exchange) = begin(subject, &upstream, 6).await;
    assert_eq!(response.status, 200);
    let streamed = response
        .headers
        .iter()
        .find(|header| header.name == "x-streamed");
    assert_eq!(streamed.map(|header| &*header.value), Some("yes"));
    for part in [b"one", b"two"] {
        exchange.send(part).await;
        let came = within("a part comes", response.body.next()).await;
        assert_eq!(&came.unwrap().unwrap()[..], part);
    }
    let end = within("the body ends", response.body.next()).await;
    assert!(end.is_none(), "{end:?}");
}

pub async fn an_empty_body_can_be_streamed(subject: &Subject) {
    let upstream = Upstream::new().await;
    let (response, _exchange) = begin(subject, &upstream, 0).await;
    assert!(rest(response.body).await.unwrap().is_empty());
}

pub async fn a_large_body_arrives_whole(subject: &Subject) {
    let upstream = Upstream::new().await;
    let (response, mut exchange) = begin(subject, &upstream, LARGE).await;
    let content = pattern::bytes(LARGE);
    let (body, ()) = join(rest(response.body), exchange.send(&content)).await;
    assert!(
        body.unwrap() == content,
        "every byte is the one that was sent"
    );
}

pub async fn bodies_are_streamed_beside_each_other(subject: &Subject) {
    let upstream = Upstream::new().await;
    let (first, mut one) = begin(subject, &upstream, 3).await;
    let (second, mut two) = begin(subject, &upstream, 3).await;
    two.send(b"two").await;
    assert_eq!(rest(second.body).await.unwrap(), b"two");
    one.send(b"one").await;
    assert_eq!(rest(first.body).await.unwrap(), b"one");
}

pub async fn a_streamed_body_that_is_cut_off_is_an_error(subject: &Subject) {
    let upstream = Upstream::new().await;
    let (mut response, mut exchange) = begin(subject, &upstream, 10).await;
    exchange.send(b"some").await;
    drop(exchange);
    let part = within("a part comes", response.body.next()).await;
    assert_eq!(&part.unwrap().unwrap()[..], b"some");
    let end = within("the body fails", response.body.next()).await;
    assert!(matches!(end, Some(Err(HttpError::Host(_)))), "{end:?}");
    assert!(within("it is over", response.body.next()).await.is_none());
}

pub async fn a_streamed_body_takes_no_longer_than_it_may(subject: &Subject) {
    let upstream = Upstream::new().await;
    let asked = subject.http.stream(HttpRequest {
        timeout: Some(Duration::from_millis(200)),
        ..HttpRequest::new("GET", &upstream.url("/"))
    });
    let answer = async {
        let mut exchange = upstream.accept().await;
        exchange.begin("200 OK", "", 10).await;
        exchange
    };
    let (response, exchange) = join(within("the head comes", asked), answer).await;
    let body = rest(response.unwrap().body).await;
    assert!(matches!(body, Err(HttpError::Host(_))), "{body:?}");
    exchange.closed().await;
}

pub async fn a_response_that_does_not_come_is_an_error_of_the_request(subject: &Subject) {
    let url = Upstream::new().await.url("/");
    let asked = subject.http.stream(HttpRequest::new("GET", &url));
    let response = within("it fails", asked).await;
    assert!(matches!(response, Err(HttpError::Host(_))), "{response:?}");
}

pub async fn a_body_that_nobody_reads_holds_up_no_other_call(subject: &Subject) {
    let upstream = Upstream::new().await;
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
    let upstream = Upstream::new().await;
    let (mut response, mut exchange) = begin(subject, &upstream, usize::MAX >> 1).await;
    exchange.send(b"some").await;
    let part = within("a part comes", response.body.next()).await;
    assert!(part.unwrap().is_ok());
    drop(response);
    if subject.differs(Difference::NoHttpCancel) {
        return exchange.send(&pattern::bytes(LARGE)).await;
    }
    exchange.send_until_closed().await;
}

pub async fn dropping_a_silent_body_ends_the_download(subject: &Subject) {
    let upstream = Upstream::new().await;
    let (response, mut exchange) = begin(subject, &upstream, 10).await;
    drop(response);
    if subject.differs(Difference::NoHttpCancel) {
        return exchange.send(b"to the end").await;
    }
    exchange.closed().await;
}
