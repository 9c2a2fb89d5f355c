//! Tests of retries, error messages and paths.

use std::{cell::Cell, os::unix::fs::symlink};

use exec_env::environment::DisconnectReason;
use exec_local::filesystem::LocalFileSystem;
use futures_util::future::{FutureExt, ready};

use super::*;

fn cut() -> FileError {
    FileError::Disconnected(DisconnectReason::Transport("cut".to_owned()))
}

#[tokio::test]
async fn disconnected_requests_are_retried() {
    let attempts = Cell::new(0);
    let outcome = retry_disconnected(|| {
        attempts.set(attempts.get() + 1);
        let outcome = if attempts.get() < 3 {
            Err(cut())
        } else {
            Ok(7)
        };
        ready(outcome).boxed()
    })
    .await;
    assert_eq!((outcome, attempts.get()), (Ok(7), 3));
}

#[tokio::test]
async fn retries_are_limited_and_other_errors_fail_at_once() {
    let attempts = Cell::new(0);
    let outcome = retry_disconnected(|| {
        attempts.set(attempts.get() + 1);
        ready(Err::<(), _>(cut())).boxed()
    })
    .await;
    assert_eq!((outcome, attempts.get()), (Err(cut()), MAX_RETRIES + 1));
    let refused = FileError::Refused("no".to_owned());
    let outcome = retry_disconnected(|| ready(Err::<(), _>(refused.clone())).boxed()).await;
    assert_eq!(outcome, Err(refused));
}

#[test]
fn missing_file_has_its_own_kind_and_no_error_number() {
    let text = "cannot open `/none`: No such file or directory (os error 2)".to_owned();
    let failure = CommandFailure::from(FileError::NotFound(text));
    assert_eq!(failure.kind, FailureKind::NotFound);
    assert_eq!(
        failure.what,
        "cannot open `/none`: No such file or directory"
    );
    let text = "cannot open `/x`: Permission denied (os error 13)".to_owned();
    let failure = CommandFailure::from(FileError::Invalid(text));
    assert_eq!(failure.kind, FailureKind::Failed);
    assert_eq!(failure.what, "cannot open `/x`: Permission denied");
}

#[test]
fn multi_line_error_is_joined() {
    let text = "pattern cannot be used:\n    (\n    ^\nunclosed group".to_owned();
    let failure = CommandFailure::from(FileError::Refused(text));
    assert_eq!(failure.kind, FailureKind::Usage);
    assert_eq!(failure.what, "pattern cannot be used: ( ^ unclosed group");
}

#[test]
fn text_without_error_number_is_unchanged() {
    for text in ["odd (os error", "odd (os error x)", "plain"] {
        assert_eq!(plain(text), text);
    }
}

#[tokio::test]
async fn dangling_link_is_distinguished_from_a_missing_path() {
    let directory = tempfile::tempdir().unwrap();
    symlink("none", directory.path().join("dead")).unwrap();
    symlink(".", directory.path().join("way")).unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    let files = LocalFileSystem::default();
    for (name, dead) in [
        ("dead", true),
        ("way/dead", true),
        ("none", false),
        ("none/dead", false),
        ("file", false),
    ] {
        let path = PathUri::from_native(&directory.path().join(name)).unwrap();
        assert_eq!(is_dangling_link(&files, &path).await, Ok(dead), "{name}");
    }
}

#[test]
fn path_is_displayed_in_native_form() {
    let path = PathUri::parse("file:///srv/a%20b").unwrap();
    assert_eq!(display_path(&path), "/srv/a b");
    let windows = PathUri::parse("file:///C:/x").unwrap();
    assert_eq!(display_path(&windows), "file:///C:/x");
}

#[test]
fn path_is_displayed_relative_to_the_typed_root() {
    let uri = |text: &str| PathUri::parse(text).unwrap();
    let (root, path) = (uri("file:///srv/app"), uri("file:///srv/app/a/b"));
    assert_eq!(display_relative(".", &root, &path), "a/b");
    assert_eq!(display_relative("app/", &root, &path), "app/a/b");
    assert_eq!(
        display_relative("/", &uri("file:///"), &path),
        "/srv/app/a/b"
    );
    assert_eq!(
        display_relative("x", &uri("file:///sr"), &path),
        "/srv/app/a/b"
    );
    assert_eq!(display_relative("app", &path, &path), "/srv/app/a/b");
}

#[test]
fn non_utf8_bytes_are_kept_in_path_bytes() {
    let uri = |text: &str| PathUri::parse(text).unwrap();
    let (root, path) = (uri("file:///srv/%FF"), uri("file:///srv/%FF/a%FEb"));
    assert_eq!(relative_path_bytes(b".", &root, &path), b"a\xfeb");
    assert_eq!(
        relative_path_bytes(b"x\xff/", &root, &path),
        b"x\xff/a\xfeb"
    );
    assert_eq!(path_bytes(&path), b"/srv/\xff/a\xfeb");
}

#[test]
fn child_path_works_for_unix_and_windows_directories() {
    let path = PathUri::parse("file:///srv").unwrap();
    assert_eq!(
        child_path(&path, b"a b").unwrap().as_str(),
        "file:///srv/a%20b"
    );
    let windows = PathUri::parse("file:///C:/x").unwrap();
    assert_eq!(
        child_path(&windows, b"y").unwrap().as_str(),
        "file:///C:/x/y"
    );
    assert_eq!(child_path(&windows, b"\xff"), None);
}

#[test]
fn child_path_rejects_invalid_names() {
    let path = PathUri::parse("file:///srv").unwrap();
    let windows = PathUri::parse("file:///C:/x").unwrap();
    for name in ["", ".", "..", "../x", "/x", "a/b", "a/", "a\0b"] {
        assert_eq!(child_path(&path, name.as_bytes()), None, "{name:?}");
        assert_eq!(child_path(&windows, name.as_bytes()), None, "{name:?}");
    }
    assert!(child_path(&path, b"a\\b:c").is_some());
    for name in ["a\\b", "..\\x", "D:x"] {
        assert_eq!(child_path(&windows, name.as_bytes()), None, "{name:?}");
    }
}
