//! What cannot be read: what a narrow policy leaves out, and what is denied.

use serde_json::json;

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy, path, special},
};

as_every_user!(
    what_is_not_listed_is_not_there,
    what_is_denied_cannot_be_read,
    what_a_glob_denies_cannot_be_read,
    a_denied_directory_may_hold_a_writable_one,
    an_approved_root_write_keeps_denied_reads,
    a_denied_path_cannot_be_moved_into_reach,
    a_command_runs_in_its_directory_or_not_at_all,
);

/// The policy that the stock client sends after a person approved an escalation under a profile with
/// denied reads.
fn escalated(ground: &Ground, network: Network) -> Policy {
    let mut entries = vec![
        special("root", "write"),
        path(&ground.uri("out"), "deny"),
        json!({"path": {"type": "glob_pattern", "pattern": "**/*.secret"}, "access": "deny"}),
    ];
    let names = [".git", ".agents", ".codex", ".aws"];
    entries.extend(names.map(|name| path(&format!("file:///{name}"), "write")));
    let mut policy = Policy::of(ground, "escalated", json!(entries), network);
    policy.sandbox["sandboxOverride"] = json!("escalatedSandboxWithRestrictions");
    policy
}

async fn an_approved_root_write_keeps_denied_reads(ground: &mut Ground) {
    let info = ground.client.call("environment/info", json!({})).await;
    let name = "linuxApprovedRootWritePreservesRestrictions";
    assert_eq!(info["capabilities"][name], true, "{info}");
    let secret = ground.path("work/a.secret");
    std::fs::write(&secret, "text").unwrap();
    ground.give(&secret);
    let server = ground.server.pid().to_string();
    let out = ground.text("out/file");
    for network in Network::ALL {
        let policy = escalated(ground, network);
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
            ground.refused(&policy, "EACCES ENOENT", &args).await;
        }
        // What is not denied can be written, wherever it is.
        ground.allowed(&policy, &["write", "@work/file"]).await;
        ground.allowed(&policy, &["create", "@aside/new"]).await;
        ground.allowed(&policy, &["mkdir", "@work/.codex"]).await;
        std::fs::remove_dir(ground.path("work/.codex")).unwrap();
        // Neither the kernel nor a disk leads to it.
        for file in [
            "/proc/sys/kernel/core_pattern",
            "/proc/sysrq-trigger",
            "/sys/kernel/uevent_helper",
            "/dev/vda",
            "/dev/sda",
            "/dev/mem",
        ] {
            let errors = "EROFS EACCES EPERM ENOENT";
            ground
                .refused(&policy, errors, &["open-for-write", file])
                .await;
        }
        for probe in ["clone-newuser", "mount-bind", "open-tree", "open-tree-attr"] {
            ground.refused(&policy, "EPERM ENOSYS", &[probe]).await;
        }
        ground.refused(&policy, "EPERM", &["umount", "@out"]).await;
        ground
            .refused(&policy, "EPERM EROFS EACCES", &["mknod", "@work/device"])
            .await;
        ground.reset();
        std::fs::write(&secret, "text").unwrap();
        ground.give(&secret);
    }
}

/// The stock server runs such a command in `/`, where its relative paths name other files.
async fn a_command_runs_in_its_directory_or_not_at_all(ground: &mut Ground) {
    for tty in [false, true] {
        let policy = Policy::new(ground, Kind::Narrow, Network::Restricted);
        let mut params = ground.params(Some(&policy), &["list", "."]);
        params["cwd"] = json!(ground.uri("out"));
        params["tty"] = json!(tty);
        let start = "process/start";
        let message = ground.client.expect_error(-32603, start, params).await;
        let expected = format!("`{}` under the sandbox policy", ground.text("out"));
        assert!(message.contains(&expected), "{message}");
    }
}

async fn a_denied_path_cannot_be_moved_into_reach(ground: &mut Ground) {
    let before = ground.snapshot("out");
    for network in Network::ALL {
        let policy = escalated(ground, network);
        let errors = "EACCES EBUSY EXDEV EROFS EPERM ENOENT ENOTEMPTY";
        for args in [
            &["rename", "@out", "@moved"][..],
            &["exchange", "@out", "@aside"],
            &["link", "@out/file", "@work/linked"],
            &["rename", "@out/file", "@work/taken"],
            // The directory that holds it cannot move away with it either.
            &["rename", "@", "@../moved-place"],
            &["rmdir", "@out"],
            &["chmod", "@out"],
            &["create", "@out/new"],
            &["unlink", "@out/file"],
        ] {
            ground.refused(&policy, errors, args).await;
        }
        ground.unchanged("out", &before, "escalated");
        ground.reset();
    }
}

