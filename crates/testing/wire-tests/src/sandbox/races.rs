//! Symlinks that change during `fs/*` requests: files outside are never read, created or removed.

use std::{
    fs,
    os::{fd::AsRawFd, unix::fs::symlink},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, open, renameat_with};
use serde_json::{Value, json};

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy},
};
use crate::client::{decode, merge};

as_every_user!(
    hidden_files_are_never_read_in_a_race,
    denied_files_are_never_read_in_a_race,
    nothing_outside_is_written_or_created_in_a_race,
    nothing_outside_is_removed_in_a_race,
    nothing_is_copied_across_the_boundary_in_a_race,
    command_racing_with_sandbox_setup_gains_nothing,
);

/// Attempts per request.
const ROUNDS: usize = 200;
/// Swaps in a row, an odd number, and the pause after them, in which the server makes progress.
/// Several such bursts fall into each request.
const SWAPS: usize = 15;
const PAUSE: Duration = Duration::from_micros(50);

/// Swaps a directory in the workspace with a symlink to the directory outside, repeatedly, until
/// dropped.
struct LinkSwapper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LinkSwapper {
    /// `work/swap` is the directory or the link; `work/other` is the other one.
    fn new(fixture: &SandboxFixture) -> Self {
        let (swap, other): (PathBuf, PathBuf) =
            (fixture.path("work/swap"), fixture.path("work/other"));
        fs::create_dir(&swap).unwrap();
        fs::write(swap.join("file"), "inside").unwrap();
        fs::create_dir_all(swap.join("dir")).unwrap();
        fixture.give(&swap);
        symlink("../out", &other).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                for _ in 0..SWAPS {
                    renameat_with(CWD, &swap, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                }
                thread::sleep(PAUSE);
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for LinkSwapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self
            .thread
            .take()
            .expect("swapper was dropped twice")
            .join();
        assert!(ended.is_ok() || thread::panicking(), "the swapper failed");
    }
}

/// Removes files that a round created in the workspace. Does not follow symlinks, so that changes
/// outside stay visible.
fn sweep(fixture: &SandboxFixture) {
    for directory in ["work", "work/swap", "work/other"] {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(directory) = open(fixture.path(directory), flags, Mode::empty()) else {
            continue;
        };
        // Uses the directory's descriptor, since its name may be swapped.
        let descriptor_path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        for entry in fs::read_dir(&descriptor_path).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name.contains('-') && !name.starts_with("to-") {
                let path = descriptor_path.join(name);
                drop(fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)));
            }
        }
    }
}

/// Sends a request and returns the result or the error.
async fn ask(
    fixture: &mut SandboxFixture,
    method: &str,
    policy: &SandboxPolicy,
    extra: Value,
) -> Result<Value, Value> {
    let mut params = json!({"sandbox": policy.sandbox});
    merge(&mut params, extra);
    let id = fixture.client.request(method, params).await;
    let mut answer = fixture.client.answer(id).await;
    match answer.get("error") {
        Some(error) => Err(error.clone()),
        None => Ok(answer["result"].take()),
    }
}

async fn assert_never_read(fixture: &mut SandboxFixture, policy: &SandboxPolicy) {
    let (file, directory) = (fixture.uri("work/swap/file"), fixture.uri("work/swap"));
    let swapper = LinkSwapper::new(fixture);
    let (mut read, mut listed) = (0, 0);
    for round in 0..ROUNDS {
        let path = json!({"path": file});
        if let Ok(result) = ask(fixture, "fs/readFile", policy, path).await {
            let text = decode(&result["dataBase64"]);
            // A masked file reads as empty.
            if text != b"inside" {
                let text = String::from_utf8_lossy(&text).into_owned();
                fixture.record_fault(format!("{}: read {text:?}", policy.name));
            }
            read += 1;
        }
        let path = json!({"path": directory});
        if let Ok(result) = ask(fixture, "fs/readDirectory", policy, path).await {
            if result.to_string().contains("empty") {
                fixture.record_fault(format!("{}: listed {result}", policy.name));
            }
            listed += 1;
        }
        let handle = format!("h{round}");
        let open = json!({"path": file, "handleId": handle});
        if ask(fixture, "fs/open", policy, open).await.is_ok() {
            let block = json!({"handleId": handle, "offset": 0, "len": 64});
            let result = fixture.client.call("fs/readBlock", block).await;
            if decode(&result["chunk"]) != b"inside" {
                fixture.record_fault(format!("{}: block {result}", policy.name));
            }
            let close = json!({"handleId": handle});
            fixture.client.call("fs/close", close).await;
        }
    }
    drop(swapper);
    if read == 0 || listed == 0 {
        fixture.record_fault(format!("{}: {read} read, {listed} listed", policy.name));
    }
}

