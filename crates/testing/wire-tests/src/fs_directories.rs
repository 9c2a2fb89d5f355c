//! Creating and listing directories.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
};

use serde_json::{Value, json};

use crate::{
    fs_fixture::{FsFixture, in_memory, uri},
    over_every_transport, over_one_transport,
    server::Transport,
};

over_every_transport!(directories_are_created_and_listed);

over_one_transport!(
    create_directory_is_recursive_by_default_and_accepts_existing,
    non_recursive_create_directory_creates_exactly_one,
    create_directory_without_following_refuses_symlinks,
    entry_types_follow_symlinks,
    listing_a_non_directory_fails,
    non_utf8_names_are_listed,
    directory_listing_is_limited_to_fifty_thousand_entries,
);

/// Returns name, `isDirectory` and `isFile` of each entry, sorted.
fn listed(result: &Value) -> Vec<(String, bool, bool)> {
    assert_eq!(result.as_object().unwrap().len(), 1, "{result}");
    let entries = result["entries"].as_array().unwrap().iter();
    let mut entries: Vec<_> = entries
        .map(|entry| {
            assert_eq!(entry.as_object().unwrap().len(), 3, "{entry}");
            let flag = |name: &str| entry[name].as_bool().expect(name);
            let name = entry["fileName"].as_str().unwrap().to_owned();
            (name, flag("isDirectory"), flag("isFile"))
        })
        .collect();
    entries.sort();
    entries
}

fn entry(name: &str, is_directory: bool, is_file: bool) -> (String, bool, bool) {
    (name.to_owned(), is_directory, is_file)
}

async fn directories_are_created_and_listed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fixture.done("fs/createDirectory", "a/b/c", json!({})).await;
    assert!(fixture.path("a/b/c").is_dir());
    fixture.write("a/b/f", b"").await;
    let result = fixture.call("fs/readDirectory", "a/b", json!({})).await;
    assert_eq!(
        listed(&result),
        [entry("c", true, false), entry("f", false, true)]
    );
    let result = fixture.call("fs/readDirectory", "a/b/c", json!({})).await;
    assert_eq!(result, json!({"entries": []}));
}

async fn create_directory_is_recursive_by_default_and_accepts_existing(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let rows: &[(&str, i64)] = &[
        ("dir", 0),
        ("dir/", 0),
        ("", 0),
        ("file:///", 0),
        ("new", 0),
        ("new/a/b", 0),
        ("to-dir", 0),
        ("to-dir/new/below", 0),
        ("file", -32603),
        ("file/x", -32603),
        ("to-file", -32603),
        ("to-none", -32603),
        ("to-none/x", -32603),
        ("to-itself", -32603),
        ("fifo", -32603),
    ];
    for extra in [
        json!({}),
        json!({"recursive": null}),
        json!({"recursive": true}),
    ] {
        fixture.table("fs/createDirectory", &extra, rows).await;
    }
    assert!(!fixture.path("nothing").exists());
}

async fn non_recursive_create_directory_creates_exactly_one(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let rows: &[(&str, i64)] = &[
        ("new", 0),
        ("dir/new", 0),
        ("to-dir/new", 0),
        ("new/below", -32004),
        ("to-none/x", -32004),
        ("dir", -32603),
        ("to-dir", -32603),
        ("to-none", -32603),
        ("file", -32603),
        ("file/x", -32603),
        ("file:///", -32603),
    ];
    let extra = json!({"recursive": false});
    fixture.table("fs/createDirectory", &extra, rows).await;
}

async fn create_directory_without_following_refuses_symlinks(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let rows: &[(&str, i64)] = &[
        ("dir", 0),
        ("dir/new", 0),
        ("new/a/b", 0),
        ("file", -32603),
        ("to-dir", -32603),
        ("to-file", -32603),
        ("to-none", -32603),
        ("to-dir/new", -32603),
        ("to-dir/new/below", -32603),
    ];
    let extra = json!({"followSymlinks": false});
    fixture.table("fs/createDirectory", &extra, rows).await;
    let rows: &[(&str, i64)] = &[
        ("new", 0),
        ("dir", -32603),
        ("to-dir", -32603),
        ("to-none", -32603),
        ("to-dir/new", -32603),
        ("new/below", -32004),
    ];
    let extra = json!({"followSymlinks": false, "recursive": false});
    fixture.table("fs/createDirectory", &extra, rows).await;
    assert_eq!(fixture.names("dir"), ["inner", "sub"]);
}

async fn entry_types_follow_symlinks(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let expected = [
        entry("dir", true, false),
        entry("fifo", false, false),
        entry("file", false, true),
        entry("socket", false, false),
        entry("to-dir", true, false),
        entry("to-file", false, true),
    ];
    let result = fixture.call("fs/readDirectory", "", json!({})).await;
    assert_eq!(listed(&result), expected, "dangling links are omitted");
    symlink(".", fixture.path("again")).unwrap();
    let result = fixture.call("fs/readDirectory", "again/", json!({})).await;
    assert_eq!(listed(&result)[0], entry("again", true, false));
    assert_eq!(listed(&result)[1..], expected);
}

async fn listing_a_non_directory_fails(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let rows: &[(&str, i64)] = &[
        ("none", -32004),
        ("to-none", -32004),
        ("file", -32603),
        ("file/", -32603),
        ("file/x", -32603),
        ("to-file", -32603),
        ("to-itself", -32603),
        ("fifo", -32603),
        ("socket", -32603),
    ];
    fixture.table("fs/readDirectory", &json!({}), rows).await;
}

async fn non_utf8_names_are_listed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let sub = fixture.path("dir/sub");
    fs::write(sub.join(OsStr::from_bytes(b"n\xff")), "x").unwrap();
    fs::write(sub.join("new\nline \u{e9}\\\"%"), "x").unwrap();
    let result = fixture.call("fs/readDirectory", "dir/sub", json!({})).await;
    assert_eq!(
        listed(&result),
        [
            entry("new\nline \u{e9}\\\"%", false, true),
            entry("n\u{fffd}", false, true),
        ]
    );
}

async fn directory_listing_is_limited_to_fifty_thousand_entries(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let many = in_memory();
    for number in 0..50_000 {
        fs::write(many.path().join(number.to_string()), "").unwrap();
    }
    // Omitted entries are not counted.
    symlink("nowhere", many.path().join("dangling")).unwrap();
    let root = uri(many.path());
    let result = fixture.call("fs/readDirectory", &root, json!({})).await;
    assert_eq!(result["entries"].as_array().unwrap().len(), 50_000);
    symlink(".", many.path().join("one more")).unwrap();
    let message = fixture
        .refused(-32603, "fs/readDirectory", &root, json!({}))
        .await;
    assert!(message.contains("50000"), "{message}");
}
