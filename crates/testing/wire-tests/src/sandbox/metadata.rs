//! Metadata directories of a workspace, which configure tools that later run with more rights.

use std::fs;

use serde_json::json;

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy, path, special},
};

as_every_user!(
    missing_metadata_directories_cannot_be_created_by_any_method,
    other_names_can_be_created_by_every_method,
    existing_metadata_directories_are_read_only,
    metadata_directories_are_protected_only_at_the_root,
    directory_named_by_a_git_file_is_read_only,
    symlink_cannot_be_replaced_by_a_metadata_directory,
    explicitly_named_metadata_directory_is_writable,
    workspace_cannot_be_moved,
    workspace_in_a_temporary_directory_cannot_be_moved,
);

const NAMES: [&str; 4] = [".git", ".agents", ".codex", ".aws"];

/// Methods that a sandbox may refuse altogether: sockets, devices, and `/proc` links that only the
/// caller can follow.
const OPTIONAL: [&str; 5] = [
    "bind-stream",
    "bind-dgram",
    "mknod-socket",
    "mknod-whiteout",
    "mkdir-by-proc",
];

fn ways(text: &str) -> Vec<(&str, &str)> {
    let ways: Vec<(&str, &str)> = text
        .lines()
        .map(|line| line.split_once(": ").unwrap_or((line, "")))
        .collect();
    assert!(ways.len() > 20, "{text}");
    ways
}

async fn missing_metadata_directories_cannot_be_created_by_any_method(
    fixture: &mut SandboxFixture,
) {
    fs::remove_dir_all(fixture.path("work/.git")).unwrap();
    let before = fixture.snapshot("work");
    for kind in [
        FilePolicy::Workspace,
        FilePolicy::Stock,
        FilePolicy::Narrow,
        FilePolicy::Denied,
    ] {
        for network in NetworkPolicy::ALL {
            let policy = SandboxPolicy::new(fixture, kind, network);
            for name in NAMES {
                if kind != FilePolicy::Workspace && name != ".git" {
                    continue;
                }
                // Intermediate files are created in the workspace, since nothing else is writable.
                let aside = fixture.path("work/aside");
                fs::create_dir(&aside).unwrap();
                fixture.give(&aside);
                let args = ["create-many-ways", "@work", name, "@work/aside"];
                let text = fixture.run(Some(&policy), &args).await;
                for (way, verdict) in ways(&text) {
                    if !verdict.starts_with("refused ") || verdict.ends_with("EEXIST") {
                        fixture
                            .record_fault(format!("{}: {name} by {way}: {verdict}", policy.name));
                    }
                }
                let int80 = format!("@work/{name}");
                let errors = "EPERM ENOSYS EACCES EROFS SIGSYS SIGSEGV";
                fixture
                    .refused(&policy, errors, &["int80-mkdir", &int80])
                    .await;
                fs::remove_dir_all(&aside).unwrap();
            }
            let name = policy.name.clone();
            fixture.unchanged("work", &before, &name);
        }
    }
}

async fn other_names_can_be_created_by_every_method(fixture: &mut SandboxFixture) {
    let kinds = [
        None,
        Some(FilePolicy::Workspace),
        Some(FilePolicy::Stock),
        Some(FilePolicy::Narrow),
        Some(FilePolicy::Carved),
        Some(FilePolicy::Denied),
    ];
    for kind in kinds {
        for network in NetworkPolicy::ALL {
            let policy = kind.map(|kind| SandboxPolicy::new(fixture, kind, network));
            let name = policy.as_ref().map_or("outside", |p| p.name.as_str());
            let aside = fixture.path("work/aside");
            fs::create_dir(&aside).unwrap();
            fixture.give(&aside);
            for (directory, made) in [("@work", ".gitx"), ("@work/dir", ".git")] {
                let args = ["create-many-ways", directory, made, "@work/aside"];
                let text = fixture.run(policy.as_ref(), &args).await;
                for (way, verdict) in ways(&text) {
                    let optional = policy.is_some() && OPTIONAL.contains(&way);
                    if verdict != "ok" && !optional {
                        fixture.record_fault(format!("{name}: {made} by {way}: {verdict}"));
                    }
                }
            }
            fixture.reset();
        }
    }
}

