//! Changing files outside of what may be written: by path, link, rename, handle, or by way of other
//! processes.

use serde_json::json;

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy, path, special},
};

as_every_user!(
    nothing_outside_is_changed_without_network,
    nothing_outside_is_changed_with_network,
    without_a_sandbox_everything_works,
    the_workspace_can_be_changed,
    read_only_holds_for_the_workspace_too,
    what_is_carved_out_is_read_only,
    one_file_can_be_writable,
    places_for_temporary_files_can_be_written,
    a_directory_below_a_read_only_one_can_be_writable,
    what_is_above_a_carve_out_cannot_be_moved,
    files_are_reached_by_no_other_process,
);

/// What changes something outside; `@` marks names of the ground.
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
    // By links.
    &["write", "@work/to-file"],
    &["append", "@work/to-file"],
    &["truncate", "@work/to-file"],
    &["write", "@work/to-out/new"],
    &["mkdir", "@work/to-out/new"],
    &["unlink", "@work/to-out/file"],
    &["rename", "@work/to-out/file", "@work/to-out/renamed"],
    // By paths that come back.
    &["write", "@work/../out/file"],
    &["write", "@work/dir/../../out/file"],
    &["write", "../out/file"],
    &["write", "/proc/self/cwd/../out/file"],
    // Nothing but what is told of a file.
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

/// What takes something over the border.
const CROSSINGS: &[&[&str]] = &[
    &["link", "@work/file", "@out/new"],
    &["rename", "@work/file", "@out/new"],
    &["rename", "@work/dir", "@out/new"],
    &["exchange", "@work/file", "@out/file"],
    // A file outside that has a name inside could be written by that name.
    &["link", "@out/file", "@work/new"],
    &["rename", "@out/file", "@work/new"],
    &["rename", "@out/dir", "@work/new"],
];

async fn nothing_outside_is_changed_without_network(ground: &mut Ground) {
    nothing_outside_is_changed(ground, Network::Restricted).await;
}

async fn nothing_outside_is_changed_with_network(ground: &mut Ground) {
    nothing_outside_is_changed(ground, Network::Enabled).await;
}

async fn nothing_outside_is_changed(ground: &mut Ground, network: Network) {
    let before = ground.snapshot("out");
    for policy in Policy::with_network(ground, network) {
        let errors = policy.refusal();
        for args in CHANGES {
            ground.refused(&policy, errors, args).await;
        }
        let crossing = format!("{errors} EXDEV");
        for args in CROSSINGS {
            ground.refused(&policy, &crossing, args).await;
        }
        // Needs privileges that nobody has in a sandbox.
        let handle = &["open-by-handle", "@out/file"];
        let errors = "EPERM ENOENT EACCES EROFS EOPNOTSUPP";
        ground.refused(&policy, errors, handle).await;
        let name = policy.name.clone();
        ground.unchanged("out", &before, &name);
        ground.reset();
    }
}

async fn without_a_sandbox_everything_works(ground: &mut Ground) {
    for args in CHANGES.iter().chain(CROSSINGS) {
        ground.reset();
        let line = ground.run(None, args).await;
        // Kernels without some call, and file systems without some attribute.
        if line != "ok" && line != "refused ENOSYS" && line != "refused EOPNOTSUPP" {
            ground.fault(format!("{args:?}: {line}"));
        }
    }
}

async fn the_workspace_can_be_changed(ground: &mut Ground) {
    for network in Network::ALL {
        for kind in [
            Kind::Workspace,
            Kind::Stock,
            Kind::Narrow,
            Kind::Carved,
            Kind::Denied,
        ] {
            let policy = Policy::new(ground, kind, network);
            for args in CHANGES {
                // What names the place outside names the workspace now.
                let args: Vec<String> = args
                    .iter()
                    .map(|arg| arg.replace("@out/empty", "@work/empty"))
                    .map(|arg| arg.replace("@out", "@work"))
                    .map(|arg| arg.replace("@work/to-out", "@work/dir/.."))
                    .map(|arg| arg.replace("@work/to-file", "@work/file"))
                    .map(|arg| arg.replace("../out/", "../work/"))
                    .collect();
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                ground.reset();
                let empty = ground.path("work/empty");
                std::fs::create_dir(&empty).unwrap();
                ground.give(&empty);
                let outside = ground.run(None, &args).await;
                ground.reset();
                std::fs::create_dir(&empty).unwrap();
                ground.give(&empty);
                ground.says(Some(&policy), &outside, &args).await;
            }
        }
    }
}

async fn read_only_holds_for_the_workspace_too(ground: &mut Ground) {
    let before = ground.snapshot("work");
    for network in Network::ALL {
        let policy = Policy::new(ground, Kind::ReadOnly, network);
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
            ground.refused(&policy, policy.refusal(), &args).await;
        }
        ground
            .says(Some(&policy), "ok inside", &["read", "@work/file"])
            .await;
        ground
            .says(Some(&policy), "ok outside", &["read", "@out/file"])
            .await;
        ground.allowed(&policy, &["write", "/dev/null"]).await;
    }
    ground.unchanged("work", &before, "read-only");
}