async fn hidden_files_are_never_read_in_a_race(fixture: &mut SandboxFixture) {
    let policy = SandboxPolicy::new(fixture, FilePolicy::Narrow, NetworkPolicy::Restricted);
    assert_never_read(fixture, &policy).await;
    let path = json!({"path": fixture.uri("work/file")});
    assert!(ask(fixture, "fs/readFile", &policy, path).await.is_ok());
}

async fn denied_files_are_never_read_in_a_race(fixture: &mut SandboxFixture) {
    let policy = SandboxPolicy::new(fixture, FilePolicy::Denied, NetworkPolicy::Restricted);
    assert_never_read(fixture, &policy).await;
}

async fn nothing_outside_is_written_or_created_in_a_race(fixture: &mut SandboxFixture) {
    for kind in [
        FilePolicy::Workspace,
        FilePolicy::Narrow,
        FilePolicy::Denied,
        FilePolicy::Carved,
    ] {
        fixture.reset();
        let before = fixture.snapshot("out");
        let policy = SandboxPolicy::new(fixture, kind, NetworkPolicy::Restricted);
        let file = fixture.uri("work/swap/file");
        let swapper = LinkSwapper::new(fixture);
        let (mut written, mut made) = (0, 0);
        for round in 0..ROUNDS {
            let write = json!({"path": file, "dataBase64": "eA=="});
            written += usize::from(ask(fixture, "fs/writeFile", &policy, write).await.is_ok());
            let new = fixture.uri(&format!("work/swap/new-{round}"));
            let write = json!({"path": new, "dataBase64": "eA=="});
            written += usize::from(ask(fixture, "fs/writeFile", &policy, write).await.is_ok());
            let new = fixture.uri(&format!("work/swap/made-{round}/below"));
            let create = json!({"path": new, "recursive": true});
            made += usize::from(
                ask(fixture, "fs/createDirectory", &policy, create)
                    .await
                    .is_ok(),
            );
            let handle = format!("w{round}");
            let open = json!({"path": file, "handleId": handle, "mode": "replace"});
            if ask(fixture, "fs/open", &policy, open).await.is_ok() {
                let block = json!({"handleId": handle, "offset": 0, "chunk": "eA=="});
                fixture.client.call("fs/writeBlock", block).await;
                let close = json!({"handleId": handle});
                fixture.client.call("fs/close", close).await;
            }
            let rename = json!({
                "sourcePath": fixture.uri("work/dir/inner"),
                "destinationPath": fixture.uri(&format!("work/swap/renamed-{round}")),
            });
            if ask(fixture, "fs/rename", &policy, rename).await.is_ok() {
                fs::write(fixture.path("work/dir/inner"), "x").unwrap();
                fixture.give(&fixture.path("work/dir/inner"));
            }
            sweep(fixture);
        }
        drop(swapper);
        fixture.unchanged("out", &before, &format!("{kind:?}"));
        if written == 0 || made == 0 {
            fixture.record_fault(format!("{kind:?}: {written} written, {made} made"));
        }
    }
}

