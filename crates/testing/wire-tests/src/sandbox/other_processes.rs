//! Attempts to reach other processes: the server, its spawner, and other commands.

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy},
};

as_every_user!(
    server_process_is_unreachable,
    sibling_process_is_unreachable,
    sandboxed_sibling_process_is_unreachable,
    sandbox_init_process_is_unreachable,
    only_own_processes_are_visible,
    own_processes_are_reachable,
    ipc_objects_without_a_path_are_unreachable,
);

/// Probes that target a process.
const PROBES: &[&str] = &[
    "kill 0",
    "kill 18",
    "tkill",
    "sigqueue",
    "pidfd-signal",
    "setpriority",
    "ioprio",
    "sched",
    "prlimit",
    "ptrace",
    "process-vm-read",
    "process-vm-write",
    "process-madvise",
    "pidfd-getfd",
    "kcmp",
    "open-mem",
    "read-environ",
    "read-root",
    "write-via-fds-of",
];

const ERRORS: &str = "EPERM ESRCH ENOENT EACCES EINVAL";

fn on<'a>(reach: &'a str, pid: &'a str) -> Vec<&'a str> {
    match reach.split_once(' ') {
        Some((probe, signal)) => vec![probe, pid, signal],
        None => vec![reach, pid],
    }
}

async fn assert_unreachable(fixture: &mut SandboxFixture, pid: u32) {
    let pid = pid.to_string();
    for policy in SandboxPolicy::all(fixture) {
        for reach in PROBES {
            fixture.refused(&policy, ERRORS, &on(reach, &pid)).await;
        }
        for kind in ["user", "mount", "net", "pid", "ipc"] {
            let enter = ["setns", kind, pid.as_str()];
            fixture.refused(&policy, ERRORS, &enter).await;
        }
    }
    for reach in PROBES {
        let line = fixture.run(None, &on(reach, &pid)).await;
        if fixture.uid() == 0 && line != "ok" && line != "refused ENOSYS" {
            fixture.record_fault(format!("outside: {reach}: {line}"));
        }
    }
    // Without privileges the simplest probes still work.
    fixture.says(None, "ok", &["kill", &pid, "0"]).await;
    fixture.says(None, "ok", &["setpriority", &pid]).await;
}

async fn server_process_is_unreachable(fixture: &mut SandboxFixture) {
    let pid = fixture.server.pid();
    assert_unreachable(fixture, pid).await;
    fixture.client.expect_alive().await;
}

async fn sibling_process_is_unreachable(fixture: &mut SandboxFixture) {
    let marker = format!("sibling-{}", fixture.server.pid());
    let params = fixture.params(None, &["wait", &marker]);
    let id = fixture.start(params).await;
    fixture.client.output_until(&id, "ready\n").await;
    let pid = fixture.find(&marker).await;
    assert_unreachable(fixture, pid).await;
    for policy in SandboxPolicy::all(fixture) {
        let group = ["kill-group", &pid.to_string()].map(str::to_owned);
        let group: Vec<&str> = group.iter().map(String::as_str).collect();
        fixture.refused(&policy, ERRORS, &group).await;
    }
}

async fn sandboxed_sibling_process_is_unreachable(fixture: &mut SandboxFixture) {
    for kind in [FilePolicy::Workspace, FilePolicy::ReadOnly] {
        let sibling = SandboxPolicy::new(fixture, kind, NetworkPolicy::Enabled);
        let marker = format!("caged-{kind:?}-{}", fixture.server.pid());
        let params = fixture.params(Some(&sibling), &["wait", &marker]);
        let id = fixture.start(params).await;
        fixture.client.output_until(&id, "ready\n").await;
        let pid = fixture.find(&marker).await.to_string();
        for policy in SandboxPolicy::all(fixture) {
            for reach in PROBES {
                fixture.refused(&policy, ERRORS, &on(reach, &pid)).await;
            }
        }
        fixture.says(None, "ok", &["kill", &pid, "0"]).await;
    }
}

/// The init process of a namespace belongs to the server and must not be traced, read or used to
/// escape.
async fn sandbox_init_process_is_unreachable(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        for reach in [
            "ptrace",
            "process-vm-read",
            "process-vm-write",
            "pidfd-getfd",
            "open-mem",
            "read-environ",
            "read-root",
            "write-via-fds-of",
        ] {
            fixture.refused(&policy, ERRORS, &[reach, "1"]).await;
        }
        for kind in ["user", "mount", "net", "pid", "ipc"] {
            fixture
                .refused(&policy, ERRORS, &["setns", kind, "1"])
                .await;
        }
    }
}

async fn only_own_processes_are_visible(fixture: &mut SandboxFixture) {
    let server = fixture.server.pid().to_string();
    for policy in SandboxPolicy::all(fixture) {
        // Landlock alone does not hide processes but protects their data, and signalling no process
        // counts as success.
        if (policy.kind, policy.network) != (FilePolicy::ReadOnly, NetworkPolicy::Enabled) {
            fixture.refused(&policy, "ENOENT", &["see", &server]).await;
            fixture.refused(&policy, "EPERM ESRCH", &["kill-all"]).await;
        }
    }
    fixture.says(None, "ok", &["see", &server]).await;
}

async fn own_processes_are_reachable(fixture: &mut SandboxFixture) {
    let probe = fixture.probe().display().to_string();
    for policy in SandboxPolicy::all(fixture) {
        let mut params = fixture.params(Some(&policy), &[]);
        let script = format!(
            "sleep 100 & for what in 'kill 0' setpriority sched; do \
             set -- $what; {probe} $1 $! $2; done; kill $!; wait $!; echo $?"
        );
        params["argv"] = serde_json::json!(["sh", "-c", script]);
        let events = fixture.finish(params).await;
        let (out, err) = (events.stdout(), events.stream("stderr"));
        // Where host pids are visible, only the caller's own priority can be changed.
        let expected = match (policy.kind, policy.network) {
            (FilePolicy::ReadOnly, NetworkPolicy::Enabled) => {
                "ok\nrefused EPERM\nrefused EPERM\n143\n"
            }
            _ => "ok\nok\nok\n143\n",
        };
        if out != expected {
            fixture.record_fault(format!("{}: {out:?} {err:?}", policy.name));
        }
    }
}

/// Shared memory and message queues of the host, which have no path.
async fn ipc_objects_without_a_path_are_unreachable(fixture: &mut SandboxFixture) {
    let queue = format!("exec-hostile-{}", fixture.server.pid());
    let segment_probe = fixture.run(None, &["shm-make"]).await;
    let Some(segment) = segment_probe.strip_prefix("ok ").map(str::to_owned) else {
        panic!("outside: {segment_probe}");
    };
    let queues = fixture.run(None, &["queue-make", &queue]).await;
    let errors = "EPERM EACCES EINVAL EIDRM ENOENT ENOSYS";
    for policy in SandboxPolicy::all(fixture) {
        for probe in ["shm-stat", "shm-remove"] {
            fixture.refused(&policy, errors, &[probe, &segment]).await;
        }
        for probe in ["queue-open", "queue-remove"] {
            fixture.refused(&policy, errors, &[probe, &queue]).await;
        }
    }
    for args in [["shm-stat", segment.as_str()], ["shm-remove", &segment]] {
        fixture.says(None, "ok", &args).await;
    }
    if queues == "ok" {
        fixture.says(None, "ok", &["queue-open", &queue]).await;
        fixture.says(None, "ok", &["queue-remove", &queue]).await;
    }
}