async fn what_is_carved_out_is_read_only(ground: &mut Ground) {
    for network in Network::ALL {
        let policy = Policy::new(ground, Kind::Carved, network);
        ground
            .says(Some(&policy), "ok outside", &["read", "@out/file"])
            .await;
        ground
            .refused(&policy, "EROFS", &["write", "@out/file"])
            .await;
        // Neither can the way to it be taken away, and put somewhere else.
        let away = &["rename", "@out", "@gone"];
        ground.refused(&policy, "EBUSY EROFS EXDEV", away).await;
        let exchange = &["exchange", "@out", "@work"];
        ground.refused(&policy, "EBUSY EROFS EXDEV", exchange).await;
        ground
            .allowed(&policy, &["write", "@work/.git/config"])
            .await;
        ground.allowed(&policy, &["create", "@aside/new"]).await;
        ground.reset();
    }
}

async fn one_file_can_be_writable(ground: &mut Ground) {
    for network in Network::ALL {
        let entries = json!([
            special("root", "read"),
            path(&ground.uri("work/file"), "write")
        ]);
        let policy = Policy::of(ground, "one file", entries, network);
        ground.allowed(&policy, &["write", "@work/file"]).await;
        ground.allowed(&policy, &["truncate", "@work/file"]).await;
        ground.allowed(&policy, &["append", "@work/file"]).await;
        let errors = "EROFS EACCES EBUSY EXDEV EPERM";
        for args in [
            &["write", "@work/dir/inner"][..],
            &["create", "@work/new"],
            &["unlink", "@work/file"],
            &["rename", "@work/file", "@work/new"],
            &["link", "@work/file", "@work/new"],
            &["write", "@out/file"],
        ] {
            ground.refused(&policy, errors, args).await;
        }
        ground.reset();
    }
}

async fn places_for_temporary_files_can_be_written(ground: &mut Ground) {
    let own = ground.server.path("own");
    for network in Network::ALL {
        let policy = Policy::new(ground, Kind::Stock, network);
        let own = own.to_str().unwrap();
        ground.allowed(&policy, &["write", own]).await;
        ground.allowed(&policy, &["unlink", own]).await;
        // Without the variable there is no such directory; with it, there is.
        let aside = &["create", "@aside/new"];
        ground.refused(&policy, "EROFS", aside).await;
        let mut params = ground.params(Some(&policy), aside);
        params["env"]["TMPDIR"] = json!(ground.text("aside"));
        let line = ground.finish(params).await.stdout();
        if line != "ok\n" {
            ground.fault(format!("TMPDIR: {line}"));
        }
        ground.reset();
    }
}

async fn a_directory_below_a_read_only_one_can_be_writable(ground: &mut Ground) {
    for network in Network::ALL {
        let entries = json!([
            special("root", "read"),
            path(&ground.uri("work"), "write"),
            path(&ground.uri("work/dir"), "read"),
            path(&ground.uri("work/dir/inner"), "write"),
        ]);
        let policy = Policy::of(ground, "layers", entries, network);
        ground.allowed(&policy, &["write", "@work/file"]).await;
        ground
            .refused(&policy, "EROFS", &["create", "@work/dir/new"])
            .await;
        ground.allowed(&policy, &["write", "@work/dir/inner"]).await;
        let away = &["rename", "@work/dir", "@work/gone"];
        ground.refused(&policy, "EBUSY EROFS EXDEV", away).await;
        ground.reset();
    }
}

/// Whoever moves a directory away takes along what is read-only in it: to the next command under the
/// same policy it is no longer where the policy says, and something else can be put there.
async fn what_is_above_a_carve_out_cannot_be_moved(ground: &mut Ground) {
    for network in Network::ALL {
        for (access, outer) in [
            ("read", special("root", "write")),
            ("deny", special("root", "write")),
            ("read", path(&ground.uri(""), "write")),
            ("deny", path(&ground.uri(""), "write")),
        ] {
            let entries = json!([
                special("root", "read"),
                outer,
                path(&ground.uri("out/dir/inner"), access),
            ]);
            let name = format!("{access} below {outer}");
            let policy = Policy::of(ground, &name, entries, network);
            let errors = "EBUSY EROFS EXDEV EACCES EPERM";
            for args in [
                &["rename", "@out", "@gone"][..],
                &["rename", "@out/dir", "@out/gone"],
                &["exchange", "@out", "@work"],
                &["exchange", "@out/dir", "@out/empty"],
            ] {
                ground.refused(&policy, errors, args).await;
                ground.reset();
            }
            ground
                .allowed(&policy, &["rename", "@out/file", "@out/moved"])
                .await;
            ground
                .allowed(&policy, &["rename", "@work/file", "@work/moved"])
                .await;
            ground.reset();
        }
    }
}

async fn files_are_reached_by_no_other_process(ground: &mut Ground) {
    let before = ground.snapshot("out");
    let server = ground.server.pid().to_string();
    let out = ground.text("out/file");
    for policy in Policy::all(ground) {
        let errors = "EACCES ENOENT EPERM EROFS ESRCH";
        for pid in [server.as_str(), "1", "self", "every"] {
            ground
                .refused(&policy, errors, &["write-via-root-of", pid, &out])
                .await;
        }
        for pid in [server.as_str(), "1"] {
            let file = "../out/file";
            ground
                .refused(&policy, errors, &["write-via-cwd-of", pid, file])
                .await;
            ground
                .refused(&policy, errors, &["write-via-fds-of", pid])
                .await;
        }
        let name = policy.name.clone();
        ground.unchanged("out", &before, &name);
        ground.reset();
    }
    let twin = ["write-via-root-of", server.as_str(), out.as_str()];
    ground.says(None, "ok", &twin).await;
}
