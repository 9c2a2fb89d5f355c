//! Tests of `docker:`, `podman:`, `k8s:`, `exec:` and nested targets. No container engine runs
//! here: shims record their arguments and run the command on this machine, in a home of its own.

use std::{fs, path::PathBuf};

use super::ssh_host::{SshHost, dist_directory, write_program};
use crate::test_user::TestUser;

/// Shims of the clients, and the home of what they lead to.
struct Shims {
    directory: tempfile::TempDir,
}

impl Shims {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for name in ["docker", "podman", "kubectl"] {
            // Drops the words up to the one that starts the shell, as the real ones do.
            let text = format!(
                "#!/bin/sh\n\
                 echo \"{name} $*\" >>{root}/calls\n\
                 if [ \"$1 $2\" = 'config get-contexts' ]; then [ \"$3\" = prod ]; exit; fi\n\
                 while [ \"$1\" != sh ] && [ $# -gt 0 ]; do\n\
                 \x20 case $1 in docker) break ;; esac\n\
                 \x20 shift\n\
                 done\n\
                 exec env -i HOME={root}/home PATH={root}:/usr/bin:/bin \
                 EXEC_SERVER_IDLE_EXIT=20 \"$@\"\n",
                root = root.display(),
            );
            write_program(&root.join(name), &text);
        }
        fs::create_dir(root.join("home")).unwrap();
        Self { directory }
    }

    fn user(&self) -> TestUser {
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", self.directory.path().display());
        TestUser::new()
            .with("PATH", &path)
            .with("EXEC_SERVER_DIST", dist_directory().to_str().unwrap())
    }

    /// Returns the recorded calls, and forgets them.
    fn calls(&self) -> Vec<String> {
        let file = self.directory.path().join("calls");
        let text = fs::read_to_string(&file).unwrap_or_default();
        drop(fs::remove_file(file));
        text.lines().map(str::to_owned).collect()
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }
}

impl Drop for Shims {
    fn drop(&mut self) {
        let state = self.home().join(".local/state/exec-server");
        let server = std::os::unix::net::UnixStream::connect(state.join("run/server.sock"));
        let server = server.ok().map(|stream| {
            let listener = rustix::net::sockopt::socket_peercred(&stream).unwrap();
            listener.pid
        });
        let keeper = crate::test_user::keeper_of(&state.join("durable"));
        for process in server.into_iter().chain(keeper) {
            let _gone = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
    }
}

#[tokio::test]
async fn containers_and_pods_run_a_shell_with_their_clients() {
    let shims = Shims::new();
    let user = shims.user();
    for (target, calls) in [
        ("docker:web", &["docker exec -i web sh"][..]),
        ("podman:web", &["podman exec -i web sh"]),
        ("k8s:ns/pod", &["kubectl -n ns exec -i pod -- sh"]),
        (
            "k8s:prod/ns/pod/c",
            &["kubectl --context prod -n ns exec -i pod -c c -- sh"],
        ),
        (
            "k8s:prod/ns/pod",
            &[
                "kubectl config get-contexts prod",
                "kubectl --context prod -n ns exec -i pod -- sh",
            ],
        ),
        (
            "k8s:ns/pod/c",
            &[
                "kubectl config get-contexts ns",
                "kubectl -n ns exec -i pod -c c -- sh",
            ],
        ),
        (
            "docker:outer/docker:inner",
            &[
                "docker exec -i outer docker exec -i inner sh",
                "docker exec -i inner sh",
            ],
        ),
    ] {
        let result = user
            .run(["run", "-E", target, "sh", "-c", "echo $HOME"])
            .await;
        assert_eq!(result.status, Some(0), "{target}: {result:?}");
        assert_eq!(
            result.stdout,
            format!("{}\n", shims.home().display()),
            "{target}"
        );
        assert_eq!(shims.calls(), calls, "{target}");
    }
}

#[tokio::test]
async fn configured_programs_replace_the_clients() {
    let shims = Shims::new();
    let other = shims.directory.path().join("docker");
    let user = shims.user().with("PATH", "/usr/bin:/bin").with(
        "EXEC_SERVER_DOCKER",
        &format!("A=b {} --host x", other.display()),
    );
    let result = user.run(["run", "-E", "docker:web", "echo", "in"]).await;
    assert_eq!(result.stdout, "in\n", "{result:?}");
    assert_eq!(shims.calls(), ["docker --host x exec -i web sh"]);
}

#[tokio::test]
async fn command_of_the_user_leads_to_the_place() {
    let shims = Shims::new();
    let user = shims.user();
    let home = shims.home().display().to_string();
    let target = format!("exec:env -i 'HOME={home}' PATH=/usr/bin:/bin EXEC_SERVER_IDLE_EXIT=20");
    let script = ["sh", "-c", "echo $HOME"];
    let run = ["run", "-E", &target].into_iter().chain(script);
    let result = user.run(run).await;
    assert_eq!(result.stdout, format!("{home}\n"), "{result:?}");
}

#[tokio::test]
async fn container_on_an_ssh_host_is_reached_with_its_client_there() {
    let host = SshHost::start().await;
    let log = host.home().join("calls");
    let docker = format!(
        "#!{bin}/sh\necho \"$*\" >>{log}\nshift 3\nexec \"$@\"\n",
        bin = host.bin().display(),
        log = log.display(),
    );
    write_program(&host.bin().join("docker"), &docker);
    host.install();
    let user = host.user();
    let result = user
        .run(["run", "-E", "ssh:box/docker:web", "echo", "inside"])
        .await;
    assert_eq!(result.expect_success(), "inside\n");
    assert_eq!(fs::read_to_string(log).unwrap(), "exec -i web sh\n");
}
