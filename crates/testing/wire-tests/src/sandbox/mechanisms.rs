//! Servers that may use one mechanism only: what it expresses is enforced, the rest is refused.

use std::{fs, path::Path};

use serde_json::Value;

use super::{
    ground::{Ground, User},
    policies::{Kind, Network, Policy, path, special},
};
use crate::scene::uri;

const USERS: [User; 2] = [User::Same, User::Ordinary];

/// Starts a probe that must not run; returns what is said.
async fn refusal(ground: &mut Ground, policy: &Policy) -> String {
    let params = ground.params(Some(policy), &["write", "@work/file"]);
    let start = "process/start";
    ground.client.expect_error(-32602, start, params).await
}

#[tokio::test]
async fn landlock_alone_enforces_what_only_allows() {
    for user in USERS {
        let mut ground = Ground::with_flags(user, &["--sandbox-mechanism", "landlock"]).await;
        for network in Network::ALL {
            let policy = Policy::new(&ground, Kind::ReadOnly, network);
            ground
                .refused(&policy, "EACCES", &["write", "@work/file"])
                .await;
            ground
                .refused(&policy, "EROFS", &["chmod", "@work/file"])
                .await;
            ground
                .says(Some(&policy), "ok inside", &["read", "@work/file"])
                .await;
        }
        let restricted = Policy::new(&ground, Kind::ReadOnly, Network::Restricted);
        ground
            .refused(&restricted, "EPERM", &["connect", "127.0.0.1", "9"])
            .await;
        for kind in [Kind::Workspace, Kind::Narrow, Kind::Denied, Kind::Carved] {
            let policy = Policy::new(&ground, kind, Network::Enabled);
            let text = refusal(&mut ground, &policy).await;
            assert!(text.contains("Landlock"), "{text}");
        }
        ground.settle();
    }
}

#[tokio::test]
async fn bubblewrap_enforces_what_needs_nothing_created() {
    for user in USERS {
        let mut ground = Ground::with_flags(user, &["--sandbox-mechanism", "bubblewrap"]).await;
        let workspace = Policy::new(&ground, Kind::Workspace, Network::Restricted);
        if !Path::new("/usr/bin/bwrap").exists() {
            let text = refusal(&mut ground, &workspace).await;
            assert!(text.contains("bwrap is not installed"), "{text}");
            continue;
        }
        // What is missing cannot be protected without creating it.
        let text = refusal(&mut ground, &workspace).await;
        assert!(text.contains("would have to create"), "{text}");
        for name in [".agents", ".aws", ".codex"] {
            fs::create_dir(ground.path("work").join(name)).unwrap();
        }
        ground.give(&ground.path("work"));
        ground.allowed(&workspace, &["write", "@work/file"]).await;
        ground
            .refused(&workspace, "EROFS", &["create", "@work/.git/new"])
            .await;
        ground
            .refused(&workspace, "EROFS", &["write", "@out/file"])
            .await;
        ground
            .refused(&workspace, "EPERM", &["connect", "127.0.0.1", "9"])
            .await;
        ground
            .refused(&workspace, "EPERM", &["clone-newuser"])
            .await;
        let denied = Policy::new(&ground, Kind::Denied, Network::Enabled);
        ground
            .refused(&denied, "EACCES ENOENT", &["read", "@out/file"])
            .await;
        ground
            .says(Some(&denied), "ok x", &["read", "@work/dir/inner"])
            .await;
        let narrow = Policy::new(&ground, Kind::Narrow, Network::Restricted);
        ground
            .refused(&narrow, "ENOENT", &["read", "@out/file"])
            .await;
        ground.settle();
    }
}

