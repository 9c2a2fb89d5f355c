//! Unreadable paths: those that a narrow policy leaves out, and denied ones.

use serde_json::json;

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy, path, special},
};

as_every_user!(
    unlisted_paths_do_not_exist,
    denied_paths_cannot_be_read,
    paths_denied_by_a_glob_cannot_be_read,
    denied_directory_may_contain_a_writable_one,
    approved_root_write_keeps_denied_reads,
    denied_path_cannot_be_moved_to_a_readable_place,
    command_runs_in_its_working_directory_or_fails,
);

/// Returns the policy that the stock client sends after an approved escalation under a profile with
/// denied reads.
fn escalated(fixture: &SandboxFixture, network: NetworkPolicy) -> SandboxPolicy {
    let mut entries = vec![
        special("root", "write"),
        path(&fixture.uri("out"), "deny"),
        json!({"path": {"type": "glob_pattern", "pattern": "**/*.secret"}, "access": "deny"}),
    ];
    let names = [".git", ".agents", ".codex", ".aws"];
    entries.extend(names.map(|name| path(&format!("file:///{name}"), "write")));
    let mut policy = SandboxPolicy::of(fixture, "escalated", json!(entries), network);
    policy.sandbox["sandboxOverride"] = json!("escalatedSandboxWithRestrictions");
    policy
}

async fn approved_root_write_keeps_denied_reads(fixture: &mut SandboxFixture) {
    let info = fixture.client.call("environment/info", json!({})).await;
    let name = "linuxApprovedRootWritePreservesRestrictions";
    assert_eq!(info["capabilities"][name], true, "{info}");
    let secret = fixture.path("work/a.secret");
    std::fs::write(&secret, "text").unwrap();
    fixture.give(&secret);
    let server = fixture.server.pid().to_string();
    let out = fixture.text("out/file");
    for network in NetworkPolicy::ALL {
        let policy = escalated(fixture, network);
        for args in [
            ["read", "@out/file"],
            ["list", "@out"],
            ["read", "@work/a.secret"],
            ["read", "@work/to-file"],
            ["list", "@work/to-out"],
            ["read", "/proc/self/cwd/../out/file"],
            ["read", &format!("/proc/self/root{out}")],
            ["read", &format!("/proc/1/root{out}")],
            ["read", &format!("/proc/{server}/root{out}")],
        ] {
            fixture.refused(&policy, "EACCES ENOENT", &args).await;
        }
        // Paths that are not denied are writable everywhere.
        fixture.allowed(&policy, &["write", "@work/file"]).await;
        fixture.allowed(&policy, &["create", "@aside/new"]).await;
        fixture.allowed(&policy, &["mkdir", "@work/.codex"]).await;
        std::fs::remove_dir(fixture.path("work/.codex")).unwrap();
        // Neither kernel interfaces nor block devices expose it.
        for file in [
            "/proc/sys/kernel/core_pattern",
            "/proc/sysrq-trigger",
            "/sys/kernel/uevent_helper",
            "/dev/vda",
            "/dev/sda",
            "/dev/mem",
        ] {
            let errors = "EROFS EACCES EPERM ENOENT";
            fixture
                .refused(&policy, errors, &["open-for-write", file])
                .await;
        }
        for probe in ["clone-newuser", "mount-bind", "open-tree", "open-tree-attr"] {
            fixture.refused(&policy, "EPERM ENOSYS", &[probe]).await;
        }
        fixture.refused(&policy, "EPERM", &["umount", "@out"]).await;
        fixture
            .refused(&policy, "EPERM EROFS EACCES", &["mknod", "@work/device"])
            .await;
        fixture.reset();
        std::fs::write(&secret, "text").unwrap();
        fixture.give(&secret);
    }
}

/// The stock server runs such a command in `/`, where its relative paths name other files.
async fn command_runs_in_its_working_directory_or_fails(fixture: &mut SandboxFixture) {
    for tty in [false, true] {
        let policy = SandboxPolicy::new(fixture, FilePolicy::Narrow, NetworkPolicy::Restricted);
        let mut params = fixture.params(Some(&policy), &["list", "."]);
        params["cwd"] = json!(fixture.uri("out"));
        params["tty"] = json!(tty);
        let start = "process/start";
        let message = fixture.client.expect_error(-32603, start, params).await;
        let expected = format!("`{}` under the sandbox policy", fixture.text("out"));
        assert!(message.contains(&expected), "{message}");
    }
}

async fn denied_path_cannot_be_moved_to_a_readable_place(fixture: &mut SandboxFixture) {
    let before = fixture.snapshot("out");
    for network in NetworkPolicy::ALL {
        let policy = escalated(fixture, network);
        let errors = "EACCES EBUSY EXDEV EROFS EPERM ENOENT ENOTEMPTY";
        for args in [
            &["rename", "@out", "@moved"][..],
            &["exchange", "@out", "@aside"],
            &["link", "@out/file", "@work/linked"],
            &["rename", "@out/file", "@work/taken"],
            // Its parent directory cannot be moved either.
            &["rename", "@", "@../moved-place"],
            &["rmdir", "@out"],
            &["chmod", "@out"],
            &["create", "@out/new"],
            &["unlink", "@out/file"],
        ] {
            fixture.refused(&policy, errors, args).await;
        }
        fixture.unchanged("out", &before, "escalated");
        fixture.reset();
    }
}

