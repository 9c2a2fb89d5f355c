//! Metadata of a workspace: what configures the tools that run later, with more rights.

use std::fs;

use serde_json::json;

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy, path, special},
};

as_every_user!(
    missing_metadata_is_made_in_no_way,
    other_names_are_made_in_every_way,
    existing_metadata_is_read_only,
    metadata_is_protected_at_the_root_only,
    the_directory_behind_a_git_file_is_read_only,
    a_link_cannot_be_exchanged_for_metadata,
    named_metadata_can_be_written,
    a_workspace_cannot_be_moved_away,
    a_workspace_among_temporary_files_cannot_be_moved_away,
);

const NAMES: [&str; 4] = [".git", ".agents", ".codex", ".aws"];

/// Ways that a sandbox may refuse altogether: sockets and devices, and links of `/proc` that only the
/// caller itself can follow.
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

async fn missing_metadata_is_made_in_no_way(ground: &mut Ground) {
    fs::remove_dir_all(ground.path("work/.git")).unwrap();
    let before = ground.snapshot("work");
    for kind in [Kind::Workspace, Kind::Stock, Kind::Narrow, Kind::Denied] {
        for network in Network::ALL {
            let policy = Policy::new(ground, kind, network);
            for name in NAMES {
                if kind != Kind::Workspace && name != ".git" {
                    continue;
                }
                // What is needed on the way is made in the workspace, as nothing else is writable.
                let aside = ground.path("work/aside");
                fs::create_dir(&aside).unwrap();
                ground.give(&aside);
                let args = ["create-many-ways", "@work", name, "@work/aside"];
                let text = ground.run(Some(&policy), &args).await;
                for (way, verdict) in ways(&text) {
                    if !verdict.starts_with("refused ") || verdict.ends_with("EEXIST") {
                        ground.fault(format!("{}: {name} by {way}: {verdict}", policy.name));
                    }
                }
                let int80 = format!("@work/{name}");
                let errors = "EPERM ENOSYS EACCES EROFS SIGSYS SIGSEGV";
                ground
                    .refused(&policy, errors, &["int80-mkdir", &int80])
                    .await;
                fs::remove_dir_all(&aside).unwrap();
            }
            let name = policy.name.clone();
            ground.unchanged("work", &before, &name);
        }
    }
}

async fn other_names_are_made_in_every_way(ground: &mut Ground) {
    let kinds = [
        None,
        Some(Kind::Workspace),
        Some(Kind::Stock),
        Some(Kind::Narrow),
        Some(Kind::Carved),
        Some(Kind::Denied),
    ];
    for kind in kinds {
        for network in Network::ALL {
            let policy = kind.map(|kind| Policy::new(ground, kind, network));
            let name = policy.as_ref().map_or("outside", |p| p.name.as_str());
            let aside = ground.path("work/aside");
            fs::create_dir(&aside).unwrap();
            ground.give(&aside);
            for (directory, made) in [("@work", ".gitx"), ("@work/dir", ".git")] {
                let args = ["create-many-ways", directory, made, "@work/aside"];
                let text = ground.run(policy.as_ref(), &args).await;
                for (way, verdict) in ways(&text) {
                    let optional = policy.is_some() && OPTIONAL.contains(&way);
                    if verdict != "ok" && !optional {
                        ground.fault(format!("{name}: {made} by {way}: {verdict}"));
                    }
                }
            }
            ground.reset();
        }
    }
}

async fn existing_metadata_is_read_only(ground: &mut Ground) {
    for name in [".agents", ".codex", ".aws"] {
        fs::create_dir(ground.path("work").join(name)).unwrap();
        fs::write(ground.path("work").join(name).join("config"), "x").unwrap();
    }
    ground.give(&ground.path("work"));
    let before = ground.snapshot("work");
    for kind in [Kind::Workspace, Kind::Stock, Kind::Narrow, Kind::Denied] {
        for network in Network::ALL {
            let policy = Policy::new(ground, kind, network);
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
                    ground
                        .refused(&policy, "EROFS EXDEV EBUSY ENOTEMPTY", args)
                        .await;
                }
                ground.allowed(&policy, &["stat", &config]).await;
            }
            let name = policy.name.clone();
            ground.unchanged("work", &before, &name);
        }
    }
}

async fn metadata_is_protected_at_the_root_only(ground: &mut Ground) {
    let policy = Policy::new(ground, Kind::Workspace, Network::Restricted);
    ground.allowed(&policy, &["mkdir", "@work/dir/.git"]).await;
    ground
        .allowed(&policy, &["create", "@work/dir/.git/config"])
        .await;
    ground
        .allowed(&policy, &["mkdir", "@work/dir/.codex"])
        .await;
    // A directory that holds some is not moved to where it would be the root's own.
    ground
        .refused(
            &policy,
            "EBUSY EXDEV EROFS EPERM EACCES",
            &["rename", "@work/dir/.git", "@work/.codex"],
        )
        .await;
    // Where all may be written, nothing is protected.
    let carved = Policy::new(ground, Kind::Carved, Network::Restricted);
    ground.allowed(&carved, &["mkdir", "@work/.codex"]).await;
}

