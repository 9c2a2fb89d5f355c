//! Much at once: everything is told, or it is said that something is not.

use super::*;

/// Makes 10 000 files in 100 nested directories, none of which exists.
fn make_files(root: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for number in 0..100 {
        let directory = root.join(format!("{}/{}/{number}", number % 3, number % 10));
        fs::create_dir_all(&directory).unwrap();
        for number in 0..100 {
            let file = directory.join(format!("{number}"));
            fs::write(&file, "").unwrap();
            files.insert(file);
        }
    }
    files
}

#[tokio::test]
async fn every_file_of_a_burst_in_new_directories_is_told() {
    let mut watched = Watched::tree();
    let root = watched.root.clone();
    let writing = tokio::task::spawn_blocking(move || make_files(&root));
    let mut told = BTreeSet::new();
    let mut overflow = false;
    let mut files = BTreeSet::new();
    let mut writing = Some(writing);
    while writing.is_some() || (!overflow && !files.is_subset(&told)) {
        let batch = watched.batch().await.unwrap();
        overflow |= batch.overflow;
        for change in batch.changes {
            assert!(matches!(change.kind, Created | Modified), "{change:?}");
            told.insert(change.path.to_native().unwrap());
        }
        if let Some(done) = writing.take_if(|writing| writing.is_finished()) {
            files = done.await.unwrap();
        }
    }
    println!("overflow: {overflow}");
    // Whatever was lost, the directories are watched.
    for file in files.iter().step_by(100) {
        fs::write(file, "2").unwrap();
        let mut found = false;
        while !found {
            let batch = watched.batch().await.unwrap();
            let path = PathUri::from_native(file).unwrap();
            found = batch.changes.iter().any(|change| change.path == path);
        }
    }
}

#[tokio::test]
async fn a_burst_that_nobody_takes_is_told_at_once() {
    let mut watched = Watched::tree();
    let files = make_files(&watched.root);
    let mut told = BTreeSet::new();
    let mut overflow = false;
    while !overflow && !files.is_subset(&told) {
        let batch = watched.batch().await.unwrap();
        overflow |= batch.overflow;
        let paths = batch.changes.into_iter().map(|change| change.path);
        told.extend(paths.map(|path| path.to_native().unwrap()));
    }
}

#[tokio::test]
async fn more_than_may_be_gathered_is_said_to_overflow() {
    let mut watched = Watched::tree();
    for number in 0..limits::MAX_GATHERED_CHANGES + 100 {
        fs::write(watched.path(&format!("{number}")), "").unwrap();
    }
    // Watches are told in the order of their beginning, so the first has been told by then.
    let mut second = start(&watched.outside, WatchDepth::Tree).unwrap();
    fs::write(watched.outside.join("file"), "").unwrap();
    let told = timeout(PATIENCE, second.changes.next()).await.unwrap();
    assert!(told.is_some());
    let batch = watched.batch().await.unwrap();
    assert!(batch.overflow);
    assert!(batch.changes.len() <= limits::MAX_GATHERED_CHANGES);
}

#[tokio::test]
async fn a_watch_begins_in_a_tree_that_grows() {
    let mut watched = Watched::tree();
    let root = watched.path("tree");
    fs::create_dir(&root).unwrap();
    let writing = tokio::task::spawn_blocking({
        let root = root.clone();
        move || make_files(&root)
    });
    let late = start(&root, WatchDepth::Tree).unwrap();
    let files = writing.await.unwrap();
    watched.watcher = late;
    // What was made before the watch began need not be told; what comes after must be.
    for file in files.iter().step_by(100) {
        let file = file.with_file_name("after");
        fs::write(&file, "1").unwrap();
        let path = PathUri::from_native(&file).unwrap();
        let mut found = false;
        while !found {
            let batch = watched.batch().await.unwrap();
            found = batch.overflow || batch.changes.iter().any(|change| change.path == path);
        }
    }
}
