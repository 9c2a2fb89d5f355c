//! Unusual names and paths of other hosts.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::PathBuf};

use bytes::Bytes;
use exec_env::filesystem::{FileFuture, MissingPathsRequest, WatchDepth};
use exec_wire::{fs::OpenMode, path_uri::PathUri};
use futures_util::FutureExt;

use crate::{
    bounded_wait::{done, host_fails, invalid, unknown},
    difference::Difference,
    request::{
        UNLIMITED_WALK, canonicalize, copy, create, find, list, metadata, open, read, remove,
        rename, search, walk, watch, write,
    },
    scratch_dir::ScratchDir,
    subject::{Subject, uri},
};

/// Names that need escaping in URIs, JSON or shells.
const UNUSUAL_NAMES: [&[u8]; 16] = [
    b"with some spaces",
    b" spaces around ",
    b"100%",
    b"%41",
    b"%2F%00",
    b"a#b",
    b"a?b=c",
    b"line\nfeed\r\ttab",
    b"back\\slash",
    b"\"quotes'",
    b"C:",
    b"~",
    b"-rf",
    b"{a,b}[c]*",
    "gr\u{fc}n \u{1f600}".as_bytes(),
    b"not \xff\xfe text \x80",
];

pub async fn unusual_names_round_trip(subject: &Subject) {
    let scratch = ScratchDir::new();
    let files = &subject.files;
    for name in UNUSUAL_NAMES {
        let directory = scratch.path(OsStr::from_bytes(name));
        let path = directory.join(OsStr::from_bytes(name));
        done(files.create_directory(create(&directory))).await;
        done(files.write_file(write(&path), Bytes::from_static(name))).await;
        assert_eq!(fs::read(&path).unwrap(), name);
        assert_eq!(done(files.read_file(read(&path))).await, name);
        assert_eq!(
            done(files.metadata(metadata(&path))).await.size,
            name.len() as u64
        );
        assert_eq!(
            done(files.canonicalize(canonicalize(&path))).await,
            uri(&path)
        );
        let walked = done(files.walk(walk(&directory, UNLIMITED_WALK))).await;
        let line = std::str::from_utf8(name).is_ok_and(|name| !name.contains('\n'));
        if !line && subject.differs(Difference::WalksKnowOnlyText) {
            assert_eq!(walked.entries, []);
        } else {
            let walked = walked.entries.first().map(|entry| &entry.path);
            assert_eq!(walked, Some(&uri(&path)), "{path:?}");
        }
        let listed = done(files.read_directory(list(&directory))).await;
        assert_eq!(listed.entries[0].file_name, String::from_utf8_lossy(name));
        if subject.differs(Difference::NoFind) {
            unknown(files.find(find(&directory, "*"))).await;
        } else {
            let found = done(files.find(find(&directory, "*"))).await;
            assert_eq!(found.paths, [uri(&path)]);
        }
        let moved = directory.join("moved");
        if subject.differs(Difference::NoRename) {
            unknown(files.rename(rename(&path, &moved))).await;
            done(files.copy(copy(&path, &moved))).await;
        } else {
            done(files.rename(rename(&path, &moved))).await;
        }
        done(files.copy(copy(&moved, &path))).await;
        let file = done(files.open(open(&path, OpenMode::Read))).await;
        assert_eq!(done(file.read_block(0, 100)).await.data, name);
        done(files.remove(remove(&directory))).await;
        assert!(!directory.exists());
    }
}

pub async fn names_up_to_the_host_limit_are_accepted(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("n".repeat(255));
    done(
        subject
            .files
            .write_file(write(&path), Bytes::from_static(b"x")),
    )
    .await;
    assert_eq!(done(subject.files.read_file(read(&path))).await, "x");
    let longer = scratch.path("n".repeat(256));
    host_fails(subject.files.write_file(write(&longer), Bytes::new())).await;
    host_fails(subject.files.read_file(read(&longer))).await;
}

pub async fn dot_segments_are_normalised_before_lookup(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "content");
    let text = format!("{}/no/such/../../file", uri(scratch.root()));
    let dotted: PathUri = text.parse().unwrap();
    assert_eq!(
        done(subject.files.read_file(read(&dotted))).await,
        "content"
    );
    assert_eq!(
        done(subject.files.canonicalize(canonicalize(&dotted))).await,
        uri(&path)
    );
}

/// Drops the value so that only success or failure remains.
fn told<T: Send + 'static>(operation: FileFuture<T>) -> FileFuture<()> {
    operation.map(|told| told.map(drop)).boxed()
}

pub async fn path_of_another_host_is_invalid(subject: &Subject) {
    let scratch = ScratchDir::new();
    let files = &subject.files;
    let here: PathBuf = scratch.file("file", "content");
    let foreign = ["file:///C:/x", "file://server/share/x"];
    for path in foreign.map(|text| text.parse::<PathUri>().unwrap()) {
        invalid(files.read_file(read(&path))).await;
        invalid(files.write_file(write(&path), Bytes::new())).await;
        invalid(files.create_directory(create(&path))).await;
        invalid(files.metadata(metadata(&path))).await;
        invalid(files.canonicalize(canonicalize(&path))).await;
        invalid(files.read_directory(list(&path))).await;
        invalid(files.walk(walk(&path, UNLIMITED_WALK))).await;
        invalid(files.remove(remove(&path))).await;
        invalid(files.copy(copy(&path, &scratch.path("new")))).await;
        invalid(files.copy(copy(&here, &path))).await;
        if subject.differs(Difference::NoRename) {
            unknown(files.rename(rename(&path, &scratch.path("new")))).await;
        } else {
            invalid(files.rename(rename(&path, &scratch.path("new")))).await;
            invalid(files.rename(rename(&here, &path))).await;
        }
        invalid(files.open(open(&path, OpenMode::Read))).await;
        invalid(files.open(open(&path, OpenMode::Replace))).await;
        let looks: [(_, FileFuture<()>); 3] = [
            (Difference::NoSearch, told(files.search(search(&path, "x")))),
            (Difference::NoFind, told(files.find(find(&path, "*")))),
            (
                Difference::NoWatch,
                told(files.watch(watch(&path, WatchDepth::Tree))),
            ),
        ];
        for (difference, look) in looks {
            if subject.differs(difference) {
                unknown(look).await;
            } else {
                invalid(look).await;
            }
        }
        let missing = MissingPathsRequest {
            missing: vec![path],
            present: None,
            sandbox: None,
        };
        assert!(done(files.watch_missing(missing)).await.is_none());
    }
    assert_eq!(fs::read_to_string(here).unwrap(), "content");
}