async fn the_directory_behind_a_git_file_is_read_only(ground: &mut Ground) {
    fs::remove_dir_all(ground.path("work/.git")).unwrap();
    for name in ["work/store", "work/plain"] {
        fs::create_dir(ground.path(name)).unwrap();
        fs::write(ground.path(name).join("config"), "x").unwrap();
    }
    let text = format!("gitdir: {}\n", ground.text("work/store"));
    fs::write(ground.path("work/.git"), text).unwrap();
    ground.give(&ground.path("work"));
    for kind in [Kind::Workspace, Kind::Stock, Kind::Narrow] {
        let policy = Policy::new(ground, kind, Network::Restricted);
        for args in [
            &["write", "@work/.git"][..],
            &["unlink", "@work/.git"],
            &["rename", "@work/.git", "@work/moved"],
            &["rename", "@work/file", "@work/.git"],
            &["write", "@work/store/config"],
            &["create", "@work/store/new"],
            &["rename", "@work/store", "@work/moved"],
        ] {
            ground.refused(&policy, "EROFS EXDEV EBUSY", args).await;
        }
        ground
            .allowed(&policy, &["write", "@work/plain/config"])
            .await;
    }
}

async fn a_link_cannot_be_exchanged_for_metadata(ground: &mut Ground) {
    fs::remove_dir_all(ground.path("work/.git")).unwrap();
    fs::create_dir(ground.path("work/store")).unwrap();
    fs::write(ground.path("work/store/config"), "x").unwrap();
    std::os::unix::fs::symlink("store", ground.path("work/.git")).unwrap();
    ground.give(&ground.path("work"));
    let before = ground.snapshot("work");
    for kind in [Kind::Workspace, Kind::Stock, Kind::Narrow] {
        let policy = Policy::new(ground, kind, Network::Restricted);
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
            ground.refused(&policy, errors, args).await;
        }
        let name = policy.name.clone();
        ground.unchanged("work", &before, &name);
    }
}

async fn named_metadata_can_be_written(ground: &mut Ground) {
    for network in Network::ALL {
        let entries = json!([
            special("root", "read"),
            special("project_roots", "write"),
            path(&ground.uri("work/.git"), "write"),
        ]);
        let policy = Policy::of(ground, "git is writable", entries, network);
        ground
            .allowed(&policy, &["write", "@work/.git/config"])
            .await;
        ground.allowed(&policy, &["create", "@work/.git/new"]).await;
        let other = &["mkdir", "@work/.codex"];
        ground.refused(&policy, "EROFS EPERM EACCES", other).await;
        ground.reset();
    }
}

/// Where more than the workspace can be written, the workspace could be moved, and another one with
/// metadata of its own put in its place.
async fn a_workspace_cannot_be_moved_away(ground: &mut Ground) {
    let above = |ground: &Ground| path(&ground.uri(""), "write");
    for metadata in ["there", "missing"] {
        for network in Network::ALL {
            let entries = json!([
                special("root", "read"),
                above(ground),
                special("project_roots", "write"),
            ]);
            let name = format!("workspace in a writable directory, metadata {metadata}");
            let policy = Policy::of(ground, &name, entries, network);
            for args in [
                &["rename", "@work", "@gone"][..],
                &["exchange", "@work", "@aside"],
            ] {
                ground.reset();
                if metadata == "missing" {
                    fs::remove_dir_all(ground.path("work/.git")).unwrap();
                }
                let errors = "EBUSY EROFS EXDEV EACCES EPERM";
                ground.refused(&policy, errors, args).await;
            }
            ground.reset();
            ground.allowed(&policy, &["rename", "@out", "@gone"]).await;
            ground.allowed(&policy, &["mkdir", "@aside/.git"]).await;
            let errors = "EBUSY EROFS EXDEV EACCES EPERM";
            ground
                .refused(&policy, errors, &["mkdir", "@work/.codex"])
                .await;
            ground
                .refused(&policy, errors, &["write", "@work/.git/config"])
                .await;
            ground.reset();
        }
    }
}

/// The same as the stock client asks for it, if the workspace is in the place for temporary files.
async fn a_workspace_among_temporary_files_cannot_be_moved_away(ground: &mut Ground) {
    let temporary = tempfile::TempDir::new_in("/tmp").unwrap();
    let work = temporary.path().join("work");
    fs::create_dir(&work).unwrap();
    ground.give(temporary.path());
    let mut policy = Policy::new(ground, Kind::Stock, Network::Restricted);
    let uri = crate::scene::uri(&work);
    policy.sandbox["cwd"] = json!(uri);
    policy.sandbox["workspaceRoots"] = json!([uri]);
    let (work, gone) = (work.to_str().unwrap(), temporary.path().join("gone"));
    let gone = gone.to_str().unwrap();
    let errors = "EBUSY EROFS EXDEV EACCES EPERM";
    ground
        .refused(&policy, errors, &["mkdir", &format!("{work}/.git")])
        .await;
    ground
        .refused(&policy, errors, &["rename", work, gone])
        .await;
    ground.allowed(&policy, &["mkdir", gone]).await;
    ground
        .refused(&policy, errors, &["exchange", work, gone])
        .await;
    ground
        .allowed(&policy, &["create", &format!("{work}/file")])
        .await;
    ground
        .refused(&policy, errors, &["mkdir", &format!("{work}/.git")])
        .await;
}
