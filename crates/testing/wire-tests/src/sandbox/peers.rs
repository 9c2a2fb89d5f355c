//! Reaching other processes: the server, its spawner, and what it runs for others.

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy},
};

as_every_user!(
    the_server_is_out_of_reach,
    a_sibling_is_out_of_reach,
    a_sibling_in_a_sandbox_is_out_of_reach,
    the_stage_of_ours_is_out_of_reach,
    only_own_processes_are_seen,
    own_processes_are_within_reach,
    what_has_no_path_is_out_of_reach,
);

/// What is tried on a process.
const REACHES: &[&str] = &[
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

async fn out_of_reach(ground: &mut Ground, pid: u32) {
    let pid = pid.to_string();
    for policy in Policy::all(ground) {
        for reach in REACHES {
            ground.refused(&policy, ERRORS, &on(reach, &pid)).await;
        }
        for kind in ["user", "mount", "net", "pid", "ipc"] {
            let enter = ["setns", kind, pid.as_str()];
            ground.refused(&policy, ERRORS, &enter).await;
        }
    }
    for reach in REACHES {
        let line = ground.run(None, &on(reach, &pid)).await;
        if ground.uid() == 0 && line != "ok" && line != "refused ENOSYS" {
            ground.fault(format!("outside: {reach}: {line}"));
        }
    }
    // Without privileges the simplest still work.
    ground.says(None, "ok", &["kill", &pid, "0"]).await;
    ground.says(None, "ok", &["setpriority", &pid]).await;
}

async fn the_server_is_out_of_reach(ground: &mut Ground) {
    let pid = ground.server.pid();
    out_of_reach(ground, pid).await;
    ground.client.expect_alive().await;
}

async fn a_sibling_is_out_of_reach(ground: &mut Ground) {
    let word = format!("sibling-{}", ground.server.pid());
    let params = ground.params(None, &["wait", &word]);
    let id = ground.start(params).await;
    ground.client.output_until(&id, "ready\n").await;
    let pid = ground.find(&word).await;
    out_of_reach(ground, pid).await;
    for policy in Policy::all(ground) {
        let group = ["kill-group", &pid.to_string()].map(str::to_owned);
        let group: Vec<&str> = group.iter().map(String::as_str).collect();
        ground.refused(&policy, ERRORS, &group).await;
    }
}

async fn a_sibling_in_a_sandbox_is_out_of_reach(ground: &mut Ground) {
    for kind in [Kind::Workspace, Kind::ReadOnly] {
        let sibling = Policy::new(ground, kind, Network::Enabled);
        let word = format!("caged-{kind:?}-{}", ground.server.pid());
        let params = ground.params(Some(&sibling), &["wait", &word]);
        let id = ground.start(params).await;
        ground.client.output_until(&id, "ready\n").await;
        let pid = ground.find(&word).await.to_string();
        for policy in Policy::all(ground) {
            for reach in REACHES {
                ground.refused(&policy, ERRORS, &on(reach, &pid)).await;
            }
        }
        ground.says(None, "ok", &["kill", &pid, "0"]).await;
    }
}

/// The first process of a namespace is ours; it must not be traced, read or used as a way out.
async fn the_stage_of_ours_is_out_of_reach(ground: &mut Ground) {
    for policy in Policy::all(ground) {
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
            ground.refused(&policy, ERRORS, &[reach, "1"]).await;
        }
        for kind in ["user", "mount", "net", "pid", "ipc"] {
            ground.refused(&policy, ERRORS, &["setns", kind, "1"]).await;
        }
    }
}

async fn only_own_processes_are_seen(ground: &mut Ground) {
    let server = ground.server.pid().to_string();
    for policy in Policy::all(ground) {
        // Landlock alone hides no process, but keeps its secrets; and it counts as success that
        // nobody was there to be signalled.
        if (policy.kind, policy.network) != (Kind::ReadOnly, Network::Enabled) {
            ground.refused(&policy, "ENOENT", &["see", &server]).await;
            ground.refused(&policy, "EPERM ESRCH", &["kill-all"]).await;
        }
    }
    ground.says(None, "ok", &["see", &server]).await;
}

async fn own_processes_are_within_reach(ground: &mut Ground) {
    let probe = ground.probe().display().to_string();
    for policy in Policy::all(ground) {
        let mut params = ground.params(Some(&policy), &[]);
        let script = format!(
            "sleep 100 & for what in 'kill 0' setpriority sched; do \
             set -- $what; {probe} $1 $! $2; done; kill $!; wait $!; echo $?"
        );
        params["argv"] = serde_json::json!(["sh", "-c", script]);
        let events = ground.finish(params).await;
        let (out, err) = (events.stdout(), events.stream("stderr"));
        // Where the host's processes are in reach by number, priorities are the caller's own only.
        let expected = match (policy.kind, policy.network) {
            (Kind::ReadOnly, Network::Enabled) => "ok\nrefused EPERM\nrefused EPERM\n143\n",
            _ => "ok\nok\nok\n143\n",
        };
        if out != expected {
            ground.fault(format!("{}: {out:?} {err:?}", policy.name));
        }
    }
}

/// Memory and queues of the host that have numbers, or names in no directory.
async fn what_has_no_path_is_out_of_reach(ground: &mut Ground) {
    let queue = format!("exec-hostile-{}", ground.server.pid());
    let made = ground.run(None, &["shm-make"]).await;
    let Some(segment) = made.strip_prefix("ok ").map(str::to_owned) else {
        panic!("outside: {made}");
    };
    let queues = ground.run(None, &["queue-make", &queue]).await;
    let errors = "EPERM EACCES EINVAL EIDRM ENOENT ENOSYS";
    for policy in Policy::all(ground) {
        for probe in ["shm-stat", "shm-remove"] {
            ground.refused(&policy, errors, &[probe, &segment]).await;
        }
        for probe in ["queue-open", "queue-remove"] {
            ground.refused(&policy, errors, &[probe, &queue]).await;
        }
    }
    for args in [["shm-stat", segment.as_str()], ["shm-remove", &segment]] {
        ground.says(None, "ok", &args).await;
    }
    if queues == "ok" {
        ground.says(None, "ok", &["queue-open", &queue]).await;
        ground.says(None, "ok", &["queue-remove", &queue]).await;
    }
}
