//! Attempts to change files outside the writable roots: by path, symlink, rename, handle, or
//! through other processes.

use serde_json::json;

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy, path, special},
};

as_every_user!(
    nothing_outside_the_workspace_changes_without_network,
    nothing_outside_the_workspace_changes_with_network,
    every_change_works_without_a_sandbox,
    workspace_can_be_changed,
    read_only_policy_includes_the_workspace,
    read_only_subdirectory_of_the_workspace_is_protected,
    single_file_can_be_writable,
    temporary_directories_are_writable,
    directory_below_a_read_only_one_can_be_writable,
    parent_of_a_read_only_subdirectory_cannot_be_moved,
    files_are_not_reachable_through_other_processes,
);

/// Probes that change something outside; `@` marks names of the fixture.
const CHANGES: &[&[&str]] = &[
    &["write", "@out/file"],
    &["write", "@out/new"],
    &["append", "@out/file"],
    &["truncate", "@out/file"],
    &["create", "@out/new"],
    &["open-for-write", "@out/file"],
    &["mkdir", "@out/new"],
    &["symlink", "target", "@out/new"],
    &["fifo", "@out/new"],
    &["unlink", "@out/file"],
    &["rmdir", "@out/empty"],
    &["rename", "@out/file", "@out/renamed"],
    &["exchange", "@out/file", "@out/dir"],
    // Through symlinks.
    &["write", "@work/to-file"],
    &["append", "@work/to-file"],
    &["truncate", "@work/to-file"],
    &["write", "@work/to-out/new"],
    &["mkdir", "@work/to-out/new"],
    &["unlink", "@work/to-out/file"],
    &["rename", "@work/to-out/file", "@work/to-out/renamed"],
    // Through paths with `..`.
    &["write", "@work/../out/file"],
    &["write", "@work/dir/../../out/file"],
    &["write", "../out/file"],
    &["write", "/proc/self/cwd/../out/file"],
    // Only file attributes.
    &["chmod", "@out/file"],
    &["fchmod", "@out/file"],
    &["fchmodat", "@out/file"],
    &["fchmodat2", "@out/file"],
    &["chmod", "@out/dir"],
    &["chown", "@out/file"],
    &["fchown", "@out/file"],
    &["utimes", "@out/file"],
    &["futimes", "@out/file"],
    &["utime", "@out/file"],
    &["setxattr", "@out/file"],
    &["fsetxattr", "@out/file"],
    &["setxattrat", "@out/file"],
    &["setflags", "@out/file"],
    &["setversion", "@out/file"],
    &["file-setattr", "@out/file"],
    &["chmod", "@work/to-file"],
];

/// Probes that move something across the boundary.
const MOVES_ACROSS_THE_BOUNDARY: &[&[&str]] = &[
    &["link", "@work/file", "@out/new"],
    &["rename", "@work/file", "@out/new"],
    &["rename", "@work/dir", "@out/new"],
    &["exchange", "@work/file", "@out/file"],
    // A hard link inside would make a file outside writable.
    &["link", "@out/file", "@work/new"],
    &["rename", "@out/file", "@work/new"],
    &["rename", "@out/dir", "@work/new"],
];

async fn nothing_outside_the_workspace_changes_without_network(fixture: &mut SandboxFixture) {
    check_nothing_outside_changes(fixture, NetworkPolicy::Restricted).await;
}

async fn nothing_outside_the_workspace_changes_with_network(fixture: &mut SandboxFixture) {
    check_nothing_outside_changes(fixture, NetworkPolicy::Enabled).await;
}

async fn check_nothing_outside_changes(fixture: &mut SandboxFixture, network: NetworkPolicy) {
    let before = fixture.snapshot("out");
    for policy in SandboxPolicy::with_network(fixture, network) {
        let errors = policy.refusal();
        for args in CHANGES {
            fixture.refused(&policy, errors, args).await;
        }
        let crossing = format!("{errors} EXDEV");
        for args in MOVES_ACROSS_THE_BOUNDARY {
            fixture.refused(&policy, &crossing, args).await;
        }
        // Needs privileges that a sandbox never has.
        let handle = &["open-by-handle", "@out/file"];
        let errors = "EPERM ENOENT EACCES EROFS EOPNOTSUPP";
        fixture.refused(&policy, errors, handle).await;
        let name = policy.name.clone();
        fixture.unchanged("out", &before, &name);
        fixture.reset();
    }
}

