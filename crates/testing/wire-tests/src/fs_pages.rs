//! `fs/readDirectory` by pages and with details.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
};

use serde_json::{Value, json};

use crate::{
    client::encode,
    fs_fixture::{FsFixture, in_memory, uri},
    over_every_transport, over_one_transport,
    server::Transport,
};

over_every_transport!(details_have_modes_and_link_targets);

over_one_transport!(
    pages_have_every_entry_once_and_sorted,
    entries_that_stay_are_listed_while_others_change,
    directory_above_the_limit_is_listed_by_pages,
    large_page_ends_early,
    invalid_pages_are_refused,
    plain_listing_has_no_new_members,
);

fn names(page: &Value) -> Vec<&str> {
    let entries = page["entries"].as_array().unwrap();
    let name = |entry: &'_ Value| entry["fileName"].as_str().unwrap().len();
    assert!(entries.iter().all(|entry| name(entry) > 0));
    entries
        .iter()
        .map(|entry| entry["fileName"].as_str().unwrap())
        .collect()
}

async fn details_have_modes_and_link_targets(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let odd = OsStr::from_bytes(b"zz \xff");
    symlink(odd, fixture.path("").join(odd)).unwrap();
    for (name, mode) in [("file", 0o640), ("dir", 0o2755)] {
        let params = json!({"mode": mode});
        fixture.done("fs/setMetadata", name, params).await;
    }
    let details = json!({"details": true});
    let page = fixture.call("fs/readDirectory", "", details).await;
    assert!(page.get("nextCursor").is_none(), "{page}");
    let odd_uri = uri(&fixture.path("").join(odd));
    let entry = |name: &str, is_directory: bool, is_file: bool, more: Value| {
        let mut entry = json!({
            "fileName": name, "isDirectory": is_directory, "isFile": is_file,
        });
        crate::client::merge(&mut entry, more);
        entry
    };
    let special =
        |name: &str, listed: &Value| entry(name, false, false, json!({"mode": listed["mode"]}));
    let entries = page["entries"].as_array().unwrap();
    let expected = [
        entry("dir", true, false, json!({"mode": 0o2755})),
        special("fifo", &entries[1]),
        entry("file", false, true, json!({"mode": 0o640})),
        special("socket", &entries[3]),
        entry(
            "to-dir",
            true,
            false,
            json!({"mode": 0o2755, "linkTarget": "dir"}),
        ),
        entry(
            "to-file",
            false,
            true,
            json!({"mode": 0o640, "linkTarget": "file"}),
        ),
        entry(
            "to-itself",
            false,
            false,
            json!({"linkTarget": "to-itself"}),
        ),
        entry("to-none", false, false, json!({"linkTarget": "nothing"})),
        entry(
            "zz \u{fffd}",
            false,
            false,
            json!({
                "path": odd_uri, "linkTarget": "zz \u{fffd}",
                "linkTargetBase64": encode(odd.as_bytes()),
            }),
        ),
    ];
    assert_eq!(entries, &expected);
}

async fn pages_have_every_entry_once_and_sorted(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mut expected: Vec<String> = (0..25).map(|number| format!("n{number}")).collect();
    expected.sort();
    fs::create_dir(fixture.path("many")).unwrap();
    for name in &expected {
        fs::write(fixture.path("many").join(name), "").unwrap();
    }
    for (limit, pages) in [(1, 25), (7, 4), (24, 2), (25, 1), (50_000, 1)] {
        let (mut found, mut count) = (Vec::new(), 0);
        let mut params = json!({"limit": limit});
        loop {
            let page = fixture
                .call("fs/readDirectory", "many", params.clone())
                .await;
            let names = names(&page);
            assert!(names.len() <= limit, "{page}");
            found.extend(names.into_iter().map(str::to_owned));
            count += 1;
            match page.get("nextCursor") {
                Some(cursor) => params["cursor"] = cursor.clone(),
                None => break,
            }
        }
        assert_eq!((&found, count), (&expected, pages), "{limit}");
    }
}

