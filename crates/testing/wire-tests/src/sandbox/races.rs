//! Links that change while `fs/*` looks at them: what is outside is never read, made or removed.

use std::{
    fs,
    os::{fd::AsRawFd, unix::fs::symlink},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, open, renameat_with};
use serde_json::{Value, json};

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy},
};
use crate::client::{decode, merge};

as_every_user!(
    what_is_hidden_is_never_read,
    what_is_denied_is_never_read,
    nothing_outside_is_written_or_made,
    nothing_outside_is_removed,
    nothing_is_copied_over_the_border,
    a_command_that_is_racing_gains_nothing,
);

/// How often each request is tried.
const ROUNDS: usize = 200;

/// Exchanges a directory in the workspace and a link to the place outside, over and over, until it is
/// dropped.
struct Swapper {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    /// `work/swap` is the directory or the link; `work/other` is the other one.
    fn new(ground: &Ground) -> Self {
        let (swap, other): (PathBuf, PathBuf) =
            (ground.path("work/swap"), ground.path("work/other"));
        fs::create_dir(&swap).unwrap();
        fs::write(swap.join("file"), "inside").unwrap();
        fs::create_dir_all(swap.join("dir")).unwrap();
        ground.give(&swap);
        symlink("../out", &other).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&done);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                renameat_with(CWD, &swap, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        Self {
            done,
            thread: Some(thread),
        }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("dropped once").join();
        assert!(ended.is_ok() || thread::panicking(), "the swapper failed");
    }
}

/// Takes away what a round has made in the workspace, so that the next one has no more to do. Never
/// follows a link: what is outside stays, and is found in the end.
fn sweep(ground: &Ground) {
    for directory in ["work", "work/swap", "work/other"] {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(directory) = open(ground.path(directory), flags, Mode::empty()) else {
            continue;
        };
        // The directory itself, whatever has its name now.
        let held = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        for entry in fs::read_dir(&held).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name.contains('-') && !name.starts_with("to-") {
                let path = held.join(name);
                drop(fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)));
            }
        }
    }
}

/// Asks; returns the result, or the error.
async fn ask(
    ground: &mut Ground,
    method: &str,
    policy: &Policy,
    more: Value,
) -> Result<Value, Value> {
    let mut params = json!({"sandbox": policy.sandbox});
    merge(&mut params, more);
    let id = ground.client.request(method, params).await;
    let mut answer = ground.client.answer(id).await;
    match answer.get("error") {
        Some(error) => Err(error.clone()),
        None => Ok(answer["result"].take()),
    }
}

async fn never_read(ground: &mut Ground, policy: &Policy) {
    let (file, directory) = (ground.uri("work/swap/file"), ground.uri("work/swap"));
    let swapper = Swapper::new(ground);
    let (mut read, mut listed) = (0, 0);
    for round in 0..ROUNDS {
        let path = json!({"path": file});
        if let Ok(result) = ask(ground, "fs/readFile", policy, path).await {
            let text = decode(&result["dataBase64"]);
            // A mask is an empty file.
            if text != b"inside" {
                let text = String::from_utf8_lossy(&text).into_owned();
                ground.fault(format!("{}: read {text:?}", policy.name));
            }
            read += 1;
        }
        let path = json!({"path": directory});
        if let Ok(result) = ask(ground, "fs/readDirectory", policy, path).await {
            if result.to_string().contains("empty") {
                ground.fault(format!("{}: listed {result}", policy.name));
            }
            listed += 1;
        }
        let handle = format!("h{round}");
        let open = json!({"path": file, "handleId": handle});
        if ask(ground, "fs/open", policy, open).await.is_ok() {
            let block = json!({"handleId": handle, "offset": 0, "len": 64});
            let result = ground.client.call("fs/readBlock", block).await;
            if decode(&result["chunk"]) != b"inside" {
                ground.fault(format!("{}: block {result}", policy.name));
            }
            let close = json!({"handleId": handle});
            ground.client.call("fs/close", close).await;
        }
    }
    drop(swapper);
    if read == 0 || listed == 0 {
        ground.fault(format!("{}: {read} read, {listed} listed", policy.name));
    }
}

async fn what_is_hidden_is_never_read(ground: &mut Ground) {
    let policy = Policy::new(ground, Kind::Narrow, Network::Restricted);
    never_read(ground, &policy).await;
    let path = json!({"path": ground.uri("work/file")});
    assert!(ask(ground, "fs/readFile", &policy, path).await.is_ok());
}

async fn what_is_denied_is_never_read(ground: &mut Ground) {
    let policy = Policy::new(ground, Kind::Denied, Network::Restricted);
    never_read(ground, &policy).await;
}