async fn existing_metadata_directories_are_read_only(fixture: &mut SandboxFixture) {
    for name in [".agents", ".codex", ".aws"] {
        fs::create_dir(fixture.path("work").join(name)).unwrap();
        fs::write(fixture.path("work").join(name).join("config"), "x").unwrap();
    }
    fixture.give(&fixture.path("work"));
    let before = fixture.snapshot("work");
    for kind in [
        FilePolicy::Workspace,
        FilePolicy::Stock,
        FilePolicy::Narrow,
        FilePolicy::Denied,
    ] {
        for network in NetworkPolicy::ALL {
            let policy = SandboxPolicy::new(fixture, kind, network);
            for name in NAMES {
                let own = format!("@work/{name}");
                let (config, new) = (format!("{own}/config"), format!("{own}/new"));
                for args in [
                    &["write", &config][..],
                    &["truncate", &config],
                    &["unlink", &config],
                    &["chmod", &config],
                    &["create", &new],
                    &["mkdir", &new],
                    &["chmod", &own],
                    &["utimes", &own],
                    &["setxattr", &own],
                    &["link", &config, "@work/hard"],
                    &["rename", &config, "@work/moved"],
                    &["rename", "@work/file", &new],
                    &["rename", "@work/file", &config],
                    &["rename", "@work/dir", &own],
                    &["rename", &own, "@work/moved"],
                    &["exchange", &own, "@work/dir"],
                    &["exchange", "@work/file", &config],
                    &["rmdir", &own],
                ] {
                    fixture
                        .refused(&policy, "EROFS EXDEV EBUSY ENOTEMPTY", args)
                        .await;
                }
                fixture.allowed(&policy, &["stat", &config]).await;
            }
            let name = policy.name.clone();
            fixture.unchanged("work", &before, &name);
        }
    }
}

async fn metadata_directories_are_protected_only_at_the_root(fixture: &mut SandboxFixture) {
    let policy = SandboxPolicy::new(fixture, FilePolicy::Workspace, NetworkPolicy::Restricted);
    fixture.allowed(&policy, &["mkdir", "@work/dir/.git"]).await;
    fixture
        .allowed(&policy, &["create", "@work/dir/.git/config"])
        .await;
    fixture
        .allowed(&policy, &["mkdir", "@work/dir/.codex"])
        .await;
    // A directory with metadata cannot be moved to the root level.
    fixture
        .refused(
            &policy,
            "EBUSY EXDEV EROFS EPERM EACCES",
            &["rename", "@work/dir/.git", "@work/.codex"],
        )
        .await;
    // With all writes allowed, nothing is protected.
    let carved = SandboxPolicy::new(fixture, FilePolicy::Carved, NetworkPolicy::Restricted);
    fixture.allowed(&carved, &["mkdir", "@work/.codex"]).await;
}

async fn directory_named_by_a_git_file_is_read_only(fixture: &mut SandboxFixture) {
    fs::remove_dir_all(fixture.path("work/.git")).unwrap();
    for name in ["work/store", "work/plain"] {
        fs::create_dir(fixture.path(name)).unwrap();
        fs::write(fixture.path(name).join("config"), "x").unwrap();
    }
    let text = format!("gitdir: {}\n", fixture.text("work/store"));
    fs::write(fixture.path("work/.git"), text).unwrap();
    fixture.give(&fixture.path("work"));
    for kind in [FilePolicy::Workspace, FilePolicy::Stock, FilePolicy::Narrow] {
        let policy = SandboxPolicy::new(fixture, kind, NetworkPolicy::Restricted);
        for args in [
            &["write", "@work/.git"][..],
            &["unlink", "@work/.git"],
            &["rename", "@work/.git", "@work/moved"],
            &["rename", "@work/file", "@work/.git"],
            &["write", "@work/store/config"],
            &["create", "@work/store/new"],
            &["rename", "@work/store", "@work/moved"],
        ] {
            fixture.refused(&policy, "EROFS EXDEV EBUSY", args).await;
        }
        fixture
            .allowed(&policy, &["write", "@work/plain/config"])
            .await;
    }
}

