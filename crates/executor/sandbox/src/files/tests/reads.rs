use std::os::unix::fs::FileExt;

use exec_wire::fs::{
    Canonicalize, DirectoryEntry, FileMetadata, Find, FoundPaths, ReadDirectory, Search,
    SearchResult, Walk, WalkOptions, WalkResult,
};

use super::*;

#[tokio::test]
async fn what_may_be_read_is_read_and_the_rest_is_not_there() {
    let scene = Scene::new();
    let (inside, outside) = (scene.inside.join("file"), scene.outside.join("file"));
    let (wide, narrow) = (scene.wide(), scene.narrow());
    assert_eq!(scene.read(&wide, &inside).await.unwrap(), b"inside");
    assert_eq!(scene.read(&wide, &outside).await.unwrap(), b"outside");
    assert_eq!(scene.read(&narrow, &inside).await.unwrap(), b"inside");
    for path in [&outside, Path::new("/etc/passwd")] {
        let error = scene.read(&narrow, path).await.unwrap_err();
        assert!(matches!(error, FileError::NotFound(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_file_of_any_size_is_read() {
    let scene = Scene::new();
    let path = scene.inside.join("large");
    for size in [0, 1, 20_000, 65_536, 65_537, 3_000_000] {
        let content: Vec<u8> = (0..=u8::MAX).cycle().take(size).collect();
        fs::write(&path, &content).unwrap();
        let plan = scene.narrow();
        assert!(scene.read(&plan, &path).await.unwrap() == content, "{size}");
        let opened = scene.files.read_file(plan, read(&path)).await.unwrap();
        assert_eq!(matches!(opened, Read::Opened(_)), size > 65_536);
    }
}

#[tokio::test]
async fn errors_are_what_they_are_without_a_policy() {
    let scene = Scene::new();
    let plan = scene.wide();
    let unused = scene.inside.join("none");
    for path in [
        unused.as_path(),
        &scene.inside,
        &scene.inside.join("file/x"),
    ] {
        let expected = WholeFile::open(&read(path)).unwrap_err();
        assert_eq!(scene.read(&plan, path).await.unwrap_err(), expected);
    }
}

#[tokio::test]
async fn what_was_opened_works_when_the_hand_is_gone() {
    let scene = Scene::new();
    let path = scene.inside.join("file");
    let plan = scene.wide();
    let pid = scene.hand(&plan).await;
    let file = fs::File::from(scene.open(&path, OpenMode::Read).await.unwrap());
    let to_write = fs::File::from(
        scene
            .open(&scene.inside.join("new"), OpenMode::Replace)
            .await
            .unwrap(),
    );
    signal(pid, Signal::KILL);
    end_of(pid).await;
    let mut content = [0; 6];
    file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"inside");
    to_write.write_all_at(b"later", 0).unwrap();
    assert_eq!(fs::read(scene.inside.join("new")).unwrap(), b"later");
}

#[tokio::test]
async fn trees_are_listed_and_searched() {
    let scene = Scene::new();
    let plan = scene.narrow();
    for number in 0..200 {
        let directory = scene.inside.join(format!("d{number}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("f"), format!("needle {number}\n")).unwrap();
    }
    let path = uri(&scene.inside);
    let result = |request| scene.files.call(Arc::clone(&plan), request, Bytes::new());
    let metadata: FileMetadata = result(Request::Metadata(GetMetadata {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
    }))
    .await
    .unwrap()
    .into_result()
    .unwrap();
    assert!(metadata.is_directory);
    let canonical: PathUri = result(Request::Canonicalize(Canonicalize {
        path: path.clone(),
        sandbox: None,
    }))
    .await
    .unwrap()
    .into_result()
    .unwrap();
    assert_eq!(canonical, path);
    let entries: Vec<DirectoryEntry> = result(Request::ReadDirectory(ReadDirectory {
        path: path.clone(),
        sandbox: None,
    }))
    .await
    .unwrap()
    .into_result()
    .unwrap();
    assert_eq!(entries.len(), 201);
    let walked: WalkResult = result(Request::Walk(walk(path.clone())))
        .await
        .unwrap()
        .into_result()
        .unwrap();
    assert_eq!((walked.entries.len(), walked.errors.len()), (401, 0));
    let found: SearchResult = result(Request::Search(Search {
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
    assert_eq!(found.matches.len(), 200);
    let paths: FoundPaths = result(Request::Find(Find {
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
    assert_eq!(scene.files.count(), 1);
}

fn walk(path: PathUri) -> Walk {
    Walk {
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
