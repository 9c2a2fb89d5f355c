//! Tests of places that cannot be used: one line with the reason and the next step, and nothing
//! half-installed.

use std::{fs, os::unix::fs::symlink, path::Path};

use super::ssh_host::{SshHost, dist_directory, write_program};
use crate::test_user::{CommandResult, OutputSoon, TestUser, product};

/// A place on this machine with programs of busybox, entered with `exec:`. Its shell is another one:
/// that of busybox prefers its own applets to the programs of a test.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir(directory.path().join("home")).unwrap();
        fs::create_dir(directory.path().join("tmp")).unwrap();
        Self { directory }
    }

    /// Adds programs of busybox.
    fn with(self, applets: &[&str]) -> Self {
        for applet in applets {
            let program = match *applet {
                "sh" => "/bin/sh",
                _ => "/bin/busybox",
            };
            symlink(program, self.path().join("bin").join(applet)).unwrap();
        }
        self
    }

    /// Adds a program.
    fn program(self, name: &str, text: &str) -> Self {
        let path = self.path().join("bin").join(name);
        drop(fs::remove_file(&path));
        write_program(&path, &format!("#!/bin/sh\n{text}\n"));
        self
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    async fn run(&self) -> CommandResult {
        let root = self.path().display();
        let target = format!(
            "exec:env -i HOME={root}/home TMPDIR={root}/tmp PATH={root}/bin EXEC_SERVER_IDLE_EXIT=5"
        );
        let user = TestUser::new().with("EXEC_SERVER_DIST", dist_directory().to_str().unwrap());
        let line = ["run", "--ephemeral", "-E", &target, "printf", r"in\n"];
        user.run(line).await
    }

    /// Lists what is in its home and in its temporary directory.
    fn left(&self) -> Vec<String> {
        let names = ["home", "tmp"].map(|name| fs::read_dir(self.path().join(name)).unwrap());
        let names = names.into_iter().flatten();
        names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

/// What the script needs, and `gzip`, which it uses if it is there.
const ENOUGH: [&str; 19] = [
    "sh",
    "chmod",
    "dd",
    "df",
    "find",
    "gzip",
    "head",
    "id",
    "ls",
    "mkdir",
    "mv",
    "printf",
    "rm",
    "rmdir",
    "sha256sum",
    "tail",
    "tr",
    "uname",
    "wc",
];

#[tokio::test]
async fn place_with_enough_works_also_without_gzip() {
    let place = Place::new().with(&ENOUGH);
    let result = place.run().await;
    assert_eq!(result.stdout, "in\n", "{result:?}");
    fs::remove_file(place.path().join("bin/gzip")).unwrap();
    let result = place.run().await;
    assert_eq!(result.stdout, "in\n", "{result:?}");
    assert_eq!(place.left(), [] as [&str; 0]);
}

#[tokio::test]
async fn missing_shell_is_reported() {
    let result = Place::new().with(&["ls"]).run().await;
    result.failed(69, &["sh", "; "]);
}

#[tokio::test]
async fn system_and_architecture_are_checked() {
    let place = Place::new().with(&ENOUGH).program("uname", "echo Darwin");
    place.run().await.failed(69, &["`Darwin`", "only Linux"]);
    let other = "case $1 in -s) echo Linux ;; *) echo riscv64 ;; esac";
    let place = Place::new().with(&ENOUGH).program("uname", other);
    place
        .run()
        .await
        .failed(69, &["`riscv64`", "exec-server dist"]);
    assert_eq!(place.left(), [] as [&str; 0]);
}

#[tokio::test]
async fn program_that_does_not_run_there_is_removed() {
    // It claims to be the other architecture, for which a wrong program is offered.
    let other = match std::env::consts::ARCH {
        "x86_64" => "aarch64",
        _ => "x86_64",
    };
    let lies = format!("case $1 in -s) echo Linux ;; *) echo {other} ;; esac");
    let place = Place::new().with(&ENOUGH).program("uname", &lies);
    let dist = tempfile::tempdir().unwrap();
    // An ELF header for that architecture, and nothing else.
    let mut header = fs::read("/proc/self/exe").unwrap();
    header.truncate(4096);
    header[18] = if other == "aarch64" { 183 } else { 62 };
    // Without program headers it names no loader.
    header[56] = 0;
    header[57] = 0;
    fs::write(dist.path().join(format!("exec-server-{other}")), header).unwrap();
    let root = place.path().display();
    let target = format!("exec:env -i HOME={root}/home TMPDIR={root}/tmp PATH={root}/bin");
    let user = TestUser::new().with("EXEC_SERVER_DIST", dist.path().to_str().unwrap());
    for flag in [&["--ephemeral"][..], &[]] {
        let line = ["run", "-E", &target]
            .into_iter()
            .chain(flag.iter().copied());
        let result = user.run(line.chain(["true"])).await;
        result.failed(69, &["does not run there", "EXEC_SERVER_DIST"]);
        let left: Vec<_> = fs::read_dir(place.path().join("home/.cache/exec-server"))
            .into_iter()
            .flatten()
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn missing_digest_tool_is_reported() {
    let tools = ENOUGH.iter().copied().filter(|tool| *tool != "sha256sum");
    let place = Place::new().with(&tools.collect::<Vec<_>>());
    place.run().await.failed(69, &["`sha256sum`", "verified"]);
}

#[tokio::test]
async fn directories_without_space_writing_or_programs_are_named() {
    let full = "echo x; echo '/dev/x 1000 1000 10 99% /'";
    let place = Place::new().with(&ENOUGH).program("df", full);
    let result = place.run().await;
    result.failed(
        69,
        &["/tmp/exec-server-", "MiB free", "make one of them writable"],
    );
    assert_eq!(place.left(), [] as [&str; 0]);
    // As if every file system were mounted with noexec.
    let place = Place::new().with(&ENOUGH).program("chmod", "exit 0");
    place.run().await.failed(69, &["noexec"]);
    assert_eq!(place.left(), [] as [&str; 0]);
    let place = Place::new().with(&ENOUGH).program("mkdir", "exit 1");
    place.run().await.failed(69, &["is not writable"]);
    assert_eq!(place.left(), [] as [&str; 0]);
}

#[tokio::test]
async fn full_disk_during_the_push_leaves_nothing() {
    let head =
        "case $2 in 1) printf a ;; *) echo 'head: No space left on device' >&2; exit 1 ;; esac";
    let place = Place::new().with(&ENOUGH).program("head", head);
    let result = place.run().await;
    result.failed(69, &["No space left on device", "make room"]);
    assert_eq!(place.left(), [] as [&str; 0]);
}

#[tokio::test]
async fn place_that_closes_or_talks_endlessly_is_reported() {
    let user = TestUser::new();
    let run = async |target: &str| user.run(["run", "-E", target, "true"]).await;
    run("exec:exit 3; :")
        .await
        .failed(69, &["exited with status 3", "POSIX shell"]);
    run("exec:echo 'account is locked' >&2; exit 1; :")
        .await
        .failed(69, &["account is locked"]);
    run("exec:yes #").await.failed(69, &["not that of a shell"]);
    run("exec:/nonexistent/program")
        .await
        .failed(69, &["not found"]);
    let user = user.with("PATH", "/nonexistent");
    let result = user.run(["run", "-E", "ssh:box", "true"]).await;
    result.failed(69, &["cannot start `ssh`", "EXEC_SERVER_SSH"]);
}

#[tokio::test]
async fn password_prompt_without_a_terminal_fails_at_once() {
    // It asks on the terminal, whatever its options are, like `sudo`.
    let directory = tempfile::tempdir().unwrap();
    let ask = directory.path().join("ask");
    write_program(
        &ask,
        "#!/bin/sh\nprintf 'Password: ' >/dev/tty && read -r word </dev/tty && exec sh\n",
    );
    let user = TestUser::new().with("EXEC_SERVER_SSH", ask.to_str().unwrap());
    let product = product().to_str().unwrap();
    let line = ["--wait", product, "run", "-E", "ssh:box", "true"];
    let result = user.program(Path::new("/usr/bin/setsid"), line);
    let result = { result }.output_soon().await;
    result.failed(69, &["/dev/tty", "asks for a password", "foreground"]);
}

#[tokio::test]
async fn words_of_container_clients_are_understood() {
    for (words, reason, step) in [
        (
            "Error response from daemon: No such container: web",
            "No such container",
            "docker ps",
        ),
        (
            "Error response from daemon: container 0ab is not running",
            "is not running",
            "start",
        ),
        (
            "Error from server (NotFound): pods \"x\" not found",
            "pods",
            "kubectl get pods",
        ),
        (
            "Error from server (Forbidden): pods \"x\" is forbidden",
            "forbidden",
            "pods/exec",
        ),
    ] {
        let client = format!("echo '{words}' >&2; exit 1; :");
        let user = TestUser::new()
            .with("EXEC_SERVER_DOCKER", &client)
            .with("EXEC_SERVER_KUBECTL", &client);
        let target = if words.contains("pods") {
            "k8s:ns/x"
        } else {
            "docker:web"
        };
        let result = user.run(["run", "-E", target, "true"]).await;
        result.failed(69, &[reason, step]);
    }
}

#[tokio::test]
async fn changed_host_key_and_refused_login_are_reported() {
    let mut host = SshHost::start().await;
    let user = host.user();
    let key = fs::read(host.root().join("user_key.pub")).unwrap();
    fs::write(host.root().join("authorized_keys"), "").unwrap();
    let run = ["run", "-E", "ssh:box", "true"];
    // Tests have no terminal, so ssh must not ask for anything.
    user.run(run)
        .await
        .failed(69, &["Permission denied", "without a terminal"]);
    fs::write(host.root().join("authorized_keys"), key).unwrap();
    host.replace_host_key().await;
    user.run(run)
        .await
        .failed(69, &["its host key has changed", "ssh-keygen -R"]);
    fs::remove_file(host.root().join("known_hosts")).unwrap();
    user.run(run)
        .await
        .failed(69, &["its host key is not known", "connect once"]);
    assert_eq!(host.pushed(), [] as [std::path::PathBuf; 0]);
}

#[tokio::test]
async fn unwritable_home_is_replaced_by_a_temporary_directory() {
    let place = Place::new().with(&ENOUGH);
    fs::remove_dir(place.path().join("home")).unwrap();
    // Not even root can create a directory below a file.
    fs::write(place.path().join("home"), "").unwrap();
    let root = place.path().display();
    let target = format!(
        "exec:env -i HOME={root}/home TMPDIR={root}/tmp PATH={root}/bin EXEC_SERVER_IDLE_EXIT=0.2"
    );
    let user = TestUser::new().with("EXEC_SERVER_DIST", dist_directory().to_str().unwrap());
    let result = user.run(["run", "-E", &target, "printf", r"in\n"]).await;
    assert_eq!(result.stdout, "in\n", "{result:?}");
    let uid = rustix::process::geteuid().as_raw();
    let directory = place.path().join(format!("tmp/exec-server-{uid}"));
    let socket = directory.join("run/server.sock");
    assert!(directory.join("run").is_dir(), "{socket:?}");
}