async fn every_change_works_without_a_sandbox(fixture: &mut SandboxFixture) {
    for args in CHANGES.iter().chain(MOVES_ACROSS_THE_BOUNDARY) {
        fixture.reset();
        let line = fixture.run(None, args).await;
        // Some kernels lack a call, and some file systems an attribute.
        if line != "ok" && line != "refused ENOSYS" && line != "refused EOPNOTSUPP" {
            fixture.record_fault(format!("{args:?}: {line}"));
        }
    }
}

async fn workspace_can_be_changed(fixture: &mut SandboxFixture) {
    // Names that meant `out` mean the workspace here.
    let inside = |arg: &&str| {
        arg.replace("@out/empty", "@work/empty")
            .replace("@out", "@work")
            .replace("@work/to-out", "@work/dir/..")
            .replace("@work/to-file", "@work/file")
            .replace("../out/", "../work/")
    };
    let mut changes = Vec::new();
    for args in CHANGES {
        let args: Vec<String> = args.iter().map(inside).collect();
        let texts: Vec<&str> = args.iter().map(String::as_str).collect();
        reset_with_empty_directory(fixture);
        let outside = fixture.run(None, &texts).await;
        changes.push((args, outside));
    }
    for network in NetworkPolicy::ALL {
        for kind in [
            FilePolicy::Workspace,
            FilePolicy::Stock,
            FilePolicy::Narrow,
            FilePolicy::Carved,
            FilePolicy::Denied,
        ] {
            let policy = SandboxPolicy::new(fixture, kind, network);
            for (args, outside) in &changes {
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                reset_with_empty_directory(fixture);
                fixture.says(Some(&policy), outside, &args).await;
            }
        }
    }
}

fn reset_with_empty_directory(fixture: &SandboxFixture) {
    fixture.reset();
    let empty = fixture.path("work/empty");
    std::fs::create_dir(&empty).unwrap();
    fixture.give(&empty);
}

async fn read_only_policy_includes_the_workspace(fixture: &mut SandboxFixture) {
    let before = fixture.snapshot("work");
    for network in NetworkPolicy::ALL {
        let policy = SandboxPolicy::new(fixture, FilePolicy::ReadOnly, network);
        for args in [
            ["write", "@work/file"],
            ["create", "@work/new"],
            ["mkdir", "@work/new"],
            ["unlink", "@work/file"],
            ["chmod", "@work/file"],
            ["truncate", "@work/file"],
            ["write", "/tmp/exec-hostile-new"],
            ["write", "/etc/exec-hostile-new"],
            ["write", "/var/tmp/exec-hostile-new"],
        ] {
            fixture.refused(&policy, policy.refusal(), &args).await;
        }
        fixture
            .says(Some(&policy), "ok inside", &["read", "@work/file"])
            .await;
        fixture
            .says(Some(&policy), "ok outside", &["read", "@out/file"])
            .await;
        fixture.allowed(&policy, &["write", "/dev/null"]).await;
    }
    fixture.unchanged("work", &before, "read-only");
}

async fn read_only_subdirectory_of_the_workspace_is_protected(fixture: &mut SandboxFixture) {
    for network in NetworkPolicy::ALL {
        let policy = SandboxPolicy::new(fixture, FilePolicy::Carved, network);
        fixture
            .says(Some(&policy), "ok outside", &["read", "@out/file"])
            .await;
        fixture
            .refused(&policy, "EROFS", &["write", "@out/file"])
            .await;
        // Its parents cannot be moved away either.
        let away = &["rename", "@out", "@gone"];
        fixture.refused(&policy, "EBUSY EROFS EXDEV", away).await;
        let exchange = &["exchange", "@out", "@work"];
        fixture
            .refused(&policy, "EBUSY EROFS EXDEV", exchange)
            .await;
        fixture
            .allowed(&policy, &["write", "@work/.git/config"])
            .await;
        fixture.allowed(&policy, &["create", "@aside/new"]).await;
        fixture.reset();
    }
}

async fn single_file_can_be_writable(fixture: &mut SandboxFixture) {
    for network in NetworkPolicy::ALL {
        let entries = json!([
            special("root", "read"),
            path(&fixture.uri("work/file"), "write")
        ]);
        let policy = SandboxPolicy::of(fixture, "one file", entries, network);
        fixture.allowed(&policy, &["write", "@work/file"]).await;
        fixture.allowed(&policy, &["truncate", "@work/file"]).await;
        fixture.allowed(&policy, &["append", "@work/file"]).await;
        let errors = "EROFS EACCES EBUSY EXDEV EPERM";
        for args in [
            &["write", "@work/dir/inner"][..],
            &["create", "@work/new"],
            &["unlink", "@work/file"],
            &["rename", "@work/file", "@work/new"],
            &["link", "@work/file", "@work/new"],
            &["write", "@out/file"],
        ] {
            fixture.refused(&policy, errors, args).await;
        }
        fixture.reset();
    }
}