async fn symlink_cannot_be_replaced_by_a_metadata_directory(fixture: &mut SandboxFixture) {
    fs::remove_dir_all(fixture.path("work/.git")).unwrap();
    fs::create_dir(fixture.path("work/store")).unwrap();
    fs::write(fixture.path("work/store/config"), "x").unwrap();
    std::os::unix::fs::symlink("store", fixture.path("work/.git")).unwrap();
    fixture.give(&fixture.path("work"));
    let before = fixture.snapshot("work");
    for kind in [FilePolicy::Workspace, FilePolicy::Stock, FilePolicy::Narrow] {
        let policy = SandboxPolicy::new(fixture, kind, NetworkPolicy::Restricted);
        let errors = "EROFS EXDEV EBUSY EACCES EPERM ENOENT";
        for args in [
            &["write", "@work/.git/config"][..],
            &["write", "@work/store/config"],
            &["create", "@work/.git/new"],
            &["unlink", "@work/.git"],
            &["rename", "@work/.git", "@work/moved"],
            &["rename", "@work/dir", "@work/.git"],
            &["rename", "@work/to-out", "@work/.git"],
            &["exchange", "@work/dir", "@work/.git"],
            &["rename", "@work/store", "@work/moved"],
        ] {
            fixture.refused(&policy, errors, args).await;
        }
        let name = policy.name.clone();
        fixture.unchanged("work", &before, &name);
    }
}

async fn explicitly_named_metadata_directory_is_writable(fixture: &mut SandboxFixture) {
    for network in NetworkPolicy::ALL {
        let entries = json!([
            special("root", "read"),
            special("project_roots", "write"),
            path(&fixture.uri("work/.git"), "write"),
        ]);
        let policy = SandboxPolicy::of(fixture, "git is writable", entries, network);
        fixture
            .allowed(&policy, &["write", "@work/.git/config"])
            .await;
        fixture
            .allowed(&policy, &["create", "@work/.git/new"])
            .await;
        let other = &["mkdir", "@work/.codex"];
        fixture.refused(&policy, "EROFS EPERM EACCES", other).await;
        fixture.reset();
    }
}

/// If more than the workspace is writable, a command could move the workspace and replace it by one
/// with its own metadata.
async fn workspace_cannot_be_moved(fixture: &mut SandboxFixture) {
    let above = |fixture: &SandboxFixture| path(&fixture.uri(""), "write");
    for metadata in ["there", "missing"] {
        for network in NetworkPolicy::ALL {
            let entries = json!([
                special("root", "read"),
                above(fixture),
                special("project_roots", "write"),
            ]);
            let name = format!("workspace in a writable directory, metadata {metadata}");
            let policy = SandboxPolicy::of(fixture, &name, entries, network);
            for args in [
                &["rename", "@work", "@gone"][..],
                &["exchange", "@work", "@aside"],
            ] {
                fixture.reset();
                if metadata == "missing" {
                    fs::remove_dir_all(fixture.path("work/.git")).unwrap();
                }
                let errors = "EBUSY EROFS EXDEV EACCES EPERM";
                fixture.refused(&policy, errors, args).await;
            }
            fixture.reset();
            fixture.allowed(&policy, &["rename", "@out", "@gone"]).await;
            fixture.allowed(&policy, &["mkdir", "@aside/.git"]).await;
            let errors = "EBUSY EROFS EXDEV EACCES EPERM";
            fixture
                .refused(&policy, errors, &["mkdir", "@work/.codex"])
                .await;
            fixture
                .refused(&policy, errors, &["write", "@work/.git/config"])
                .await;
            fixture.reset();
        }
    }
}

/// The same with the stock client's policy, if the workspace is in a temporary directory.
async fn workspace_in_a_temporary_directory_cannot_be_moved(fixture: &mut SandboxFixture) {
    let temporary = tempfile::TempDir::new_in("/tmp").unwrap();
    let work = temporary.path().join("work");
    fs::create_dir(&work).unwrap();
    fixture.give(temporary.path());
    let mut policy = SandboxPolicy::new(fixture, FilePolicy::Stock, NetworkPolicy::Restricted);
    let uri = crate::fs_fixture::uri(&work);
    policy.sandbox["cwd"] = json!(uri);
    policy.sandbox["workspaceRoots"] = json!([uri]);
    let (work, target) = (work.to_str().unwrap(), temporary.path().join("gone"));
    let target = target.to_str().unwrap();
    let errors = "EBUSY EROFS EXDEV EACCES EPERM";
    fixture
        .refused(&policy, errors, &["mkdir", &format!("{work}/.git")])
        .await;
    fixture
        .refused(&policy, errors, &["rename", work, target])
        .await;
    fixture.allowed(&policy, &["mkdir", target]).await;
    fixture
        .refused(&policy, errors, &["exchange", work, target])
        .await;
    fixture
        .allowed(&policy, &["create", &format!("{work}/file")])
        .await;
    fixture
        .refused(&policy, errors, &["mkdir", &format!("{work}/.git")])
        .await;
}
