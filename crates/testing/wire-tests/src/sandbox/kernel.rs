//! System calls that a command does not need, and privileges that it does not have.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
};

use serde_json::json;

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy},
};

as_every_user!(
    namespaces_and_mounts_are_refused,
    dangerous_calls_are_refused,
    administrative_calls_are_refused,
    other_system_call_entries_are_blocked,
    command_has_no_capabilities,
    set_uid_programs_gain_no_privileges,
    command_cannot_inject_terminal_input,
);

/// Runs probes under every policy and expects each to be refused, whether or not it works outside.
async fn refused_everywhere(fixture: &mut SandboxFixture, errors: &str, probes: &[&[&str]]) {
    let before = fixture.snapshot("work");
    for policy in SandboxPolicy::all(fixture) {
        for args in probes {
            fixture.refused(&policy, errors, args).await;
        }
    }
    fixture.unchanged("work", &before, "all");
}

/// Runs probes without a sandbox, where they must work at least for root.
async fn works_outside(fixture: &mut SandboxFixture, probes: &[&[&str]]) {
    for args in probes {
        let line = fixture.run(None, args).await;
        let missing = [
            "refused ENOSYS",
            "refused EAFNOSUPPORT",
            "refused EOPNOTSUPP",
        ];
        if fixture.uid() == 0 && line != "ok" && !missing.contains(&line.as_str()) {
            fixture.record_fault(format!("outside: {args:?}: {line}"));
        }
    }
}

async fn namespaces_and_mounts_are_refused(fixture: &mut SandboxFixture) {
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
    // Calls with flags in memory fail with ENOSYS, since a filter cannot read the flags.
    refused_everywhere(fixture, "EPERM ENOSYS", probes).await;
    works_outside(fixture, probes).await;
    let policy = SandboxPolicy::new(fixture, FilePolicy::Workspace, NetworkPolicy::Restricted);
    for mask in ["@work", "@work/.git", "/proc", "/dev"] {
        fixture.refused(&policy, "EPERM", &["umount", mask]).await;
    }
}

async fn dangerous_calls_are_refused(fixture: &mut SandboxFixture) {
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
    refused_everywhere(fixture, "EPERM ENOSYS", probes).await;
    works_outside(fixture, probes).await;
}

async fn administrative_calls_are_refused(fixture: &mut SandboxFixture) {
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
    refused_everywhere(fixture, "EPERM ENOSYS", probes).await;
    works_outside(fixture, probes).await;
}

async fn other_system_call_entries_are_blocked(fixture: &mut SandboxFixture) {
    let probes: &[&[&str]] = &[
        &["int80"],
        &["int80-ptrace"],
        &["int80-mkdir", "@work/new"],
        &["x32"],
        &["x32-ptrace"],
    ];
    refused_everywhere(fixture, "EPERM ENOSYS SIGSYS SIGSEGV", probes).await;
}

async fn command_has_no_capabilities(fixture: &mut SandboxFixture) {
    let nothing = format!("ok {}", "0".repeat(16));
    for policy in SandboxPolicy::all(fixture) {
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            fixture
                .says(Some(&policy), &nothing, &["status", set])
                .await;
        }
        // The bounding set cannot be reduced without capabilities.
        if fixture.uid() == 0 {
            fixture
                .says(Some(&policy), &nothing, &["status", "CapBnd"])
                .await;
        }
        fixture
            .says(Some(&policy), "ok 1", &["status", "NoNewPrivs"])
            .await;
        fixture
            .says(Some(&policy), "ok 2", &["status", "Seccomp"])
            .await;
        let uid = format!("ok {}", fixture.uid());
        fixture.says(Some(&policy), &uid, &["euid"]).await;
    }
}

async fn set_uid_programs_gain_no_privileges(fixture: &mut SandboxFixture) {
    if !rustix::process::geteuid().is_root() {
        // Only root can create a set-uid program of another user.
        return;
    }
    let other = if fixture.uid() == 0 { 65534 } else { 0 };
    let program = fixture.path("work/set-uid");
    fs::copy(fixture.probe(), &program).unwrap();
    chown(&program, Some(other), Some(other)).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
    let args = ["exec", "@work/set-uid", "euid"];
    fixture.says(None, &format!("ok {other}"), &args).await;
    let same = format!("ok {}", fixture.uid());
    for policy in SandboxPolicy::all(fixture) {
        fixture.says(Some(&policy), &same, &args).await;
    }
    fs::remove_file(program).unwrap();
}

async fn command_cannot_inject_terminal_input(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        let mut params = fixture.params(Some(&policy), &["tiocsti"]);
        params["tty"] = json!(true);
        let events = fixture.finish(params).await;
        let text = events.stream("pty");
        if !text.trim_end().ends_with("refused EPERM") && !text.trim_end().ends_with("refused EIO")
        {
            fixture.record_fault(format!("{}: {text:?}", policy.name));
        }
    }
}
