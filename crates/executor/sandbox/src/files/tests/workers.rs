use super::*;

#[tokio::test]
async fn a_hand_that_was_killed_while_idle_is_replaced_in_silence() {
    let scene = Scene::new();
    let (plan, path) = (scene.wide(), scene.inside.join("file"));
    let first = scene.hand(&plan).await;
    signal(first, Signal::KILL);
    end_of(first).await;
    assert_eq!(scene.read(&plan, &path).await.unwrap(), b"inside");
    assert_ne!(scene.hand(&plan).await, first);
    assert_eq!(scene.files.count(), 1);
}

#[tokio::test]
async fn a_request_whose_hand_is_killed_fails_and_the_next_does_not() {
    let scene = Scene::new();
    let (plan, path) = (scene.wide(), scene.inside.join("file"));
    let pid = scene.hand(&plan).await;
    signal(pid, Signal::STOP);
    let mut reading = Box::pin(scene.read(&plan, &path));
    assert!((&mut reading).now_or_never().is_none());
    signal(pid, Signal::KILL);
    let ended = FileError::Host("file helper ended".to_owned());
    assert_eq!(reading.await, Err(ended.clone()));
    let pid = scene.hand(&plan).await;
    signal(pid, Signal::STOP);
    let mut writing = Box::pin(scene.write(&plan, &path, b"new"));
    assert!((&mut writing).now_or_never().is_none());
    tokio::task::yield_now().await;
    signal(pid, Signal::KILL);
    assert_eq!(writing.await, Err(ended));
    assert_eq!(scene.read(&plan, &path).await.unwrap(), b"inside");
}

#[tokio::test]
async fn a_read_that_nobody_waits_for_ends_with_its_hand() {
    let scene = Scene::new();
    let (plan, path) = (scene.wide(), scene.inside.join("file"));
    let pid = scene.hand(&plan).await;
    signal(pid, Signal::STOP);
    let mut reading = Box::pin(scene.read(&plan, &path));
    assert!((&mut reading).now_or_never().is_none());
    drop(reading);
    end_of(pid).await;
    assert_eq!(scene.files.count(), 0);
}

#[tokio::test]
async fn a_change_that_nobody_waits_for_goes_on_to_its_end() {
    let scene = Scene::new();
    let (plan, path) = (scene.wide(), scene.inside.join("file"));
    let pid = scene.hand(&plan).await;
    signal(pid, Signal::STOP);
    let mut writing = Box::pin(scene.write(&plan, &path, b"new"));
    assert!((&mut writing).now_or_never().is_none());
    drop(writing);
    signal(pid, Signal::CONT);
    until(|| !scene.files.idle_pids(&plan).is_empty()).await;
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(scene.hand(&plan).await, pid);
}

#[tokio::test]
async fn there_are_no_more_hands_than_allowed() {
    let scene = Scene::with(Bounds {
        of_one_plan: 2,
        ..Bounds::default()
    });
    let (plan, path) = (scene.wide(), scene.inside.join("file"));
    let reads = (0..50).map(|_| scene.read(&plan, &path));
    for content in futures_util::future::join_all(reads).await {
        assert_eq!(content.unwrap(), b"inside");
        assert!(scene.files.count() <= 2);
    }
    assert_eq!(scene.files.idle_pids(&plan).len(), 2);
}

#[tokio::test]
async fn two_plans_never_share_a_hand() {
    let scene = Scene::new();
    let (wide, narrow) = (scene.wide(), scene.narrow());
    let first = scene.hand(&wide).await;
    let second = scene.hand(&narrow).await;
    assert_ne!(first, second);
    // An equal plan is the same.
    assert_eq!(scene.hand(&scene.wide()).await, first);
    assert_eq!(scene.files.count(), 2);
}

#[tokio::test]
async fn idle_hands_end() {
    let scene = Scene::with(Bounds {
        idle: Duration::from_millis(50),
        ..Bounds::default()
    });
    let pid = scene.hand(&scene.wide()).await;
    end_of(pid).await;
    assert_eq!(scene.files.count(), 0);
}

#[tokio::test]
async fn hands_end_with_whoever_asks_them() {
    let scene = Scene::new();
    let pid = scene.hand(&scene.wide()).await;
    let files = scene.files.clone();
    drop(scene);
    assert_eq!(files.count(), 1);
    drop(files);
    end_of(pid).await;
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused() {
    let scene = Scene::new();
    let path = scene.inside.join("file");
    let impossible = Arc::new(Plan {
        files: plan::Files::All,
        network: Network::Host,
    });
    let refused = FileError::Refused("cannot be enforced".to_owned());
    assert_eq!(scene.read(&impossible, &path).await, Err(refused));
    fs::rename(&scene.inside, scene.outside.join("gone")).unwrap();
    let error = scene.read(&scene.wide(), &path).await.unwrap_err();
    let is_refused = matches!(&error, FileError::Refused(text) if text.starts_with("sandbox: "));
    assert!(is_refused, "{error:?}");
    assert_eq!(scene.files.count(), 0);
}

#[tokio::test]
async fn a_directory_that_was_made_anew_has_a_new_hand() {
    let scene = Scene::new();
    let (plan, path) = (scene.wide(), scene.inside.join("file"));
    let first = scene.hand(&plan).await;
    fs::remove_dir_all(&scene.inside).unwrap();
    fs::create_dir(&scene.inside).unwrap();
    scene.write(&plan, &path, b"new").await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_ne!(scene.hand(&plan).await, first);
}

#[tokio::test]
async fn what_takes_the_place_of_a_protected_file_is_protected() {
    let scene = Scene::new();
    let [path, new] = ["protected", "new"].map(|name| scene.inside.join(name));
    fs::write(&path, "old").unwrap();
    let plan = scene.protected(path.clone());
    assert!(scene.write(&plan, &path, b"x").await.is_err());
    // As editors save a file.
    fs::write(&new, "new").unwrap();
    fs::rename(&new, &path).unwrap();
    assert!(scene.write(&plan, &path, b"x").await.is_err());
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[tokio::test]
async fn no_hand_is_kept_for_ever() {
    let scene = Scene::with(Bounds {
        life: Duration::ZERO,
        ..Bounds::default()
    });
    let path = scene.inside.join("file");
    assert_eq!(scene.read(&scene.wide(), &path).await.unwrap(), b"inside");
    assert_eq!(scene.files.count(), 0);
}
