//! Kernel settings and devices.

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy},
};

as_every_user!(
    kernel_settings_cannot_be_written,
    devices_cannot_be_opened_or_created,
    harmless_devices_work,
);

async fn kernel_settings_cannot_be_written(fixture: &mut SandboxFixture) {
    let settings = [
        "/proc/sys/vm/swappiness",
        "/proc/sys/kernel/printk",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/net/ipv4/ip_forward",
        "/sys/kernel/mm/ksm/pages_to_scan",
        "/sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
    ];
    let errors = "EROFS EACCES EPERM ENOENT";
    let server = format!("/proc/{}/oom_score_adj", fixture.server.pid());
    for policy in SandboxPolicy::all(fixture) {
        fixture
            .refused(&policy, errors, &["open-for-write", &server])
            .await;
        for file in settings {
            fixture.refused(&policy, errors, &["rewrite", file]).await;
        }
        for file in [
            "/proc/sysrq-trigger",
            "/proc/kcore",
            "/proc/irq/default_smp_affinity",
            "/sys/fs/cgroup/cgroup.procs",
            "/sys/fs/cgroup/unified/cgroup.procs",
        ] {
            fixture
                .refused(&policy, errors, &["open-for-write", file])
                .await;
        }
    }
    let twin = fixture.run(None, &["rewrite", settings[0]]).await;
    if fixture.uid() == 0 && twin != "ok" {
        fixture.record_fault(format!("outside: {twin}"));
    }
}

async fn devices_cannot_be_opened_or_created(fixture: &mut SandboxFixture) {
    let errors = "EROFS EACCES EPERM ENOENT ENXIO";
    for policy in SandboxPolicy::all(fixture) {
        fixture
            .refused(&policy, errors, &["mknod", "@work/device"])
            .await;
        if policy.kind == FilePolicy::Carved {
            // A policy that allows all writes keeps the user's devices.
            continue;
        }
        for device in [
            "/dev/vda",
            "/dev/sda",
            "/dev/nvme0n1",
            "/dev/loop0",
            "/dev/loop-control",
            "/dev/mem",
            "/dev/kmsg",
            "/dev/kvm",
            "/dev/fuse",
            "/dev/net/tun",
            "/dev/vsock",
        ] {
            fixture
                .refused(&policy, errors, &["open-for-write", device])
                .await;
        }
    }
}

async fn harmless_devices_work(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        for device in ["/dev/null", "/dev/zero"] {
            fixture.allowed(&policy, &["write", device]).await;
        }
        for device in ["/dev/urandom", "/dev/random"] {
            let line = fixture.run(Some(&policy), &["read", device]).await;
            if !line.starts_with("ok") {
                fixture.record_fault(format!("{}: {device}: {line}", policy.name));
            }
        }
    }
    // Shared memory between a command's own processes.
    let policy = SandboxPolicy::new(fixture, FilePolicy::Workspace, NetworkPolicy::Restricted);
    fixture
        .allowed(&policy, &["create", "/dev/shm/exec-hostile"])
        .await;
    assert!(!std::path::Path::new("/dev/shm/exec-hostile").exists());
}