async fn what_is_not_listed_is_not_there(ground: &mut Ground) {
    let server = ground.server.pid().to_string();
    let out = ground.text("out/file");
    for network in Network::ALL {
        let policy = Policy::new(ground, Kind::Narrow, network);
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
            ground.refused(&policy, "ENOENT EACCES", &args).await;
        }
        // Only the way to the workspace is there.
        ground.says(Some(&policy), "ok work", &["list", "@"]).await;
        ground
            .refused(&policy, "EROFS EACCES", &["create", "@new"])
            .await;
        ground
            .says(Some(&policy), "ok inside", &["read", "@work/file"])
            .await;
        ground.allowed(&policy, &["stat", "/usr/bin/env"]).await;
        ground.allowed(&policy, &["write", "@work/file"]).await;
        ground.reset();
    }
    ground
        .says(None, "ok outside", &["read", "@out/file"])
        .await;
}

async fn what_is_denied_cannot_be_read(ground: &mut Ground) {
    for network in Network::ALL {
        let policy = Policy::new(ground, Kind::Denied, network);
        for args in [
            ["read", "@out/file"],
            ["list", "@out"],
            ["read", "@work/to-file"],
            ["read", "/proc/self/cwd/../out/file"],
        ] {
            ground.refused(&policy, "EACCES ENOENT", &args).await;
        }
        // It cannot be made readable again, by its owner neither.
        ground
            .refused(
                &policy,
                "EACCES EROFS EPERM EXDEV EBUSY",
                &["rename", "@out", "@work/x"],
            )
            .await;
        ground
            .refused(&policy, "EROFS EPERM", &["chmod", "@out"])
            .await;
        ground.refused(&policy, "EPERM", &["umount", "@out"]).await;
        let entries = json!([
            special("root", "write"),
            path(&ground.uri("out/file"), "deny")
        ]);
        let file = Policy::of(ground, "a denied file", entries, network);
        ground
            .refused(&file, "EACCES ENOENT", &["read", "@out/file"])
            .await;
        ground
            .refused(&file, "EACCES EROFS", &["write", "@out/file"])
            .await;
        ground
            .refused(
                &file,
                "EBUSY EROFS EXDEV",
                &["rename", "@out/file", "@out/x"],
            )
            .await;
        ground
            .refused(
                &file,
                "EXDEV EACCES EROFS EPERM",
                &["link", "@out/file", "@out/x"],
            )
            .await;
        ground
            .refused(&file, "EBUSY EROFS", &["unlink", "@out/file"])
            .await;
        ground
            .says(Some(&file), "ok x", &["read", "@out/dir/inner"])
            .await;
    }
}

async fn what_a_glob_denies_cannot_be_read(ground: &mut Ground) {
    for network in Network::ALL {
        for name in ["work/a.secret", "work/dir/.b.secret", "work/open"] {
            let path = ground.path(name);
            std::fs::write(&path, "text").unwrap();
            ground.give(&path);
        }
        std::os::unix::fs::symlink("open", ground.path("work/link.secret")).unwrap();
        let policy = Policy::new(ground, Kind::Denied, network);
        for name in [
            "@work/a.secret",
            "@work/dir/.b.secret",
            "@work/link.secret",
            // Where a denied link points to is denied, too.
            "@work/open",
        ] {
            ground
                .refused(&policy, "EACCES ENOENT", &["read", name])
                .await;
            ground
                .refused(&policy, "EACCES EROFS", &["write", name])
                .await;
            ground.says(None, "ok text", &["read", name]).await;
        }
        let moved = &["rename", "@work/a.secret", "@work/b"];
        ground.refused(&policy, "EBUSY EROFS EXDEV", moved).await;
        ground
            .says(Some(&policy), "ok inside", &["read", "@work/file"])
            .await;
        ground.reset();
    }
}

async fn a_denied_directory_may_hold_a_writable_one(ground: &mut Ground) {
    for network in Network::ALL {
        let entries = json!([
            special("root", "read"),
            path(&ground.uri("out"), "deny"),
            path(&ground.uri("out/dir"), "write"),
        ]);
        let policy = Policy::of(ground, "writable in denied", entries, network);
        ground.allowed(&policy, &["write", "@out/dir/inner"]).await;
        ground.allowed(&policy, &["create", "@out/dir/new"]).await;
        ground
            .refused(&policy, "EACCES ENOENT", &["read", "@out/file"])
            .await;
        ground
            .refused(&policy, "EACCES EROFS", &["create", "@out/new"])
            .await;
        ground.reset();
    }
}
