//! Reading, writing and inspecting whole files.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use crate::{
    client::encode,
    fs_fixture::FsFixture,
    over_every_transport, over_one_transport,
    server::{Server, Transport},
};

over_every_transport!(
    written_content_is_read_back,
    file_above_512_mib_is_refused,
    metadata_reports_the_file_type,
    missing_file_is_not_found,
);

over_one_transport!(
    read_outcome_of_each_file_type,
    write_outcome_of_each_file_type,
    follow_symlinks_null_and_true_follow,
    write_keeps_permissions_and_hard_links,
    write_through_a_symlink_writes_its_target,
    new_files_respect_the_umask,
    invalid_base64_is_an_invalid_request_and_writes_nothing,
    file_with_reported_size_zero_is_read,
    metadata_of_symlinks_with_and_without_following,
    times_are_milliseconds,
    canonical_paths_have_no_links,
    permission_denied_is_an_invalid_request,
    names_of_maximum_length_are_accepted,
);

async fn written_content_is_read_back(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let large: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
    let contents = [
        Vec::new(),
        vec![0],
        b"text\n".to_vec(),
        (0..=255).collect(),
        large,
        b"short again".to_vec(),
    ];
    for content in contents {
        fixture.write("new", &content).await;
        assert!(fs::read(fixture.path("new")).unwrap() == content);
        assert!(fixture.read("new").await == content);
    }
}

async fn missing_file_is_not_found(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for method in [
        "fs/readFile",
        "fs/getMetadata",
        "fs/canonicalize",
        "fs/readDirectory",
        "fs/search",
        "fs/find",
    ] {
        for name in ["none", "none/", "none/below", "to-none"] {
            let extra = json!({"pattern": "x", "glob": "*"});
            let message = fixture.refused(-32004, method, name, extra).await;
            assert!(message.contains("os error 2"), "{method} {name}: {message}");
        }
    }
}

async fn file_above_512_mib_is_refused(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let file = fs::File::create(fixture.path("large")).unwrap();
    file.set_len((512 << 20) + 1).unwrap();
    let message = fixture
        .refused(-32600, "fs/readFile", "large", json!({}))
        .await;
    assert!(message.contains("536870912"), "{message}");
    let metadata = fixture.call("fs/getMetadata", "large", json!({})).await;
    assert_eq!(metadata["size"], 536_870_913);
    // It can be read in blocks.
    let open = json!({"handleId": "h"});
    fixture.call("fs/open", "large", open).await;
    let block = json!({"handleId": "h", "offset": 536_870_912_u64, "len": 5});
    assert_eq!(
        fixture.client.call("fs/readBlock", block).await,
        json!({"chunk": "AA==", "eof": true})
    );
}

async fn read_outcome_of_each_file_type(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let follow: &[(&str, i64)] = &[
        ("dir", -32600),
        ("dir/", -32600),
        ("", -32600),
        ("none", -32004),
        ("to-none", -32004),
        ("to-dir", -32600),
        ("to-itself", -32603),
        ("fifo", -32600),
        ("socket", -32603),
        ("file/x", -32603),
        ("file:///", -32600),
        ("file:///dev/null", -32600),
        ("file:///dev/zero", -32600),
    ];
    fixture.table("fs/readFile", &json!({}), follow).await;
    for name in ["file", "file/", "to-file", "to-file/", "to-dir/../file"] {
        assert_eq!(fixture.read(name).await, b"hello", "{name}");
    }
    let refuse: &[(&str, i64)] = &[
        ("to-file", -32603),
        ("to-none", -32603),
        ("to-itself", -32603),
        ("to-dir/inner", -32603),
        ("none", -32004),
        ("dir", -32600),
        ("fifo", -32600),
        ("socket", -32603),
        ("file/x", -32603),
    ];
    let extra = json!({"followSymlinks": false});
    fixture.table("fs/readFile", &extra, refuse).await;
    let result = fixture.call("fs/readFile", "dir/inner", extra).await;
    assert_eq!(result, json!({"dataBase64": "eA=="}));
}

async fn write_outcome_of_each_file_type(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let data = json!({"dataBase64": "ZGF0YQ=="});
    let follow: &[(&str, i64)] = &[
        ("new", 0),
        ("new/", 0),
        ("file", 0),
        ("to-file", 0),
        ("to-none", 0),
        ("to-dir/new", 0),
        ("dir", -32603),
        ("to-dir", -32603),
        ("none/x", -32004),
        ("file/x", -32603),
        ("to-itself", -32603),
    ];
    fixture.table("fs/writeFile", &data, follow).await;
    let refuse: &[(&str, i64)] = &[
        ("new", 0),
        ("file", 0),
        ("to-file", -32603),
        ("to-none", -32603),
        ("to-itself", -32603),
        ("to-dir/new", -32603),
        ("dir", -32603),
        ("none/x", -32004),
        ("file/x", -32603),
    ];
    let data = json!({"dataBase64": "ZGF0YQ==", "followSymlinks": false});
    fixture.table("fs/writeFile", &data, refuse).await;
    assert_eq!(fixture.content("file"), "hello", "symlink was not followed");
    assert!(!fixture.path("nothing").exists());
}

