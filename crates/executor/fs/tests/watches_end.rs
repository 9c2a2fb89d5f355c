//! Dropped watches release their resources. Runs in its own process, because it counts the threads
//! and descriptors of the process.

use std::{
    fs,
    time::{Duration, Instant},
};

use exec_env::filesystem::{MissingPathsRequest, WatchDepth, WatchPathRequest};
use exec_fs::{watch, watch_missing};
use exec_wire::path_uri::PathUri;
use futures_util::StreamExt;
use tokio::time::timeout;

fn count(of: &str) -> usize {
    fs::read_dir(of).map_or(0, Iterator::count)
}

fn used() -> (usize, usize) {
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn dropped_watches_leave_no_thread_and_no_descriptor() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let before = used();
    for _ in 0..3 {
        let watch_root = || {
            watch(&WatchPathRequest {
                path: PathUri::from_native(&root).unwrap(),
                depth: WatchDepth::Tree,
                sandbox: None,
            })
            .unwrap()
        };
        let missing = watch_missing(&MissingPathsRequest {
            missing: vec![PathUri::from_native(&root.join("missing")).unwrap()],
            present: None,
            sandbox: None,
        });
        let mut watchers: Vec<_> = (0..200).map(|_| watch_root()).collect();
        let (descriptors, threads) = used();
        assert!(descriptors <= before.0 + 3 && threads == before.1 + 1);
        fs::write(root.join("a/b/c/file"), "1").unwrap();
        let reported =
            runtime.block_on(async { timeout(TEST_TIMEOUT, watchers[199].changes.next()).await });
        assert!(reported.unwrap().is_some());
        drop(watchers);
        drop(missing);
        let deadline = Instant::now() + TEST_TIMEOUT;
        while used() != before {
            assert!(Instant::now() < deadline, "{:?} is not {before:?}", used());
            std::thread::yield_now();
        }
    }
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
