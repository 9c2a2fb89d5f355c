//! Settings of the kernel's, and devices.

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy},
};

as_every_user!(
    settings_of_the_kernel_cannot_be_written,
    devices_cannot_be_opened_or_made,
    harmless_devices_work,
);

async fn settings_of_the_kernel_cannot_be_written(ground: &mut Ground) {
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
    let server = format!("/proc/{}/oom_score_adj", ground.server.pid());
    for policy in Policy::all(ground) {
        ground
            .refused(&policy, errors, &["open-for-write", &server])
            .await;
        for file in settings {
            ground.refused(&policy, errors, &["rewrite", file]).await;
        }
        for file in [
            "/proc/sysrq-trigger",
            "/proc/kcore",
            "/proc/irq/default_smp_affinity",
            "/sys/fs/cgroup/cgroup.procs",
            "/sys/fs/cgroup/unified/cgroup.procs",
        ] {
            ground
                .refused(&policy, errors, &["open-for-write", file])
                .await;
        }
    }
    let twin = ground.run(None, &["rewrite", settings[0]]).await;
    if ground.uid() == 0 && twin != "ok" {
        ground.fault(format!("outside: {twin}"));
    }
}

async fn devices_cannot_be_opened_or_made(ground: &mut Ground) {
    let errors = "EROFS EACCES EPERM ENOENT ENXIO";
    for policy in Policy::all(ground) {
        ground
            .refused(&policy, errors, &["mknod", "@work/device"])
            .await;
        if policy.kind == Kind::Carved {
            // Who may write everything keeps the devices that the account may use.
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
            ground
                .refused(&policy, errors, &["open-for-write", device])
                .await;
        }
    }
}

async fn harmless_devices_work(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        for device in ["/dev/null", "/dev/zero"] {
            ground.allowed(&policy, &["write", device]).await;
        }
        for device in ["/dev/urandom", "/dev/random"] {
            let line = ground.run(Some(&policy), &["read", device]).await;
            if !line.starts_with("ok") {
                ground.fault(format!("{}: {device}: {line}", policy.name));
            }
        }
    }
    // Some of memory to share between a command's own processes.
    let policy = Policy::new(ground, Kind::Workspace, Network::Restricted);
    ground
        .allowed(&policy, &["create", "/dev/shm/exec-hostile"])
        .await;
    assert!(!std::path::Path::new("/dev/shm/exec-hostile").exists());
}