#[tokio::test]
async fn bubblewrap_leaves_no_setting_of_the_kernel_writable() {
    for user in USERS {
        let mut ground = Ground::with_flags(user, &["--sandbox-mechanism", "bubblewrap"]).await;
        if !Path::new("/usr/bin/bwrap").exists() {
            return;
        }
        // Missing ones would have the policies refused.
        for name in [".agents", ".aws", ".codex"] {
            fs::create_dir(ground.path("work").join(name)).unwrap();
        }
        let names = [".agents", ".aws", ".codex", ".git"].map(|name| format!("file:///{name}"));
        let mut everything = vec![special("root", "write"), path(&ground.uri("out"), "deny")];
        everything.extend(names.iter().map(|name| path(name, "write")));
        let everything = Value::Array(everything);
        for policy in [
            Policy::new(&ground, Kind::ReadOnly, Network::Enabled),
            Policy::new(&ground, Kind::Narrow, Network::Restricted),
            Policy::of(&ground, "root write", everything, Network::Enabled),
        ] {
            // Opened and closed again; nothing is written.
            for file in [
                "/proc/sys/kernel/core_pattern",
                "/proc/sys/kernel/modprobe",
                "/proc/sys/vm/swappiness",
                "/proc/sys/fs/suid_dumpable",
                "/proc/sysrq-trigger",
                "/proc/irq/default_smp_affinity",
            ] {
                let errors = "EROFS EACCES EPERM ENOENT";
                ground
                    .refused(&policy, errors, &["open-for-write", file])
                    .await;
            }
            for device in ["/dev/vda", "/dev/kmsg", "/dev/loop0"] {
                ground
                    .refused(&policy, "ENOENT EACCES", &["open-for-write", device])
                    .await;
            }
            ground
                .allowed(&policy, &["open-for-write", "/dev/null"])
                .await;
        }
        ground.settle();
    }
}

#[tokio::test]
async fn bubblewrap_without_a_namespace_of_processes_is_refused() {
    let flags = [
        "--sandbox-mechanism",
        "bubblewrap",
        "--linux-sandbox-pid-namespace",
        "inherit",
    ];
    let mut ground = Ground::with_flags(User::Same, &flags).await;
    let policy = Policy::new(&ground, Kind::ReadOnly, Network::Enabled);
    let text = refusal(&mut ground, &policy).await;
    assert!(text.contains("bubblewrap"), "{text}");
}

#[tokio::test]
async fn devices_and_processes_of_the_host_do_not_come_back_with_an_entry() {
    for user in USERS {
        let mut ground = Ground::new(user).await;
        let shown = [
            uri(ground.probe()),
            ground.uri("work"),
            "file:///dev".to_owned(),
            "file:///proc".to_owned(),
        ];
        let mut entries = vec![special("minimal", "read")];
        entries.extend(shown.iter().map(|shown| path(shown, "read")));
        let entries = Value::Array(entries);
        let policy = Policy::of(&ground, "devices and processes", entries, Network::Enabled);
        let server = ground.server.pid().to_string();
        ground.refused(&policy, "ENOENT", &["see", &server]).await;
        for device in ["/dev/kmsg", "/dev/fuse", "/dev/loop0"] {
            ground
                .refused(&policy, "ENOENT EACCES", &["open-for-write", device])
                .await;
        }
        ground
            .allowed(&policy, &["open-for-write", "/dev/null"])
            .await;
        ground.settle();
    }
}

#[tokio::test]
async fn inherited_processes_are_seen_and_out_of_reach() {
    for user in USERS {
        let flags = ["--linux-sandbox-pid-namespace", "inherit"];
        let mut ground = Ground::with_flags(user, &flags).await;
        let server = ground.server.pid().to_string();
        for kind in [Kind::ReadOnly, Kind::Workspace, Kind::Narrow] {
            let policy = Policy::new(&ground, kind, Network::Restricted);
            ground
                .refused(&policy, "EPERM", &["kill", &server, "0"])
                .await;
            ground
                .refused(&policy, "EPERM", &["prlimit", &server])
                .await;
            ground
                .refused(&policy, "EPERM EACCES", &["ptrace", &server])
                .await;
        }
        let policy = Policy::new(&ground, Kind::Workspace, Network::Restricted);
        ground.allowed(&policy, &["see", &server]).await;
        ground.allowed(&policy, &["create", "@work/new"]).await;
        ground
            .refused(&policy, "EROFS", &["mkdir", "@work/.codex"])
            .await;
        ground.settle();
    }
}