async fn unlisted_paths_do_not_exist(fixture: &mut SandboxFixture) {
    let server = fixture.server.pid().to_string();
    let out = fixture.text("out/file");
    for network in NetworkPolicy::ALL {
        let policy = SandboxPolicy::new(fixture, FilePolicy::Narrow, network);
        for args in [
            ["read", "@out/file"],
            ["list", "@out"],
            ["stat", "@out"],
            ["read", "@work/to-file"],
            ["list", "@work/to-out"],
            ["read", "../out/file"],
            ["stat", "/root"],
            ["stat", "/home"],
            ["read", &format!("/proc/self/root{out}")],
            ["read", &format!("/proc/1/root{out}")],
            ["read", &format!("/proc/{server}/root{out}")],
            ["read", &format!("/proc/{server}/cwd/../x")],
        ] {
            fixture.refused(&policy, "ENOENT EACCES", &args).await;
        }
        // Only the ancestors of the workspace exist.
        fixture.says(Some(&policy), "ok work", &["list", "@"]).await;
        fixture
            .refused(&policy, "EROFS EACCES", &["create", "@new"])
            .await;
        fixture
            .says(Some(&policy), "ok inside", &["read", "@work/file"])
            .await;
        fixture.allowed(&policy, &["stat", "/usr/bin/env"]).await;
        fixture.allowed(&policy, &["write", "@work/file"]).await;
        fixture.reset();
    }
    fixture
        .says(None, "ok outside", &["read", "@out/file"])
        .await;
}

async fn denied_paths_cannot_be_read(fixture: &mut SandboxFixture) {
    for network in NetworkPolicy::ALL {
        let policy = SandboxPolicy::new(fixture, FilePolicy::Denied, network);
        for args in [
            ["read", "@out/file"],
            ["list", "@out"],
            ["read", "@work/to-file"],
            ["read", "/proc/self/cwd/../out/file"],
        ] {
            fixture.refused(&policy, "EACCES ENOENT", &args).await;
        }
        // It cannot be made readable again, even by its owner.
        fixture
            .refused(
                &policy,
                "EACCES EROFS EPERM EXDEV EBUSY",
                &["rename", "@out", "@work/x"],
            )
            .await;
        fixture
            .refused(&policy, "EROFS EPERM", &["chmod", "@out"])
            .await;
        fixture.refused(&policy, "EPERM", &["umount", "@out"]).await;
        let entries = json!([
            special("root", "write"),
            path(&fixture.uri("out/file"), "deny")
        ]);
        let file = SandboxPolicy::of(fixture, "a denied file", entries, network);
        fixture
            .refused(&file, "EACCES ENOENT", &["read", "@out/file"])
            .await;
        fixture
            .refused(&file, "EACCES EROFS", &["write", "@out/file"])
            .await;
        fixture
            .refused(
                &file,
                "EBUSY EROFS EXDEV",
                &["rename", "@out/file", "@out/x"],
            )
            .await;
        fixture
            .refused(
                &file,
                "EXDEV EACCES EROFS EPERM",
                &["link", "@out/file", "@out/x"],
            )
            .await;
        fixture
            .refused(&file, "EBUSY EROFS", &["unlink", "@out/file"])
            .await;
        fixture
            .says(Some(&file), "ok x", &["read", "@out/dir/inner"])
            .await;
    }
}

async fn paths_denied_by_a_glob_cannot_be_read(fixture: &mut SandboxFixture) {
    for network in NetworkPolicy::ALL {
        for name in ["work/a.secret", "work/dir/.b.secret", "work/open"] {
            let path = fixture.path(name);
            std::fs::write(&path, "text").unwrap();
            fixture.give(&path);
        }
        std::os::unix::fs::symlink("open", fixture.path("work/link.secret")).unwrap();
        let policy = SandboxPolicy::new(fixture, FilePolicy::Denied, network);
        for name in [
            "@work/a.secret",
            "@work/dir/.b.secret",
            "@work/link.secret",
            // The target of a denied symlink is denied as well.
            "@work/open",
        ] {
            fixture
                .refused(&policy, "EACCES ENOENT", &["read", name])
                .await;
            fixture
                .refused(&policy, "EACCES EROFS", &["write", name])
                .await;
            fixture.says(None, "ok text", &["read", name]).await;
        }
        let moved = &["rename", "@work/a.secret", "@work/b"];
        fixture.refused(&policy, "EBUSY EROFS EXDEV", moved).await;
        fixture
            .says(Some(&policy), "ok inside", &["read", "@work/file"])
            .await;
        fixture.reset();
    }
}

async fn denied_directory_may_contain_a_writable_one(fixture: &mut SandboxFixture) {
    for network in NetworkPolicy::ALL {
        let entries = json!([
            special("root", "read"),
            path(&fixture.uri("out"), "deny"),
            path(&fixture.uri("out/dir"), "write"),
        ]);
        let policy = SandboxPolicy::of(fixture, "writable in denied", entries, network);
        fixture.allowed(&policy, &["write", "@out/dir/inner"]).await;
        fixture.allowed(&policy, &["create", "@out/dir/new"]).await;
        fixture
            .refused(&policy, "EACCES ENOENT", &["read", "@out/file"])
            .await;
        fixture
            .refused(&policy, "EACCES EROFS", &["create", "@out/new"])
            .await;
        fixture.reset();
    }
}
