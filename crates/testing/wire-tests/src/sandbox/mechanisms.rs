//! Servers restricted to one mechanism: policies that it expresses are enforced, others are
//! refused.

use std::{fs, path::Path};

use serde_json::Value;

use super::{
    SandboxFixture, ServerUser,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy, path, special},
};
use crate::fs_fixture::uri;

const USERS: [ServerUser; 2] = [ServerUser::Same, ServerUser::Ordinary];

/// Starts a probe that must be refused and returns the message.
async fn refusal(fixture: &mut SandboxFixture, policy: &SandboxPolicy) -> String {
    let params = fixture.params(Some(policy), &["write", "@work/file"]);
    let start = "process/start";
    fixture.client.expect_error(-32602, start, params).await
}

#[tokio::test]
async fn landlock_alone_enforces_allow_only_policies() {
    for user in USERS {
        let mut fixture =
            SandboxFixture::with_flags(user, &["--sandbox-mechanism", "landlock"]).await;
        for network in NetworkPolicy::ALL {
            let policy = SandboxPolicy::new(&fixture, FilePolicy::ReadOnly, network);
            fixture
                .refused(&policy, "EACCES", &["write", "@work/file"])
                .await;
            fixture
                .refused(&policy, "EROFS", &["chmod", "@work/file"])
                .await;
            fixture
                .says(Some(&policy), "ok inside", &["read", "@work/file"])
                .await;
        }
        let restricted =
            SandboxPolicy::new(&fixture, FilePolicy::ReadOnly, NetworkPolicy::Restricted);
        fixture
            .refused(&restricted, "EPERM", &["connect", "127.0.0.1", "9"])
            .await;
        for kind in [
            FilePolicy::Workspace,
            FilePolicy::Narrow,
            FilePolicy::Denied,
            FilePolicy::Carved,
        ] {
            let policy = SandboxPolicy::new(&fixture, kind, NetworkPolicy::Enabled);
            let text = refusal(&mut fixture, &policy).await;
            assert!(text.contains("Landlock"), "{text}");
        }
        fixture.assert_no_faults();
    }
}

#[tokio::test]
async fn bubblewrap_enforces_policies_that_need_no_created_paths() {
    for user in USERS {
        let mut fixture =
            SandboxFixture::with_flags(user, &["--sandbox-mechanism", "bubblewrap"]).await;
        let workspace =
            SandboxPolicy::new(&fixture, FilePolicy::Workspace, NetworkPolicy::Restricted);
        if !Path::new("/usr/bin/bwrap").exists() {
            let text = refusal(&mut fixture, &workspace).await;
            assert!(text.contains("bwrap is not installed"), "{text}");
            continue;
        }
        // Missing paths cannot be protected without creating them.
        let text = refusal(&mut fixture, &workspace).await;
        assert!(text.contains("would have to create"), "{text}");
        for name in [".agents", ".aws", ".codex"] {
            fs::create_dir(fixture.path("work").join(name)).unwrap();
        }
        fixture.give(&fixture.path("work"));
        fixture.allowed(&workspace, &["write", "@work/file"]).await;
        fixture
            .refused(&workspace, "EROFS", &["create", "@work/.git/new"])
            .await;
        fixture
            .refused(&workspace, "EROFS", &["write", "@out/file"])
            .await;
        fixture
            .refused(&workspace, "EPERM", &["connect", "127.0.0.1", "9"])
            .await;
        fixture
            .refused(&workspace, "EPERM", &["clone-newuser"])
            .await;
        let denied = SandboxPolicy::new(&fixture, FilePolicy::Denied, NetworkPolicy::Enabled);
        fixture
            .refused(&denied, "EACCES ENOENT", &["read", "@out/file"])
            .await;
        fixture
            .says(Some(&denied), "ok x", &["read", "@work/dir/inner"])
            .await;
        let narrow = SandboxPolicy::new(&fixture, FilePolicy::Narrow, NetworkPolicy::Restricted);
        fixture
            .refused(&narrow, "ENOENT", &["read", "@out/file"])
            .await;
        fixture.assert_no_faults();
    }
}