async fn nothing_outside_is_written_or_made(ground: &mut Ground) {
    for kind in [Kind::Workspace, Kind::Narrow, Kind::Denied, Kind::Carved] {
        ground.reset();
        let before = ground.snapshot("out");
        let policy = Policy::new(ground, kind, Network::Restricted);
        let file = ground.uri("work/swap/file");
        let swapper = Swapper::new(ground);
        let (mut written, mut made) = (0, 0);
        for round in 0..ROUNDS {
            let write = json!({"path": file, "dataBase64": "eA=="});
            written += usize::from(ask(ground, "fs/writeFile", &policy, write).await.is_ok());
            let new = ground.uri(&format!("work/swap/new-{round}"));
            let write = json!({"path": new, "dataBase64": "eA=="});
            written += usize::from(ask(ground, "fs/writeFile", &policy, write).await.is_ok());
            let new = ground.uri(&format!("work/swap/made-{round}/below"));
            let create = json!({"path": new, "recursive": true});
            made += usize::from(
                ask(ground, "fs/createDirectory", &policy, create)
                    .await
                    .is_ok(),
            );
            let handle = format!("w{round}");
            let open = json!({"path": file, "handleId": handle, "mode": "replace"});
            if ask(ground, "fs/open", &policy, open).await.is_ok() {
                let block = json!({"handleId": handle, "offset": 0, "chunk": "eA=="});
                ground.client.call("fs/writeBlock", block).await;
                let close = json!({"handleId": handle});
                ground.client.call("fs/close", close).await;
            }
            let rename = json!({
                "sourcePath": ground.uri("work/dir/inner"),
                "destinationPath": ground.uri(&format!("work/swap/renamed-{round}")),
            });
            if ask(ground, "fs/rename", &policy, rename).await.is_ok() {
                fs::write(ground.path("work/dir/inner"), "x").unwrap();
                ground.give(&ground.path("work/dir/inner"));
            }
            sweep(ground);
        }
        drop(swapper);
        ground.unchanged("out", &before, &format!("{kind:?}"));
        if written == 0 || made == 0 {
            ground.fault(format!("{kind:?}: {written} written, {made} made"));
        }
    }
}

async fn nothing_outside_is_removed(ground: &mut Ground) {
    for kind in [Kind::Workspace, Kind::Narrow, Kind::Denied, Kind::Carved] {
        ground.reset();
        let before = ground.snapshot("out");
        let policy = Policy::new(ground, kind, Network::Restricted);
        let swapper = Swapper::new(ground);
        let mut removed = 0;
        for _ in 0..ROUNDS {
            for (path, recursive) in [
                ("work/swap/file", false),
                ("work/swap/dir", true),
                ("work/swap/empty", true),
            ] {
                let remove = json!({
                    "path": ground.uri(path), "recursive": recursive, "force": false,
                });
                let result = ask(ground, "fs/remove", &policy, remove).await;
                removed += usize::from(result.is_ok());
            }
            let make = json!({"path": ground.uri("work/swap/dir/sub"), "recursive": true});
            drop(ask(ground, "fs/createDirectory", &policy, make).await);
            let write = json!({"path": ground.uri("work/swap/file"), "dataBase64": "eA=="});
            drop(ask(ground, "fs/writeFile", &policy, write).await);
        }
        drop(swapper);
        ground.unchanged("out", &before, &format!("{kind:?}"));
        if removed == 0 {
            ground.fault(format!("{kind:?}: nothing was removed"));
        }
    }
}

async fn nothing_is_copied_over_the_border(ground: &mut Ground) {
    for kind in [Kind::Narrow, Kind::Denied] {
        ground.reset();
        let before = ground.snapshot("out");
        let policy = Policy::new(ground, kind, Network::Restricted);
        let swapper = Swapper::new(ground);
        let mut copied = 0;
        for round in 0..ROUNDS {
            // Out of the swapped directory, and into it.
            let copy = format!("work/copy-{round}");
            for (from, to, recursive) in [
                ("work/swap/file", copy.as_str(), false),
                ("work/swap", &format!("work/tree-{round}"), true),
                ("work/dir", &format!("work/swap/copy-{round}"), true),
                ("work/file", &format!("work/swap/copy-file-{round}"), false),
            ] {
                let params = json!({
                    "sourcePath": ground.uri(from), "destinationPath": ground.uri(to),
                    "recursive": recursive,
                });
                let result = ask(ground, "fs/copy", &policy, params).await;
                copied += usize::from(result.is_ok());
            }
            if let Ok(text) = fs::read_to_string(ground.path(&copy))
                && text != "inside"
                && !text.is_empty()
            {
                ground.fault(format!("{kind:?}: copied {text:?}"));
            }
            let tree = ground.path(&format!("work/tree-{round}"));
            // A link is copied as a link.
            let is_tree = fs::symlink_metadata(&tree).is_ok_and(|found| found.is_dir());
            if is_tree && tree.join("empty").exists() {
                ground.fault(format!("{kind:?}: copied the tree outside"));
            }
            sweep(ground);
        }
        drop(swapper);
        ground.unchanged("out", &before, &format!("{kind:?}"));
        if copied == 0 {
            ground.fault(format!("{kind:?}: nothing was copied"));
        }
    }
}

/// A command that races with the stage which makes its view: the policy's own paths are swapped while
/// commands start.
async fn a_command_that_is_racing_gains_nothing(ground: &mut Ground) {
    let before = ground.snapshot("out");
    let entries = json!([
        super::policies::special("root", "read"),
        super::policies::path(&ground.uri("work/swap"), "write"),
    ]);
    let swapper = Swapper::new(ground);
    let policy = Policy::of(ground, "racing", entries, Network::Restricted);
    for _ in 0..ROUNDS / 3 {
        // The root may be either when the policy is read; what is outside is writable only if the
        // policy itself names it, by a link that the command could not have made.
        let params = ground.params(Some(&policy), &["create", "@work/escaped"]);
        let id = ground.client.request("process/start", params.clone()).await;
        let answer = ground.client.answer(id).await;
        if answer.get("error").is_some() {
            continue;
        }
        let events = ground
            .client
            .finish(params["processId"].as_str().unwrap())
            .await;
        if events.stdout() != "refused EROFS\n" {
            ground.fault(format!("{} {}", events.stdout(), events.stream("stderr")));
        }
    }
    drop(swapper);
    ground.unchanged("out", &before, "racing");
}
