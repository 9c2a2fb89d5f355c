//! `fs/find`: files and directories by name.

use exec_wire::fs::{FindPaths, FoundPaths};

use crate::{
    bounded_wait::{done, not_found, refused, unknown},
    difference::Difference,
    request::{find, find_query},
    scratch_dir::ScratchDir,
    subject::Subject,
};

/// Asserts that `fs/find` is refused and returns true if the subject does not support it.
async fn assert_unsupported(subject: &Subject) -> bool {
    let assert_unsupported = subject.differs(Difference::NoFind);
    if assert_unsupported {
        let scratch = ScratchDir::new();
        unknown(subject.files.find(find(scratch.root(), "*"))).await;
    }
    assert_unsupported
}

async fn found(subject: &Subject, request: FindPaths) -> FoundPaths {
    done(subject.files.find(request)).await
}

/// Returns the paths relative to the root.
async fn names(subject: &Subject, scratch: &ScratchDir, request: FindPaths) -> Vec<String> {
    let found = found(subject, request).await;
    assert!(!found.truncated);
    let name = |path: &exec_wire::path_uri::PathUri| {
        let path = path.to_native().unwrap();
        let name = path.strip_prefix(scratch.root()).unwrap();
        name.to_str().unwrap().to_owned()
    };
    found.paths.iter().map(name).collect()
}

pub async fn find_matches_names_by_glob(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    for name in ["z.rs", "a.rs", "src/b.rs", "src/lib/c.rs", "src/d.txt"] {
        scratch.file(name, "");
    }
    scratch.directory("src/module.rs");
    let root = scratch.root();
    let rust = names(subject, &scratch, find(root, "**/*.rs")).await;
    let expected = ["a.rs", "src/b.rs", "src/lib/c.rs", "src/module.rs", "z.rs"];
    assert_eq!(rust, expected);
    let exact = names(subject, &scratch, find(root, "src/d.txt")).await;
    assert_eq!(exact, ["src/d.txt"]);
    let none = names(subject, &scratch, find(root, "**/none")).await;
    assert!(none.is_empty());
}

pub async fn find_ranks_query_matches(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    for name in ["src/main.rs", "my/archive/in/there", "none", "lib.rs"] {
        scratch.file(name, "");
    }
    let best = names(subject, &scratch, find_query(scratch.root(), "main")).await;
    assert_eq!(best.first().map(String::as_str), Some("src/main.rs"));
    assert!(best.contains(&"my/archive/in/there".to_owned()), "{best:?}");
    assert!(!best.contains(&"none".to_owned()), "{best:?}");
    let none = names(subject, &scratch, find_query(scratch.root(), "zzz")).await;
    assert!(none.is_empty());
}

pub async fn find_needs_a_glob_or_a_query(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let both = FindPaths {
        query: Some("x".to_owned()),
        ..find(scratch.root(), "*")
    };
    refused(subject.files.find(both)).await;
    let neither = FindPaths {
        glob: None,
        ..find(scratch.root(), "*")
    };
    refused(subject.files.find(neither)).await;
    refused(subject.files.find(find(scratch.root(), "["))).await;
}

pub async fn find_respects_the_path_limit(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    for number in 0..20 {
        scratch.file(format!("file {number:02}"), "");
    }
    for request in [
        find(scratch.root(), "*"),
        find_query(scratch.root(), "file"),
    ] {
        for (max_results, truncated) in [(7, true), (20, false), (21, false)] {
            let request = FindPaths {
                max_results,
                ..request.clone()
            };
            let found = found(subject, request).await;
            assert_eq!(found.paths.len(), max_results.min(20));
            assert_eq!(found.truncated, truncated, "{max_results}");
        }
    }
}

pub async fn find_respects_ignore_files(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.directory(".git");
    scratch.file(".gitignore", "/target\n*.log\n");
    scratch.file(".ignore", "vendor/\n");
    for name in ["kept.x", "target/a.x", "x.log", "src/x.log", "vendor/d.x"] {
        scratch.file(name, "");
    }
    let kept = names(subject, &scratch, find(scratch.root(), "**/*x*")).await;
    assert_eq!(kept, ["kept.x"]);
    let kept = names(subject, &scratch, find_query(scratch.root(), "x")).await;
    assert_eq!(kept, ["kept.x"]);
}

pub async fn special_files_do_not_block_a_find(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    scratch.file("directory/file", "");
    scratch.link("directory/turn", "..");
    scratch.link("dangling", "none");
    scratch.fifo("pipe");
    let found = found(subject, find(scratch.root(), "**/file")).await;
    assert_eq!(found.paths.len(), 1);
}

pub async fn find_root_must_exist(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let none = scratch.path("none");
    let text = not_found(subject.files.find(find(&none, "*"))).await;
    assert!(text.contains(none.to_str().unwrap()), "{text}");
    let empty = found(subject, find(scratch.root(), "*")).await;
    assert_eq!(empty, FoundPaths::default());
}
