use super::*;

#[tokio::test]
async fn worker_killed_while_idle_is_replaced_transparently() {
    let test_fs = TestFs::new();
    let (plan, path) = (test_fs.wide(), test_fs.inside.join("file"));
    let first = test_fs.worker_pid(&plan).await;
    signal(first, Signal::KILL);
    wait_for_exit(first).await;
    assert_eq!(test_fs.read(&plan, &path).await.unwrap(), b"inside");
    assert_ne!(test_fs.worker_pid(&plan).await, first);
    assert_eq!(test_fs.files.count(), 1);
}

#[tokio::test]
async fn request_fails_when_its_worker_is_killed_and_the_next_succeeds() {
    let test_fs = TestFs::new();
    let (plan, path) = (test_fs.wide(), test_fs.inside.join("file"));
    let pid = test_fs.worker_pid(&plan).await;
    signal(pid, Signal::STOP);
    let mut reading = Box::pin(test_fs.read(&plan, &path));
    assert!((&mut reading).now_or_never().is_none());
    signal(pid, Signal::KILL);
    let worker_lost = FileError::Host("fs worker ended".to_owned());
    assert_eq!(reading.await, Err(worker_lost.clone()));
    let pid = test_fs.worker_pid(&plan).await;
    signal(pid, Signal::STOP);
    let mut writing = Box::pin(test_fs.write(&plan, &path, b"new"));
    assert!((&mut writing).now_or_never().is_none());
    signal(pid, Signal::KILL);
    assert_eq!(writing.await, Err(worker_lost));
    assert_eq!(test_fs.read(&plan, &path).await.unwrap(), b"inside");
}

#[tokio::test]
async fn abandoned_read_stops_its_worker() {
    let test_fs = TestFs::new();
    let (plan, path) = (test_fs.wide(), test_fs.inside.join("file"));
    let pid = test_fs.worker_pid(&plan).await;
    signal(pid, Signal::STOP);
    let mut reading = Box::pin(test_fs.read(&plan, &path));
    assert!((&mut reading).now_or_never().is_none());
    drop(reading);
    wait_for_exit(pid).await;
    assert_eq!(test_fs.files.count(), 0);
}

#[tokio::test]
async fn worker_count_stays_within_the_limit() {
    let test_fs = TestFs::with(WorkerLimits {
        per_plan: 2,
        ..WorkerLimits::default()
    });
    let (plan, path) = (test_fs.wide(), test_fs.inside.join("file"));
    let reads = (0..50).map(|_| test_fs.read(&plan, &path));
    for content in futures_util::future::join_all(reads).await {
        assert_eq!(content.unwrap(), b"inside");
        assert!(test_fs.files.count() <= 2);
    }
    assert_eq!(test_fs.files.idle_pids(&plan).len(), 2);
}

#[tokio::test]
async fn different_plans_never_share_a_worker() {
    let test_fs = TestFs::new();
    let (wide, narrow) = (test_fs.wide(), test_fs.narrow());
    let first = test_fs.worker_pid(&wide).await;
    let second = test_fs.worker_pid(&narrow).await;
    assert_ne!(first, second);
    // An equal plan shares the worker.
    assert_eq!(test_fs.worker_pid(&test_fs.wide()).await, first);
    assert_eq!(test_fs.files.count(), 2);
}

#[tokio::test]
async fn idle_workers_are_stopped() {
    let test_fs = TestFs::with(WorkerLimits {
        idle_timeout: Duration::from_millis(50),
        ..WorkerLimits::default()
    });
    let pid = test_fs.worker_pid(&test_fs.wide()).await;
    wait_for_exit(pid).await;
    assert_eq!(test_fs.files.count(), 0);
}

#[tokio::test]
async fn workers_stop_when_the_last_handle_is_dropped() {
    let test_fs = TestFs::new();
    let pid = test_fs.worker_pid(&test_fs.wide()).await;
    let files = test_fs.files.clone();
    drop(test_fs);
    assert_eq!(files.count(), 1);
    drop(files);
    wait_for_exit(pid).await;
}

#[tokio::test]
async fn unenforceable_plan_is_refused() {
    let test_fs = TestFs::new();
    let path = test_fs.inside.join("file");
    let impossible = Arc::new(SandboxPlan {
        files: plan::FileAccess::All,
        network: NetworkScope::Host,
    });
    let refused = FileError::Refused("cannot be enforced".to_owned());
    assert_eq!(test_fs.read(&impossible, &path).await, Err(refused));
    fs::rename(&test_fs.inside, test_fs.outside.join("gone")).unwrap();
    let error = test_fs.read(&test_fs.wide(), &path).await.unwrap_err();
    let is_refused = matches!(&error, FileError::Refused(text) if text.starts_with("sandbox: "));
    assert!(is_refused, "{error:?}");
    assert_eq!(test_fs.files.count(), 0);
}

#[tokio::test]
async fn recreated_directory_gets_a_new_worker() {
    let test_fs = TestFs::new();
    let (plan, path) = (test_fs.wide(), test_fs.inside.join("file"));
    let first = test_fs.worker_pid(&plan).await;
    fs::remove_dir_all(&test_fs.inside).unwrap();
    fs::create_dir(&test_fs.inside).unwrap();
    test_fs.write(&plan, &path, b"new").await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_ne!(test_fs.worker_pid(&plan).await, first);
}

#[tokio::test]
async fn replacement_of_a_protected_file_is_protected() {
    let test_fs = TestFs::new();
    let [path, new] = ["protected", "new"].map(|name| test_fs.inside.join(name));
    fs::write(&path, "old").unwrap();
    let plan = test_fs.protected(path.clone());
    assert!(test_fs.write(&plan, &path, b"x").await.is_err());
    // Editors save a file this way.
    fs::write(&new, "new").unwrap();
    fs::rename(&new, &path).unwrap();
    assert!(test_fs.write(&plan, &path, b"x").await.is_err());
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[tokio::test]
async fn worker_is_not_reused_beyond_its_maximum_age() {
    let test_fs = TestFs::with(WorkerLimits {
        max_age: Duration::ZERO,
        ..WorkerLimits::default()
    });
    let path = test_fs.inside.join("file");
    assert_eq!(
        test_fs.read(&test_fs.wide(), &path).await.unwrap(),
        b"inside"
    );
    assert_eq!(test_fs.files.count(), 0);
}