async fn temporary_directories_are_writable(fixture: &mut SandboxFixture) {
    let own = fixture.server.path("own");
    for network in NetworkPolicy::ALL {
        let policy = SandboxPolicy::new(fixture, FilePolicy::Stock, network);
        let own = own.to_str().unwrap();
        fixture.allowed(&policy, &["write", own]).await;
        fixture.allowed(&policy, &["unlink", own]).await;
        // The directory is writable only if the variable is set.
        let aside = &["create", "@aside/new"];
        fixture.refused(&policy, "EROFS", aside).await;
        let mut params = fixture.params(Some(&policy), aside);
        params["env"]["TMPDIR"] = json!(fixture.text("aside"));
        let line = fixture.finish(params).await.stdout();
        if line != "ok\n" {
            fixture.record_fault(format!("TMPDIR: {line}"));
        }
        fixture.reset();
    }
}

async fn directory_below_a_read_only_one_can_be_writable(fixture: &mut SandboxFixture) {
    for network in NetworkPolicy::ALL {
        let entries = json!([
            special("root", "read"),
            path(&fixture.uri("work"), "write"),
            path(&fixture.uri("work/dir"), "read"),
            path(&fixture.uri("work/dir/inner"), "write"),
        ]);
        let policy = SandboxPolicy::of(fixture, "layers", entries, network);
        fixture.allowed(&policy, &["write", "@work/file"]).await;
        fixture
            .refused(&policy, "EROFS", &["create", "@work/dir/new"])
            .await;
        fixture
            .allowed(&policy, &["write", "@work/dir/inner"])
            .await;
        let away = &["rename", "@work/dir", "@work/gone"];
        fixture.refused(&policy, "EBUSY EROFS EXDEV", away).await;
        fixture.reset();
    }
}

/// Moving a parent would move its read-only subdirectory with it: for the next command under the
/// same policy the protected path would be missing and could be replaced.
async fn parent_of_a_read_only_subdirectory_cannot_be_moved(fixture: &mut SandboxFixture) {
    for network in NetworkPolicy::ALL {
        for (access, outer) in [
            ("read", special("root", "write")),
            ("deny", special("root", "write")),
            ("read", path(&fixture.uri(""), "write")),
            ("deny", path(&fixture.uri(""), "write")),
        ] {
            let entries = json!([
                special("root", "read"),
                outer,
                path(&fixture.uri("out/dir/inner"), access),
            ]);
            let name = format!("{access} below {outer}");
            let policy = SandboxPolicy::of(fixture, &name, entries, network);
            let errors = "EBUSY EROFS EXDEV EACCES EPERM";
            for args in [
                &["rename", "@out", "@gone"][..],
                &["rename", "@out/dir", "@out/gone"],
                &["exchange", "@out", "@work"],
                &["exchange", "@out/dir", "@out/empty"],
            ] {
                fixture.refused(&policy, errors, args).await;
                fixture.reset();
            }
            fixture
                .allowed(&policy, &["rename", "@out/file", "@out/moved"])
                .await;
            fixture
                .allowed(&policy, &["rename", "@work/file", "@work/moved"])
                .await;
            fixture.reset();
        }
    }
}

async fn files_are_not_reachable_through_other_processes(fixture: &mut SandboxFixture) {
    let before = fixture.snapshot("out");
    let server = fixture.server.pid().to_string();
    let out = fixture.text("out/file");
    for policy in SandboxPolicy::all(fixture) {
        let errors = "EACCES ENOENT EPERM EROFS ESRCH";
        for pid in [server.as_str(), "1", "self", "every"] {
            fixture
                .refused(&policy, errors, &["write-via-root-of", pid, &out])
                .await;
        }
        for pid in [server.as_str(), "1"] {
            let file = "../out/file";
            fixture
                .refused(&policy, errors, &["write-via-cwd-of", pid, file])
                .await;
            fixture
                .refused(&policy, errors, &["write-via-fds-of", pid])
                .await;
        }
        let name = policy.name.clone();
        fixture.unchanged("out", &before, &name);
        fixture.reset();
    }
    let twin = ["write-via-root-of", server.as_str(), out.as_str()];
    fixture.says(None, "ok", &twin).await;
}
