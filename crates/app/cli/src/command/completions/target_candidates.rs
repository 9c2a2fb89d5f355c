//! Candidates for a target that is being typed: kinds, ssh hosts, and running containers.
//!
//! Invariant: nothing is connected to, nothing prompts, and the time is bounded.

use std::{
    ffi::{OsStr, OsString},
    process::Stdio,
    time::Duration,
};

use exec_connect::target::Target;
use exec_settings::settings_source::{self, VariableLookup};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use super::ssh_hosts::ssh_hosts;

/// Starts of targets.
const KINDS: [&str; 5] = ["ssh:", "docker:", "podman:", "k8s:", "exec:"];
/// Limit for listing containers while the user waits for a completion.
const CONTAINERS_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum bytes of a list of containers.
const MAX_LIST_BYTES: u64 = 64 << 10;

/// Returns candidates for a word, all of which start with it.
pub(super) async fn target_candidates(word: &str, lookup: VariableLookup<'_>) -> Vec<String> {
    // A command may contain slashes.
    let is_target = |at: &usize| !word.contains("exec:") && word[..*at].parse::<Target>().is_ok();
    let slashes = word.rmatch_indices('/').map(|(at, _)| at);
    if let Some(slash) = { slashes }.find(is_target) {
        // Hosts and containers behind the first hop are not known here.
        let kinds = KINDS
            .iter()
            .map(|kind| format!("{}/{kind}", &word[..slash]));
        return kinds.filter(|kind| kind.starts_with(word)).collect();
    }
    let candidates: Vec<String> = match word.split_once(':') {
        None => KINDS.map(str::to_owned).into(),
        Some(("ssh", rest)) => {
            let user = rest.rfind('@').map_or("", |at| &rest[..=at]);
            let home = settings_source::path(lookup, "HOME");
            let hosts = home.map_or(Vec::new(), |home| ssh_hosts(&home));
            let hosts = hosts.iter().map(|host| format!("ssh:{user}{host}"));
            hosts.collect()
        }
        Some(("docker", _)) => containers("docker", lookup("EXEC_SERVER_DOCKER")).await,
        Some(("podman", _)) => containers("podman", lookup("EXEC_SERVER_PODMAN")).await,
        Some(_) => Vec::new(),
    };
    let is_candidate = |candidate: &String| {
        candidate.starts_with(word)
            && (candidate.ends_with(':') || candidate.parse::<Target>().is_ok())
    };
    candidates.into_iter().filter(is_candidate).collect()
}

/// Lists the running containers of an engine. Errors yield an empty list.
async fn containers(engine: &str, instead: Option<OsString>) -> Vec<String> {
    let mut command = match instead.filter(|text| !text.is_empty()) {
        Some(mut text) => {
            text.push(" \"$@\"");
            let mut shell = Command::new("sh");
            shell.args([OsStr::new("-c"), &text, OsStr::new("exec-server")]);
            shell
        }
        None => Command::new(engine),
    };
    let spawned = command
        .args(["ps", "--format", "{{.Names}}"])
        // An engine may be reached through ssh.
        .env("SSH_ASKPASS_REQUIRE", "force")
        .env("SSH_ASKPASS", "false")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let Ok(mut child) = spawned else {
        return Vec::new();
    };
    let mut list = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = stdout.take(MAX_LIST_BYTES);
        // What has arrived in time is offered.
        drop(timeout(CONTAINERS_TIMEOUT, stdout.read_to_end(&mut list)).await);
    }
    // The child was not waited for, so the number of the group is still its own.
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(group) = group {
        let _gone = kill_process_group(group, Signal::KILL);
    }
    let list = String::from_utf8_lossy(&list);
    // A container may have several names.
    let names = list.split([',', '\n']).map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    names.map(|name| format!("{engine}:{name}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn candidates(word: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        };
        target_candidates(word, &lookup).await
    }

    #[tokio::test]
    async fn kinds_are_offered_at_the_start_and_behind_a_target() {
        for (word, expected) in [
            ("", &KINDS[..]),
            ("s", &["ssh:"]),
            ("x", &[]),
            (
                "ssh:box/",
                &KINDS
                    .map(|kind| format!("ssh:box/{kind}"))
                    .each_ref()
                    .map(String::as_str),
            ),
            ("ssh:box/d", &["ssh:box/docker:"]),
            ("ssh:a/docker:b/p", &["ssh:a/docker:b/podman:"]),
            ("ssh:box/docker:", &["ssh:box/docker:"]),
            ("ssh:box/docker:w", &[]),
            ("k8s:ns/", &[]),
            ("exec:/usr/", &[]),
        ] {
            assert_eq!(candidates(word, &[]).await, expected, "{word}");
        }
    }

    #[tokio::test]
    async fn ssh_hosts_are_offered_for_any_user() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".ssh")).unwrap();
        fs::write(home.path().join(".ssh/config"), "Host box build other\n").unwrap();
        let variables = [("HOME", home.path().to_str().unwrap())];
        for (word, expected) in [
            ("ssh:", &["ssh:box", "ssh:build", "ssh:other"][..]),
            ("ssh:b", &["ssh:box", "ssh:build"]),
            ("ssh:me@o", &["ssh:me@other"]),
            ("ssh:x", &[]),
        ] {
            assert_eq!(candidates(word, &variables).await, expected, "{word}");
        }
    }

    #[tokio::test]
    async fn running_containers_are_offered() {
        let list = "list() { [ \"$*\" = 'ps --format {{.Names}}' ] && printf 'web\\ndb,alias\\n-x\\n'; }; list";
        let variables = [
            ("EXEC_SERVER_DOCKER", list),
            ("EXEC_SERVER_PODMAN", "exit 1;"),
        ];
        for (word, expected) in [
            ("docker:", &["docker:web", "docker:db", "docker:alias"][..]),
            ("docker:w", &["docker:web"]),
            ("podman:", &[]),
        ] {
            assert_eq!(candidates(word, &variables).await, expected, "{word}");
        }
    }

    #[tokio::test]
    async fn engine_that_does_not_answer_delays_nothing_for_long() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        let engine = format!(
            "echo web; sleep 1000 & echo $! >{}; wait; true",
            pid.display()
        );
        let variables = [("EXEC_SERVER_DOCKER", engine.as_str())];
        let started = tokio::time::Instant::now();
        assert_eq!(candidates("docker:", &variables).await, ["docker:web"]);
        assert!(started.elapsed() < 20 * CONTAINERS_TIMEOUT);
        // Its descendants have ended as well, or are about to.
        let pid = fs::read_to_string(pid).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        let flags = rustix::process::PidfdFlags::empty();
        if let Ok(sleeping) = rustix::process::pidfd_open(pid, flags) {
            let mut polled = [rustix::event::PollFd::new(
                &sleeping,
                rustix::event::PollFlags::IN,
            )];
            let limit = rustix::time::Timespec {
                tv_sec: 40,
                tv_nsec: 0,
            };
            assert_eq!(rustix::event::poll(&mut polled, Some(&limit)), Ok(1));
        }
    }
}