async fn nothing_outside_is_removed_in_a_race(fixture: &mut SandboxFixture) {
    for kind in [
        FilePolicy::Workspace,
        FilePolicy::Narrow,
        FilePolicy::Denied,
        FilePolicy::Carved,
    ] {
        fixture.reset();
        let before = fixture.snapshot("out");
        let policy = SandboxPolicy::new(fixture, kind, NetworkPolicy::Restricted);
        let swapper = LinkSwapper::new(fixture);
        let mut removed = 0;
        for _ in 0..ROUNDS {
            for (path, recursive) in [
                ("work/swap/file", false),
                ("work/swap/dir", true),
                ("work/swap/empty", true),
            ] {
                let remove = json!({
                    "path": fixture.uri(path), "recursive": recursive, "force": false,
                });
                let result = ask(fixture, "fs/remove", &policy, remove).await;
                removed += usize::from(result.is_ok());
            }
            let make = json!({"path": fixture.uri("work/swap/dir/sub"), "recursive": true});
            drop(ask(fixture, "fs/createDirectory", &policy, make).await);
            let write = json!({"path": fixture.uri("work/swap/file"), "dataBase64": "eA=="});
            drop(ask(fixture, "fs/writeFile", &policy, write).await);
        }
        drop(swapper);
        fixture.unchanged("out", &before, &format!("{kind:?}"));
        if removed == 0 {
            fixture.record_fault(format!("{kind:?}: nothing was removed"));
        }
    }
}

async fn nothing_is_copied_across_the_boundary_in_a_race(fixture: &mut SandboxFixture) {
    for kind in [FilePolicy::Narrow, FilePolicy::Denied] {
        fixture.reset();
        let before = fixture.snapshot("out");
        let policy = SandboxPolicy::new(fixture, kind, NetworkPolicy::Restricted);
        let swapper = LinkSwapper::new(fixture);
        let mut copied = 0;
        for round in 0..ROUNDS {
            // Out of and into the swapped directory.
            let copy = format!("work/copy-{round}");
            for (from, to, recursive) in [
                ("work/swap/file", copy.as_str(), false),
                ("work/swap", &format!("work/tree-{round}"), true),
                ("work/dir", &format!("work/swap/copy-{round}"), true),
                ("work/file", &format!("work/swap/copy-file-{round}"), false),
            ] {
                let params = json!({
                    "sourcePath": fixture.uri(from), "destinationPath": fixture.uri(to),
                    "recursive": recursive,
                });
                let result = ask(fixture, "fs/copy", &policy, params).await;
                copied += usize::from(result.is_ok());
            }
            if let Ok(text) = fs::read_to_string(fixture.path(&copy))
                && text != "inside"
                && !text.is_empty()
            {
                fixture.record_fault(format!("{kind:?}: copied {text:?}"));
            }
            let tree = fixture.path(&format!("work/tree-{round}"));
            // A symlink is copied as a symlink.
            let is_tree = fs::symlink_metadata(&tree).is_ok_and(|found| found.is_dir());
            if is_tree && tree.join("empty").exists() {
                fixture.record_fault(format!("{kind:?}: copied the tree outside"));
            }
            sweep(fixture);
        }
        drop(swapper);
        fixture.unchanged("out", &before, &format!("{kind:?}"));
        if copied == 0 {
            fixture.record_fault(format!("{kind:?}: nothing was copied"));
        }
    }
}

/// Swaps the paths of a policy while commands under it start, to race with the sandbox set-up.
async fn command_racing_with_sandbox_setup_gains_nothing(fixture: &mut SandboxFixture) {
    let before = fixture.snapshot("out");
    let entries = json!([
        super::policies::special("root", "read"),
        super::policies::path(&fixture.uri("work/swap"), "write"),
    ]);
    let swapper = LinkSwapper::new(fixture);
    let policy = SandboxPolicy::of(fixture, "racing", entries, NetworkPolicy::Restricted);
    for _ in 0..ROUNDS / 3 {
        // The root may be either when the policy is resolved; files outside are writable only if
        // the policy names them by a symlink that the command could not have created.
        let params = fixture.params(Some(&policy), &["create", "@work/escaped"]);
        let id = fixture
            .client
            .request("process/start", params.clone())
            .await;
        let answer = fixture.client.answer(id).await;
        if answer.get("error").is_some() {
            continue;
        }
        let events = fixture
            .client
            .finish(params["processId"].as_str().unwrap())
            .await;
        if events.stdout() != "refused EROFS\n" {
            fixture.record_fault(format!("{} {}", events.stdout(), events.stream("stderr")));
        }
    }
    drop(swapper);
    fixture.unchanged("out", &before, "racing");
}