async fn entries_that_stay_are_listed_while_others_change(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fs::create_dir(fixture.path("d")).unwrap();
    for name in ["b", "d", "f", "h"] {
        fs::write(fixture.path("d").join(name), "").unwrap();
    }
    let page = fixture
        .call("fs/readDirectory", "d", json!({"limit": 2}))
        .await;
    assert_eq!(names(&page), ["b", "d"]);
    fs::remove_file(fixture.path("d/d")).unwrap();
    fs::write(fixture.path("d/a"), "").unwrap();
    fs::write(fixture.path("d/e"), "").unwrap();
    let next = json!({"cursor": page["nextCursor"]});
    let page = fixture.call("fs/readDirectory", "d", next).await;
    assert_eq!(names(&page), ["e", "f", "h"]);
    assert!(page.get("nextCursor").is_none(), "{page}");
}

async fn directory_above_the_limit_is_listed_by_pages(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let many = in_memory();
    for number in 0..50_001 {
        fs::write(many.path().join(number.to_string()), "").unwrap();
    }
    let path = uri(many.path());
    fixture
        .refused(-32603, "fs/readDirectory", &path, json!({}))
        .await;
    let page = fixture
        .call("fs/readDirectory", &path, json!({"limit": 50_000}))
        .await;
    assert_eq!(names(&page).len(), 50_000);
    let next = json!({"cursor": page["nextCursor"]});
    let page = fixture.call("fs/readDirectory", &path, next).await;
    assert_eq!(names(&page), ["9999"]);
}

async fn large_page_ends_early(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let links = in_memory();
    let target = "x".repeat(4000);
    for number in 0..1000 {
        symlink(&target, links.path().join(format!("{number:04}"))).unwrap();
    }
    let path = uri(links.path());
    let mut params = json!({"details": true});
    let mut sizes = Vec::new();
    loop {
        let page = fixture
            .call("fs/readDirectory", &path, params.clone())
            .await;
        sizes.push(names(&page).len());
        assert!(page.to_string().len() < 5 << 20);
        match page.get("nextCursor") {
            Some(cursor) => params["cursor"] = cursor.clone(),
            None => break,
        }
    }
    assert_eq!((sizes.len(), sizes.iter().sum()), (2, 1000), "{sizes:?}");
}

async fn invalid_pages_are_refused(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for params in [
        json!({"limit": 0}),
        json!({"limit": 50_001}),
        json!({"limit": -1}),
        json!({"limit": "1"}),
        json!({"cursor": ""}),
        json!({"cursor": "%"}),
        json!({"cursor": encode(b"a/b")}),
        json!({"cursor": encode(b"\0")}),
        json!({"cursor": encode(&[b'a'; 1025])}),
        json!({"cursor": 7}),
        json!({"details": 1}),
    ] {
        fixture
            .refused(-32602, "fs/readDirectory", "dir", params)
            .await;
    }
    for (code, name) in [(-32004, "none"), (-32603, "file"), (-32004, "to-none")] {
        let params = json!({"details": true, "limit": 1});
        fixture
            .refused(code, "fs/readDirectory", name, params)
            .await;
    }
    // A cursor after the last name is the end.
    let end = json!({"cursor": encode(b"zzz")});
    let page = fixture.call("fs/readDirectory", "dir", end).await;
    assert_eq!(page, json!({"entries": []}));
}

async fn plain_listing_has_no_new_members(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for params in [json!({}), json!({"limit": 100})] {
        let page = fixture.call("fs/readDirectory", "", params).await;
        assert_eq!(page.as_object().unwrap().len(), 1, "{page}");
        for entry in page["entries"].as_array().unwrap() {
            assert_eq!(entry.as_object().unwrap().len(), 3, "{entry}");
        }
        // Dangling links are omitted.
        assert_eq!(names(&page).len(), 6, "{page}");
    }
}
