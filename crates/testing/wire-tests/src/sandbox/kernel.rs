//! Calls that a command has no use for, and privileges that it has none of.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
};

use serde_json::json;

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy},
};

as_every_user!(
    namespaces_and_mounts_are_refused,
    dangerous_calls_are_refused,
    administration_is_refused,
    other_doors_into_the_kernel_are_closed,
    a_command_has_no_capabilities,
    set_uid_programs_gain_nothing,
    terminals_take_no_keys_from_a_command,
);

/// Runs probes under every policy; those that work outside must not work inside, and neither must
/// the others.
async fn refused_everywhere(ground: &mut Ground, errors: &str, probes: &[&[&str]]) {
    let before = ground.snapshot("work");
    for policy in Policy::all(ground) {
        for args in probes {
            ground.refused(&policy, errors, args).await;
        }
    }
    ground.unchanged("work", &before, "all");
}

/// Runs probes outside, where they must work for root at least.
async fn works_outside(ground: &mut Ground, probes: &[&[&str]]) {
    for args in probes {
        let line = ground.run(None, args).await;
        let missing = [
            "refused ENOSYS",
            "refused EAFNOSUPPORT",
            "refused EOPNOTSUPP",
        ];
        if ground.uid() == 0 && line != "ok" && !missing.contains(&line.as_str()) {
            ground.fault(format!("outside: {args:?}: {line}"));
        }
    }
}

async fn namespaces_and_mounts_are_refused(ground: &mut Ground) {
    let probes: &[&[&str]] = &[
        &["unshare", "user"],
        &["unshare", "mount"],
        &["unshare", "net"],
        &["unshare", "pid"],
        &["unshare", "ipc"],
        &["unshare", "uts"],
        &["unshare", "cgroup"],
        &["clone-newuser"],
        &["clone3-newuser"],
        &["mount"],
        &["mount-bind"],
        &["remount"],
        &["fsopen"],
        &["open-tree"],
        &["open-tree-attr"],
        &["move-mount"],
        &["mount-setattr"],
        &["umount", "."],
        &["pivot-root"],
        &["chroot"],
    ];
    // What takes its flags from memory is not there at all, for who sees only the call.
    refused_everywhere(ground, "EPERM ENOSYS", probes).await;
    works_outside(ground, probes).await;
    let policy = Policy::new(ground, Kind::Workspace, Network::Restricted);
    for mask in ["@work", "@work/.git", "/proc", "/dev"] {
        ground.refused(&policy, "EPERM", &["umount", mask]).await;
    }
}

async fn dangerous_calls_are_refused(ground: &mut Ground) {
    let probes: &[&[&str]] = &[
        &["io-uring"],
        &["io-uring-enter"],
        &["io-uring-register"],
        &["bpf"],
        &["keyctl"],
        &["add-key"],
        &["request-key"],
        &["userfaultfd"],
        &["perf"],
        &["ptrace-me"],
        &["ptrace-parent"],
    ];
    refused_everywhere(ground, "EPERM ENOSYS", probes).await;
    works_outside(ground, probes).await;
}

async fn administration_is_refused(ground: &mut Ground) {
    let probes: &[&[&str]] = &[
        &["acct"],
        &["init-module"],
        &["finit-module"],
        &["iopl"],
        &["ioperm"],
        &["kexec"],
        &["reboot"],
        &["sethostname"],
        &["settime"],
        &["swapon"],
        &["syslog"],
        &["quotactl"],
    ];
    refused_everywhere(ground, "EPERM ENOSYS", probes).await;
    works_outside(ground, probes).await;
}

async fn other_doors_into_the_kernel_are_closed(ground: &mut Ground) {
    let probes: &[&[&str]] = &[
        &["int80"],
        &["int80-ptrace"],
        &["int80-mkdir", "@work/new"],
        &["x32"],
        &["x32-ptrace"],
    ];
    refused_everywhere(ground, "EPERM ENOSYS SIGSYS SIGSEGV", probes).await;
}

async fn a_command_has_no_capabilities(ground: &mut Ground) {
    let nothing = format!("ok {}", "0".repeat(16));
    for policy in Policy::all(ground) {
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            ground.says(Some(&policy), &nothing, &["status", set]).await;
        }
        // What bounds the capabilities of others cannot be given up without any.
        if ground.uid() == 0 {
            ground
                .says(Some(&policy), &nothing, &["status", "CapBnd"])
                .await;
        }
        ground
            .says(Some(&policy), "ok 1", &["status", "NoNewPrivs"])
            .await;
        ground
            .says(Some(&policy), "ok 2", &["status", "Seccomp"])
            .await;
        let uid = format!("ok {}", ground.uid());
        ground.says(Some(&policy), &uid, &["euid"]).await;
    }
}

async fn set_uid_programs_gain_nothing(ground: &mut Ground) {
    if !rustix::process::geteuid().is_root() {
        // Nobody else can make such a program for somebody else.
        return;
    }
    let other = if ground.uid() == 0 { 65534 } else { 0 };
    let program = ground.path("work/set-uid");
    fs::copy(ground.probe(), &program).unwrap();
    chown(&program, Some(other), Some(other)).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
    let args = ["exec", "@work/set-uid", "euid"];
    ground.says(None, &format!("ok {other}"), &args).await;
    let same = format!("ok {}", ground.uid());
    for policy in Policy::all(ground) {
        ground.says(Some(&policy), &same, &args).await;
    }
    fs::remove_file(program).unwrap();
}

async fn terminals_take_no_keys_from_a_command(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        let mut params = ground.params(Some(&policy), &["tiocsti"]);
        params["tty"] = json!(true);
        let events = ground.finish(params).await;
        let text = events.stream("pty");
        if !text.trim_end().ends_with("refused EPERM") && !text.trim_end().ends_with("refused EIO")
        {
            ground.fault(format!("{}: {text:?}", policy.name));
        }
    }
}
