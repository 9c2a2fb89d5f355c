use std::os::unix::fs::FileExt;

use exec_wire::fs::{
    CanonicalizePath, DirectoryListing, FileMetadata, FindPaths, FoundPaths, ReadDirectory,
    SearchResult, SearchText, WalkOptions, WalkResult, WalkTree,
};

use super::*;

#[tokio::test]
async fn readable_files_are_read_and_hidden_files_are_not_found() {
    let test_fs = TestFs::new();
    let (inside, outside) = (test_fs.inside.join("file"), test_fs.outside.join("file"));
    let (wide, narrow) = (test_fs.wide(), test_fs.narrow());
    assert_eq!(test_fs.read(&wide, &inside).await.unwrap(), b"inside");
    assert_eq!(test_fs.read(&wide, &outside).await.unwrap(), b"outside");
    assert_eq!(test_fs.read(&narrow, &inside).await.unwrap(), b"inside");
    for path in [&outside, Path::new("/etc/passwd")] {
        let error = test_fs.read(&narrow, path).await.unwrap_err();
        assert!(matches!(error, FileError::NotFound(_)), "{error:?}");
    }
}

#[tokio::test]
async fn files_of_any_size_are_read() {
    let test_fs = TestFs::new();
    let path = test_fs.inside.join("large");
    for size in [0, 1, 20_000, 65_536, 65_537, 3_000_000] {
        let content: Vec<u8> = (0..=u8::MAX).cycle().take(size).collect();
        fs::write(&path, &content).unwrap();
        let plan = test_fs.narrow();
        assert!(
            test_fs.read(&plan, &path).await.unwrap() == content,
            "{size}"
        );
        let opened = test_fs.files.read_file(plan, read(&path)).await.unwrap();
        assert_eq!(matches!(opened, SandboxedRead::Opened(_)), size > 65_536);
    }
}

#[tokio::test]
async fn errors_match_unsandboxed_operations() {
    let test_fs = TestFs::new();
    let plan = test_fs.wide();
    let unused = test_fs.inside.join("none");
    for path in [
        unused.as_path(),
        &test_fs.inside,
        &test_fs.inside.join("file/x"),
    ] {
        let expected = WholeFile::open(&read(path)).unwrap_err();
        assert_eq!(test_fs.read(&plan, path).await.unwrap_err(), expected);
    }
}

#[tokio::test]
async fn descriptor_outlives_its_worker() {
    let test_fs = TestFs::new();
    let path = test_fs.inside.join("file");
    let plan = test_fs.wide();
    let pid = test_fs.worker_pid(&plan).await;
    let file = fs::File::from(test_fs.open(&path, OpenMode::Read).await.unwrap());
    let to_write = fs::File::from(
        test_fs
            .open(&test_fs.inside.join("new"), OpenMode::Replace)
            .await
            .unwrap(),
    );
    signal(pid, Signal::KILL);
    wait_for_exit(pid).await;
    let mut content = [0; 6];
    file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"inside");
    to_write.write_all_at(b"later", 0).unwrap();
    assert_eq!(fs::read(test_fs.inside.join("new")).unwrap(), b"later");
}

#[tokio::test]
async fn trees_are_listed_and_searched() {
    let test_fs = TestFs::new();
    let plan = test_fs.narrow();
    for number in 0..200 {
        let directory = test_fs.inside.join(format!("d{number}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("f"), format!("needle {number}\n")).unwrap();
    }
    let path = uri(&test_fs.inside);
    let result = |request| test_fs.files.call(Arc::clone(&plan), request, Bytes::new());
    let metadata: FileMetadata = result(WorkerRequest::Metadata(GetMetadata {
        path: path.clone(),
        follow_symlinks: None,
        details: false,
        sandbox: None,
    }))
    .await
    .unwrap()
    .into_result()
    .unwrap();
    assert!(metadata.is_directory);
    let canonical: PathUri = result(WorkerRequest::Canonicalize(CanonicalizePath {
        path: path.clone(),
        sandbox: None,
    }))
    .await
    .unwrap()
    .into_result()
    .unwrap();
    assert_eq!(canonical, path);
    let read = ReadDirectory::new(path.clone());
    let listing: DirectoryListing = result(WorkerRequest::ReadDirectory(read))
        .await
        .unwrap()
        .into_result()
        .unwrap();
    assert_eq!(listing.entries.len(), 201);
    let tree: WalkResult = result(WorkerRequest::Walk(walk(path.clone())))
        .await
        .unwrap()
        .into_result()
        .unwrap();
    assert_eq!((tree.entries.len(), tree.errors.len()), (401, 0));
    let search_result: SearchResult = result(WorkerRequest::Search(SearchText {
        path: path.clone(),
        pattern: "needle".to_owned(),
        regex: false,
        case_sensitive: true,
        glob: None,
        max_matches: 1000,
        context_lines: 0,
        sandbox: None,
    }))
    .await
    .unwrap()
    .into_result()
    .unwrap();
    assert_eq!(search_result.matches.len(), 200);
    let paths: FoundPaths = result(WorkerRequest::Find(FindPaths {
        path,
        glob: Some("**/f".to_owned()),
        query: None,
        max_results: 1000,
        sandbox: None,
    }))
    .await
    .unwrap()
    .into_result()
    .unwrap();
    assert_eq!(paths.paths.len(), 200);
    assert_eq!(test_fs.files.count(), 1);
}

fn walk(path: PathUri) -> WalkTree {
    WalkTree {
        path,
        options: WalkOptions {
            max_depth: 10,
            max_directories: 1000,
            max_entries: 1000,
            follow_directory_symlinks: false,
            prune_hidden_directories: false,
        },
        sandbox: None,
    }
}
