//! Tests of a credential pipe.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use http::header;
use tokio::{
    io::{AsyncWriteExt, DuplexStream, duplex},
    time::{Duration, Instant},
};

use super::{CredentialPipe, FIRST_FRAME_TIMEOUT, PipeEnd, PipeError, *};
use crate::{
    api::RegistryEnvironmentId,
    credentials::{BodyDisclosure, CredentialError, Credentials, SecretScope},
};

/// The parent process with a settable clock.
struct Parent {
    pipe: DuplexStream,
    now: Arc<AtomicU64>,
}

impl Parent {
    async fn write(&mut self, text: &str) {
        self.pipe.write_all(text.as_bytes()).await.unwrap();
    }
}

fn frame(token: &str, expires_at: u64) -> String {
    let head = r#"{"version":1,"environment_id":"env-1""#;
    format!("{head},\"token\":\"{token}\",\"expires_at\":{expires_at}}}\n")
}

fn environment() -> RegistryEnvironmentId {
    RegistryEnvironmentId::new("env-1").unwrap()
}

async fn open() -> (Parent, CredentialPipe, PipeEnd) {
    let (mut parent, child) = duplex(64 << 10);
    parent
        .write_all(frame("one", 100).as_bytes())
        .await
        .unwrap();
    let now = Arc::new(AtomicU64::new(50));
    let clock = Arc::clone(&now);
    let clock = Arc::new(move || clock.load(Ordering::Relaxed));
    let opened = CredentialPipe::open_by(child, environment(), clock).await;
    let (pipe, end) = opened.unwrap();
    let parent = Parent { pipe: parent, now };
    (parent, pipe, end)
}

async fn token(pipe: &CredentialPipe) -> Result<String, CredentialError> {
    let headers = pipe.headers().await?;
    let value = headers[header::AUTHORIZATION].to_str().unwrap();
    Ok(value.strip_prefix("Bearer ").unwrap().to_owned())
}

/// Waits until the reader has processed the input.
async fn wait_for_update(pipe: &mut CredentialPipe) {
    pipe.newest.changed().await.unwrap();
}

#[tokio::test]
async fn newest_token_is_used_until_it_expires() {
    let (mut parent, mut pipe, _end) = open().await;
    assert_eq!(token(&pipe).await.unwrap(), "one");
    parent.now.store(100, Ordering::Relaxed);
    assert!(matches!(token(&pipe).await, Err(CredentialError::Expired)));
    parent.write(&frame("two", 300)).await;
    wait_for_update(&mut pipe).await;
    assert_eq!(token(&pipe).await.unwrap(), "two");
    // The newest token is used, even if it expires sooner.
    parent.write(&frame("three", 101)).await;
    wait_for_update(&mut pipe).await;
    assert_eq!(token(&pipe).await.unwrap(), "three");
    assert_eq!(
        (pipe.secret_scope(), pipe.body_disclosure()),
        (SecretScope::Private, BodyDisclosure::Hidden)
    );
    assert!(!format!("{pipe:?}").contains("three"));
}

#[tokio::test]
async fn end_of_input_is_a_normal_end() {
    let (parent, pipe, end) = open().await;
    drop(parent);
    end.await.unwrap();
    assert_eq!(token(&pipe).await.unwrap(), "one");
}

#[tokio::test]
async fn incomplete_last_line_is_ignored() {
    let (mut parent, pipe, end) = open().await;
    parent.write(frame("two", 300).trim_end()).await;
    drop(parent);
    end.await.unwrap();
    assert_eq!(token(&pipe).await.unwrap(), "one");
}

#[tokio::test]
async fn end_before_the_first_token_is_a_distinct_error() {
    for input in [&b""[..], b"{\"version\""] {
        let opened = CredentialPipe::open(input, environment()).await;
        assert!(matches!(opened, Err(PipeError::Closed)));
    }
}