async fn follow_symlinks_null_and_true_follow(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for follow in [json!(null), json!(true)] {
        let follow = json!({"followSymlinks": follow, "sandbox": null});
        let read = fixture.call("fs/readFile", "to-file", follow.clone()).await;
        assert_eq!(read, json!({"dataBase64": "aGVsbG8="}));
        let metadata = fixture
            .call("fs/getMetadata", "to-dir/inner", follow.clone())
            .await;
        assert_eq!(metadata["size"], 1);
        fixture
            .done("fs/createDirectory", "to-dir/new", follow.clone())
            .await;
        fixture
            .done("fs/remove", "to-dir/new", follow.clone())
            .await;
        let mut write = follow;
        write["dataBase64"] = json!("aGVsbG8=");
        fixture.done("fs/writeFile", "to-file", write).await;
    }
}

async fn write_keeps_permissions_and_hard_links(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let file = fixture.path("file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o751)).unwrap();
    fs::hard_link(&file, fixture.path("other-name")).unwrap();
    let before = fs::metadata(&file).unwrap();
    fixture.write("file", b"new").await;
    let after = fs::metadata(&file).unwrap();
    assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
    assert_eq!(fixture.content("other-name"), "new");
}

async fn write_through_a_symlink_writes_its_target(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fixture.write("to-file", b"one").await;
    fixture.write("to-none", b"two").await;
    assert_eq!(fixture.content("file"), "one");
    assert_eq!(fixture.content("nothing"), "two");
    assert!(fixture.path("to-file").is_symlink() && fixture.path("to-none").is_symlink());
}

async fn new_files_respect_the_umask(transport: Transport) {
    let server = Server::start_by("umask 027; exec \"$0\" \"$@\"", transport, &[]).await;
    let mut fixture = FsFixture::on(server).await;
    fixture.write("new", b"").await;
    fixture
        .done("fs/createDirectory", "made/below", json!({}))
        .await;
    let open = json!({"handleId": "h", "mode": "replace"});
    fixture.call("fs/open", "opened", open).await;
    for (name, mode) in [
        ("new", 0o640),
        ("opened", 0o640),
        ("made", 0o750),
        ("made/below", 0o750),
    ] {
        let found = fs::metadata(fixture.path(name)).unwrap().mode() & 0o7777;
        assert_eq!(found, mode, "{name} has {found:o}");
    }
}

async fn invalid_base64_is_an_invalid_request_and_writes_nothing(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for data in [
        "!!!!", "YQ", "YQ=", "YR==", "_-8=", "YQ==\n", " YQ==", "Y", "====",
    ] {
        for name in ["new", "file", "none/x"] {
            let data = json!({"dataBase64": data});
            let message = fixture.refused(-32600, "fs/writeFile", name, data).await;
            assert!(message.contains("dataBase64"), "{message}");
        }
    }
    assert!(!fixture.path("new").exists());
    assert_eq!(fixture.content("file"), "hello");
}

async fn file_with_reported_size_zero_is_read(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let status = fixture.read("file:///proc/self/status").await;
    let status = String::from_utf8(status).unwrap();
    assert!(
        status.contains(&format!("Pid:\t{}\n", fixture.server.pid())),
        "{status}"
    );
}

fn kinds(metadata: &Value) -> (bool, bool, bool) {
    let flag = |name: &str| metadata[name].as_bool().expect(name);
    (flag("isDirectory"), flag("isFile"), flag("isSymlink"))
}

async fn metadata_reports_the_file_type(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (name, kind, size) in [
        ("file", (false, true, false), Some(5)),
        ("file/", (false, true, false), Some(5)),
        ("dir/inner", (false, true, false), Some(1)),
        ("to-dir/inner", (false, true, false), Some(1)),
        ("to-file", (false, true, true), Some(5)),
        ("dir", (true, false, false), None),
        ("dir/", (true, false, false), None),
        ("to-dir", (true, false, true), None),
        ("fifo", (false, false, false), Some(0)),
        ("socket", (false, false, false), Some(0)),
        ("file:///", (true, false, false), None),
        ("file:///dev/null", (false, false, false), Some(0)),
    ] {
        let metadata = fixture.call("fs/getMetadata", name, json!({})).await;
        assert_eq!(kinds(&metadata), kind, "{name}: {metadata}");
        assert_eq!(metadata.as_object().unwrap().len(), 7, "{metadata}");
        assert!(metadata["mode"].is_u64(), "{metadata}");
        let found = metadata["size"].as_u64().unwrap();
        assert!(size.is_none_or(|size| size == found), "{name}: {metadata}");
    }
}

async fn metadata_of_symlinks_with_and_without_following(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let refused: &[(&str, i64)] = &[
        ("to-file", -32600),
        ("to-dir", -32600),
        ("to-none", -32600),
        ("to-itself", -32600),
        ("to-dir/inner", -32603),
        ("none", -32004),
        ("none/x", -32004),
        ("file/x", -32603),
    ];
    let extra = json!({"followSymlinks": false});
    fixture.table("fs/getMetadata", &extra, refused).await;
    for name in ["file", "dir", "fifo", "socket", "dir/inner", "file:///"] {
        let with = fixture.call("fs/getMetadata", name, json!({})).await;
        let without = fixture.call("fs/getMetadata", name, extra.clone()).await;
        assert_eq!(kinds(&with), kinds(&without), "{name}");
        assert_eq!(with["modifiedAtMs"], without["modifiedAtMs"], "{name}");
    }
    let refused: &[(&str, i64)] = &[("to-itself", -32603), ("file/x", -32603)];
    fixture.table("fs/getMetadata", &json!({}), refused).await;
}

async fn times_are_milliseconds(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let file = fs::File::options()
        .write(true)
        .open(fixture.path("file"))
        .unwrap();
    let late = Duration::from_nanos(1_700_000_000_123_456_789);
    let times = [
        (SystemTime::UNIX_EPOCH + late, 1_700_000_000_123_i64),
        (SystemTime::UNIX_EPOCH, 0),
        (SystemTime::UNIX_EPOCH - Duration::from_secs(5), -5000),
    ];
    for (time, expected) in times {
        file.set_modified(time).unwrap();
        let metadata = fixture.call("fs/getMetadata", "file", json!({})).await;
        assert_eq!(metadata["modifiedAtMs"], expected, "{metadata}");
        assert!(metadata["createdAtMs"].is_i64(), "{metadata}");
    }
}

async fn canonical_paths_have_no_links(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    symlink("../to-dir/sub", fixture.path("dir/back")).unwrap();
    for (name, expected) in [
        ("file", "file"),
        ("file/", "file"),
        ("to-file", "file"),
        ("to-dir/inner", "dir/inner"),
        ("to-dir/back/", "dir/sub"),
        ("dir", "dir"),
        ("fifo", "fifo"),
        ("dir/./sub//", "dir/sub"),
        ("", ""),
    ] {
        let result = fixture.call("fs/canonicalize", name, json!({})).await;
        assert_eq!(result, json!({"path": fixture.uri(expected)}), "{name}");
    }
    let root = fixture.call("fs/canonicalize", "file:///", json!({})).await;
    assert_eq!(root, json!({"path": "file:///"}));
    let refused: &[(&str, i64)] = &[
        ("none", -32004),
        ("to-none", -32004),
        ("to-itself", -32603),
        ("file/x", -32603),
    ];
    fixture.table("fs/canonicalize", &json!({}), refused).await;
}

async fn permission_denied_is_an_invalid_request(transport: Transport) {
    // Root bypasses permissions unless it drops that capability.
    let script = if rustix::process::geteuid().is_root() {
        "exec setpriv --bounding-set=-dac_override,-dac_read_search -- \"$0\" \"$@\""
    } else {
        "exec \"$0\" \"$@\""
    };
    let mut fixture = FsFixture::on(Server::start_by(script, transport, &[]).await).await;
    let mode = fs::Permissions::from_mode;
    fs::set_permissions(fixture.path("file"), mode(0)).unwrap();
    fs::set_permissions(fixture.path("dir"), mode(0o600)).unwrap();
    let data = json!({"dataBase64": encode(b"x"), "handleId": "h"});
    for (method, name) in [
        ("fs/readFile", "file"),
        ("fs/readFile", "dir/inner"),
        ("fs/writeFile", "file"),
        ("fs/writeFile", "dir/inner"),
        ("fs/getMetadata", "dir/inner"),
        ("fs/canonicalize", "dir/inner"),
        ("fs/createDirectory", "dir/new"),
        ("fs/remove", "dir/inner"),
        ("fs/open", "file"),
        ("fs/open", "dir/inner"),
    ] {
        fixture.refused(-32600, method, name, data.clone()).await;
    }
    let replace = json!({"handleId": "h", "mode": "replace"});
    fixture.refused(-32600, "fs/open", "file", replace).await;
    fs::set_permissions(fixture.path("dir"), mode(0o100)).unwrap();
    fixture
        .refused(-32600, "fs/readDirectory", "dir", json!({}))
        .await;
    assert_eq!(fixture.read("dir/inner").await, b"x");
    fs::set_permissions(fixture.path("dir"), mode(0o700)).unwrap();
}

async fn names_of_maximum_length_are_accepted(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let longest = "n".repeat(255);
    fixture.write(&longest, b"x").await;
    let atomic = json!({"dataBase64": "eQ==", "atomic": true});
    fixture.done("fs/writeFile", &longest, atomic).await;
    assert_eq!(fixture.read(&longest).await, b"y");
    let longer = "n".repeat(256);
    let data = json!({"dataBase64": "eQ==", "handleId": "h"});
    for method in [
        "fs/readFile",
        "fs/writeFile",
        "fs/getMetadata",
        "fs/canonicalize",
        "fs/createDirectory",
        "fs/readDirectory",
        "fs/remove",
        "fs/open",
    ] {
        fixture.refused(-32603, method, &longer, data.clone()).await;
    }
    let deep = "d/".repeat(3000);
    fixture
        .refused(-32603, "fs/readFile", &deep, json!({}))
        .await;
}