#[tokio::test]
async fn bubblewrap_leaves_no_kernel_setting_writable() {
    for user in USERS {
        let mut fixture =
            SandboxFixture::with_flags(user, &["--sandbox-mechanism", "bubblewrap"]).await;
        if !Path::new("/usr/bin/bwrap").exists() {
            return;
        }
        // Missing directories would make the policies refused.
        for name in [".agents", ".aws", ".codex"] {
            fs::create_dir(fixture.path("work").join(name)).unwrap();
        }
        let names = [".agents", ".aws", ".codex", ".git"].map(|name| format!("file:///{name}"));
        let mut everything = vec![special("root", "write"), path(&fixture.uri("out"), "deny")];
        everything.extend(names.iter().map(|name| path(name, "write")));
        let everything = Value::Array(everything);
        for policy in [
            SandboxPolicy::new(&fixture, FilePolicy::ReadOnly, NetworkPolicy::Enabled),
            SandboxPolicy::new(&fixture, FilePolicy::Narrow, NetworkPolicy::Restricted),
            SandboxPolicy::of(&fixture, "root write", everything, NetworkPolicy::Enabled),
        ] {
            // Opened and closed without writing.
            for file in [
                "/proc/sys/kernel/core_pattern",
                "/proc/sys/kernel/modprobe",
                "/proc/sys/vm/swappiness",
                "/proc/sys/fs/suid_dumpable",
                "/proc/sysrq-trigger",
                "/proc/irq/default_smp_affinity",
            ] {
                let errors = "EROFS EACCES EPERM ENOENT";
                fixture
                    .refused(&policy, errors, &["open-for-write", file])
                    .await;
            }
            for device in ["/dev/vda", "/dev/kmsg", "/dev/loop0"] {
                fixture
                    .refused(&policy, "ENOENT EACCES", &["open-for-write", device])
                    .await;
            }
            fixture
                .allowed(&policy, &["open-for-write", "/dev/null"])
                .await;
        }
        fixture.assert_no_faults();
    }
}

#[tokio::test]
async fn bubblewrap_without_a_pid_namespace_is_refused() {
    let flags = [
        "--sandbox-mechanism",
        "bubblewrap",
        "--linux-sandbox-pid-namespace",
        "inherit",
    ];
    let mut fixture = SandboxFixture::with_flags(ServerUser::Same, &flags).await;
    let policy = SandboxPolicy::new(&fixture, FilePolicy::ReadOnly, NetworkPolicy::Enabled);
    let text = refusal(&mut fixture, &policy).await;
    assert!(text.contains("bubblewrap"), "{text}");
}

#[tokio::test]
async fn policy_entry_does_not_expose_host_devices_or_processes() {
    for user in USERS {
        let mut fixture = SandboxFixture::new(user).await;
        let visible = [
            uri(fixture.probe()),
            fixture.uri("work"),
            "file:///dev".to_owned(),
            "file:///proc".to_owned(),
        ];
        let mut entries = vec![special("minimal", "read")];
        entries.extend(visible.iter().map(|visible| path(visible, "read")));
        let entries = Value::Array(entries);
        let policy = SandboxPolicy::of(
            &fixture,
            "devices and processes",
            entries,
            NetworkPolicy::Enabled,
        );
        let server = fixture.server.pid().to_string();
        fixture.refused(&policy, "ENOENT", &["see", &server]).await;
        for device in ["/dev/kmsg", "/dev/fuse", "/dev/loop0"] {
            fixture
                .refused(&policy, "ENOENT EACCES", &["open-for-write", device])
                .await;
        }
        fixture
            .allowed(&policy, &["open-for-write", "/dev/null"])
            .await;
        fixture.assert_no_faults();
    }
}

#[tokio::test]
async fn inherited_procfs_shows_processes_that_stay_unreachable() {
    for user in USERS {
        let flags = ["--linux-sandbox-pid-namespace", "inherit"];
        let mut fixture = SandboxFixture::with_flags(user, &flags).await;
        let server = fixture.server.pid().to_string();
        for kind in [
            FilePolicy::ReadOnly,
            FilePolicy::Workspace,
            FilePolicy::Narrow,
        ] {
            let policy = SandboxPolicy::new(&fixture, kind, NetworkPolicy::Restricted);
            fixture
                .refused(&policy, "EPERM", &["kill", &server, "0"])
                .await;
            fixture
                .refused(&policy, "EPERM", &["prlimit", &server])
                .await;
            fixture
                .refused(&policy, "EPERM EACCES", &["ptrace", &server])
                .await;
        }
        let policy = SandboxPolicy::new(&fixture, FilePolicy::Workspace, NetworkPolicy::Restricted);
        fixture.allowed(&policy, &["see", &server]).await;
        fixture.allowed(&policy, &["create", "@work/new"]).await;
        fixture
            .refused(&policy, "EROFS", &["mkdir", "@work/.codex"])
            .await;
        fixture.assert_no_faults();
    }
}