#[tokio::test]
async fn invalid_line_ends_the_pipe() {
    let expired = frame("two", 50);
    let other = frame("two", 300).replace("env-1", "env-2");
    let long = format!("{}\n", "x".repeat(16_384));
    type Is = fn(&PipeError) -> bool;
    let table: [(&str, Is); 5] = [
        ("\n", |error| matches!(error, PipeError::Invalid)),
        ("{}\n", |error| matches!(error, PipeError::Invalid)),
        (&expired, |error| matches!(error, PipeError::Expired)),
        (&other, |error| matches!(error, PipeError::OtherEnvironment)),
        (&long, |error| matches!(error, PipeError::TooLong(_))),
    ];
    for (line, expected) in table {
        let (mut parent, pipe, end) = open().await;
        parent.write(line).await;
        let error = end.await.unwrap_err();
        assert!(expected(&error), "{line}: {error}");
        assert!(!error.to_string().contains("two"));
        assert_eq!(token(&pipe).await.unwrap(), "one");
        let first = CredentialPipe::open_by(
            std::io::Cursor::new(line.to_owned()),
            environment(),
            Arc::new(|| 50),
        );
        assert!(expected(&first.await.unwrap_err()), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn late_first_line_is_an_error() {
    let (mut parent, child) = duplex(1024);
    let started_at = Instant::now();
    parent.write_all(b"{\"version\":1").await.unwrap();
    let late = CredentialPipe::open(child, environment()).await;
    assert!(matches!(late, Err(PipeError::Late(FIRST_FRAME_TIMEOUT))));
    assert!(started_at.elapsed() - FIRST_FRAME_TIMEOUT < Duration::from_millis(2));
}

#[tokio::test]
async fn system_clock_is_used_by_default() {
    let past = std::io::Cursor::new(frame("one", 1_700_000_000));
    let refused = CredentialPipe::open(past, environment()).await;
    assert!(matches!(refused, Err(PipeError::Expired)));
    let future = std::io::Cursor::new(frame("one", 1 << 40));
    let opened = CredentialPipe::open(future, environment()).await;
    let (pipe, _end) = opened.unwrap();
    assert_eq!(token(&pipe).await.unwrap(), "one");
}

#[tokio::test]
async fn dropping_the_end_stops_the_reader() {
    let (mut parent, mut pipe, end) = open().await;
    drop(end);
    // The task is gone, so the token is not replaced any more.
    assert!(pipe.newest.changed().await.is_err());
    let written = parent.pipe.write_all(b"x").await;
    assert!(written.is_err());
    assert_eq!(token(&pipe).await.unwrap(), "one");
}

const NOW: u64 = 1_000;

fn read(line: &str) -> Result<IssuedToken, PipeError> {
    IssuedToken::read(
        line.as_bytes(),
        &RegistryEnvironmentId::new("env-1").unwrap(),
        NOW,
    )
}

#[test]
fn frame_has_exactly_four_members() {
    let valid = r#"{"version":1,"environment_id":"env-1","token":"abc.def","expires_at":1001}"#;
    for line in [
        valid.to_owned(),
        format!("{valid}\n"),
        format!(" {valid}\r\n"),
    ] {
        let credential = read(&line).unwrap();
        assert_eq!(credential.token, RegistryToken::new("abc.def").unwrap());
        assert_eq!(credential.expires_at, 1001);
    }
    for (from, to) in [
        (r#""version":1"#, r#""version":2"#),
        (r#""version":1"#, r#""version":"1""#),
        (r#""version":1"#, r#""version":1.0"#),
        (r#""version":1,"#, ""),
        (r#""version":1,"#, r#""version":1,"version":1,"#),
        (r#""version":1"#, r#""version":1,"extra":1"#),
        (r#""abc.def""#, r#""""#),
        (r#""abc.def""#, r#"" abc""#),
        (r#""abc.def""#, r#""abc ""#),
        (r#""abc.def""#, r#""a bc""#),
        (r#""abc.def""#, r#""a\tbc""#),
        (r#""abc.def""#, r#""äbc""#),
        (r#""abc.def""#, r#""abc\n""#),
        (r#""abc.def""#, r#""a\nbc""#),
        (r#""abc.def""#, r#""a\rbc""#),
        (r#""abc.def""#, "7"),
        ("1001", "1001.5"),
        ("1001", "-1"),
        ("1001", r#""1001""#),
        ("1001", "null"),
        ("}", "} {}"),
    ] {
        let line = valid.replacen(from, to, 1);
        assert_ne!(line, valid);
        assert!(matches!(read(&line), Err(PipeError::Invalid)), "{line}");
    }
    for line in [
        "",
        "\n",
        "\r\n",
        r#"[1,"env-1","abc.def",1001]"#,
        "\u{feff}{}",
    ] {
        assert!(matches!(read(line), Err(PipeError::Invalid)), "{line:?}");
    }
    let not_utf8 = [b"{\"version\":1,\"environment_id\":\"", &[0xff][..]].concat();
    let environment = RegistryEnvironmentId::new("env-1").unwrap();
    let read = IssuedToken::read(&not_utf8, &environment, NOW);
    assert!(matches!(read, Err(PipeError::Invalid)));
}

#[test]
fn frame_must_match_the_environment_and_not_be_expired() {
    let other = r#"{"version":1,"environment_id":"env-2","token":"a","expires_at":1001}"#;
    assert!(matches!(read(other), Err(PipeError::OtherEnvironment)));
    let past = r#"{"version":1,"environment_id":"env-1","token":"a","expires_at":1000}"#;
    assert!(matches!(read(past), Err(PipeError::Expired)));
}

async fn all(input: &[u8]) -> (Vec<usize>, Option<PipeError>) {
    let (mut lines, mut found) = (CredentialLineReader::new(input), Vec::new());
    loop {
        match lines.next().await {
            Ok(Some(line)) => found.push(line.len()),
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

#[tokio::test]
async fn line_is_returned_once_complete() {
    assert!(matches!(all(b"ab\n\nc\n").await, (found, None) if found == [2, 0, 1]));
    assert!(matches!(all(b"ab\nrest").await, (found, None) if found == [2]));
    assert!(matches!(all(b"").await, (found, None) if found.is_empty()));
}

#[tokio::test]
async fn line_feed_counts_towards_the_length() {
    let mut line = vec![b'x'; MAX_LINE - 1];
    line.push(b'\n');
    line.extend_from_within(..);
    assert!(matches!(all(&line).await, (found, None) if found.len() == 2));
    line.insert(0, b'x');
    let refused = all(&line).await;
    assert!(matches!(refused, (found, Some(PipeError::TooLong(MAX_LINE))) if found.is_empty()));
    // The line is rejected before its end arrives.
    let endless = vec![b'x'; MAX_LINE + 1];
    assert!(matches!(
        all(&endless).await,
        (_, Some(PipeError::TooLong(_)))
    ));
}
