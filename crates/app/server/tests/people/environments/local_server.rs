//! Tests of the local server, which starts on demand.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
    process::Stdio,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, getsid, pidfd_open},
};
use tokio::process::Command;

use crate::test_user::{OutputSoon, Server, TIMEOUT, TestUser, product};

#[tokio::test]
async fn first_command_starts_the_local_server_and_the_next_reuses_it() {
    let user = TestUser::new();
    assert_eq!(user.local_server(), None);
    let output = user
        .run(["run", "--", "echo", "hello"])
        .await
        .expect_success();
    assert_eq!(output, "hello\n");
    let server = user.local_server().unwrap();
    user.run(["run", "--", "true"]).await.expect_success();
    assert_eq!(user.local_server(), Some(server));

    // It has its own session, its directory is private, and its working directory is the root.
    assert_eq!(getsid(Some(server)), Ok(server));
    let directory = user.socket().parent().unwrap().to_owned();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory.as_path()), 0o700);
    assert_eq!(mode(user.socket().as_path()), 0o600);
    let cwd = fs::read_link(format!("/proc/{}/cwd", server.as_raw_nonzero())).unwrap();
    assert_eq!(cwd.to_str(), Some("/"));
}

#[tokio::test]
async fn socket_with_a_path_too_long_for_an_address_works() {
    let user = TestUser::new();
    let directory = user.home().join("d".repeat(120));
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&directory)
        .unwrap();
    let socket = directory.join("server.sock");
    let user = user
        .with("EXEC_SERVER_SOCKET", socket.to_str().unwrap())
        .with("EXEC_SERVER_IDLE_EXIT", "0.2");
    for _ in 0..2 {
        let output = user.run(["run", "--", "echo", "hello"]).await;
        assert_eq!(output.expect_success(), "hello\n");
    }
}

#[tokio::test]
async fn two_commands_at_once_start_one_server() {
    let user = TestUser::new();
    let run = || user.run(["run", "--", "echo", "hello"]);
    let output = tokio::join!(run(), run(), run(), run());
    for ended in [output.0, output.1, output.2, output.3] {
        assert_eq!(ended.expect_success(), "hello\n");
    }
    let servers = servers_on(&user);
    assert_eq!(servers.len(), 1, "{servers:?}");
    // A second server would have logged that the socket is in use.
    let log = fs::read_to_string(user.socket().with_extension("log")).unwrap();
    assert_eq!(log, "");
    assert_eq!(servers.first().copied(), user.local_server());
}

#[tokio::test]
async fn idle_local_server_exits_and_is_replaced() {
    let user = TestUser::new().with("EXEC_SERVER_IDLE_EXIT", "0.2");
    user.run(["run", "--", "true"]).await.expect_success();
    if let Some(server) = user.local_server() {
        wait_for_end(server).await;
    }
    assert!(!user.socket().exists());
    let output = user
        .run(["run", "--", "echo", "again"])
        .await
        .expect_success();
    assert_eq!(output, "again\n");
}

#[tokio::test]
async fn running_process_keeps_the_local_server_alive() {
    let user = TestUser::new().with("EXEC_SERVER_IDLE_EXIT", "0.1");
    let (output, env_flags) = (user.work().join("told"), user.work().join("asked"));
    for fifo in [&output, &env_flags] {
        let created = Command::new("mkfifo").arg(fifo).status();
        assert!(created.await.unwrap().success());
    }
    // Without a connection for longer than the idle time.
    let script = "sleep 0.6; echo alive > told; read line < asked; exit 3";
    let line = ["run", "--detach", "--", "/bin/sh", "-c", script];
    let id = user.run(line).await.expect_success();
    let server = user.local_server().unwrap();
    let mut read = Command::new("cat");
    let read = read.arg(output).kill_on_drop(true).output_soon().await;
    assert_eq!(read.expect_success(), "alive\n");
    assert_eq!(user.local_server(), Some(server));
    let mut write = Command::new("tee");
    let write = write.arg(env_flags).stdin(Stdio::null()).kill_on_drop(true);
    write.output_soon().await.expect_success();
    let waited = user.run(["wait", id.trim()]).await;
    assert_eq!(waited.status, Some(3), "{waited:?}");
    assert_eq!(user.local_server(), Some(server));
}

#[tokio::test]
async fn local_server_ignores_listener_settings() {
    let user = TestUser::new()
        .with("EXEC_SERVER_LISTEN", "wss://127.0.0.1:1")
        .with("EXEC_SERVER_WS_AUTH", "capability-token")
        .with("EXEC_SERVER_TLS_CERT", "/nowhere")
        .with("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "1");
    let output = user
        .run(["run", "--", "echo", "hello"])
        .await
        .expect_success();
    assert_eq!(output, "hello\n");
}

#[tokio::test]
async fn local_server_inherits_no_descriptors_and_no_token() {
    let user = TestUser::new().with("EXEC_SERVER_TOKEN", "secret");
    let script = "exec \"$0\" run -- true 9>>held";
    let line = ["-c", script, product().to_str().unwrap()];
    let mut started = user.program(Path::new("/bin/sh"), line);
    started.output_soon().await.expect_success();

    let server = user.local_server().unwrap().as_raw_nonzero();
    let hold_file = user.work().join("held");
    let open = fs::read_dir(format!("/proc/{server}/fd")).unwrap();
    let open = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    assert!(open.into_iter().all(|path| path != hold_file));
    let variables = fs::read(format!("/proc/{server}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&variables).contains("EXEC_SERVER_TOKEN"));
}

#[tokio::test]
async fn sandboxed_command_cannot_escape_through_the_local_server() {
    let user = TestUser::new();
    let out = user.home().join("out");
    let again = [product(), "run".as_ref(), "--".as_ref(), "touch".as_ref()];
    for sandbox in ["read-only", "workspace-write"] {
        let mut line = user.command(["run", "--sandbox", sandbox, "--network", "--"]);
        let ended = line.args(again).arg(&out).output_soon().await;
        ended.failed(69, &["stricter sandbox"]);
        assert!(!out.exists(), "{sandbox}");
    }
    user.run([again[1], again[2], again[3], out.as_path()])
        .await
        .expect_success();
    assert!(out.exists());
}

#[tokio::test]
async fn sandboxed_command_cannot_change_the_socket_directory() {
    let user = TestUser::new();
    user.run(["run", "--", "true"]).await.expect_success();
    let server = user.local_server();
    let directory = user.socket().parent().unwrap().to_owned();
    let found = || {
        let entries = fs::read_dir(&directory).unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name(), entry.metadata().unwrap().ino())
        });
        entries.collect::<BTreeSet<_>>()
    };
    let was = found();
    // The temporary directory, which contains this user's runtime directory, is writable.
    let again = [product(), "ps".as_ref()];
    for sandbox in ["read-only", "workspace-write"] {
        for network in [&[][..], &["--network"]] {
            let mut line = user.command(["run", "--sandbox", sandbox]);
            let line = line.args(network).arg("--").args(again);
            line.output_soon()
                .await
                .failed(69, &["server of this machine"]);
            assert_eq!(found(), was, "{sandbox} {network:?}");
            assert_eq!(user.local_server(), server);
        }
    }
    let script = "cd \"$0\"; rm -f *; touch new; mv ../exec-server ../old; mv ../../run ../../old";
    let mut line = user.command([
        "run",
        "--sandbox",
        "workspace-write",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let ended = line.arg(&directory).output_soon().await;
    assert_ne!(ended.status, Some(0), "{ended:?}");
    assert_eq!(found(), was);
    assert_eq!(user.local_server(), server);
}

#[tokio::test]
async fn server_with_removed_socket_rebinds_and_keeps_processes() {
    let user = TestUser::new();
    let line = ["run", "--detach", "--name", "kept", "--", "sleep", "60"];
    user.run(line).await.expect_success();
    let server = user.local_server();
    fs::remove_file(user.socket()).unwrap();
    let listed = user.run(["ps"]).await.expect_success();
    assert!(listed.contains("kept"), "{listed}");
    assert_eq!(user.local_server(), server);
    assert_eq!(servers_on(&user).len(), 1);
    user.run(["kill", "kept"]).await.expect_success();
}

#[tokio::test]
async fn listener_of_a_sandbox_or_another_account_is_rejected() {
    let user = TestUser::new();
    let directory = user.socket().parent().unwrap().to_owned();
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&directory)
        .unwrap();
    let log_file = user.work().join("seen");
    let script = "import os, socket, sys\n\
                  s = socket.socket(socket.AF_UNIX)\n\
                  s.bind(sys.argv[1])\n\
                  if sys.argv[3]: os.setuid(int(sys.argv[3]))\n\
                  s.listen()\n\
                  print('listening', flush=True)\n\
                  while True:\n\
                  \x20   c, _ = s.accept()\n\
                  \x20   data = c.recv(1)\n\
                  \x20   if data: open(sys.argv[2], 'wb').write(data)\n\
                  \x20   c.close()\n";
    let mut kinds = vec![(&["setpriv", "--no-new-privs"][..], "", "stricter sandbox")];
    if rustix::process::geteuid().is_root() {
        kinds.push((&["env"], "65534", "account 65534"));
    }
    for (wrapper, account, why) in kinds {
        let mut listener = Command::new(wrapper[0]);
        listener.args(&wrapper[1..]).args(["python3", "-c", script]);
        listener.arg(user.socket()).arg(&log_file).arg(account);
        let mut listener = Server::of(listener.kill_on_drop(true)).await;
        assert_eq!(listener.url, "listening");
        let ended = user.run(["run", "--", "true"]).await;
        ended.failed(69, &["server of this machine", why, "-E unix://"]);
        assert!(!log_file.exists(), "nothing is sent before the check");
        listener.kill().await;
        fs::remove_file(user.socket()).unwrap();
    }
}

#[tokio::test]
async fn without_runtime_directory_the_socket_is_in_the_state_directory() {
    let user = TestUser::new().with("EXEC_SERVER_IDLE_EXIT", "0.2");
    let run = |arguments: &[&str]| {
        let mut command = user.command(arguments);
        command
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("XDG_STATE_HOME");
        command
    };
    run(&["run", "--", "true"])
        .output_soon()
        .await
        .expect_success();
    let directory = user.home().join(".local/state/exec-server/run");
    let metadata = fs::metadata(&directory).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o700);
    // The home is the workspace, and everything except that directory is writable.
    let script = "mv .local old; touch .local/state/exec-server/run/new; touch .local/fine";
    let mut line = run(&[
        "run",
        "--sandbox",
        "workspace-write",
        "--",
        "sh",
        "-c",
        script,
    ]);
    line.current_dir(user.home()).output_soon().await;
    assert!(user.home().join(".local/fine").exists());
    assert_eq!(fs::metadata(&directory).unwrap().ino(), metadata.ino());
    assert!(!directory.join("new").exists());
}

#[tokio::test]
async fn local_server_has_the_program_name() {
    let user = TestUser::new();
    user.run(["run", "--", "true"]).await.expect_success();
    let server = user.local_server().unwrap().as_raw_nonzero();
    let comm = fs::read_to_string(format!("/proc/{server}/comm")).unwrap();
    assert_eq!(comm, "exec-server\n");
    let line = fs::read(format!("/proc/{server}/cmdline")).unwrap();
    assert!(line.starts_with(b"exec-server\0--background\0"));
}

#[tokio::test]
async fn failed_local_server_start_is_explained() {
    let user = TestUser::new().with("EXEC_SERVER_SESSION_TTL", "never");
    let ended = user.run(["run", "--", "true"]).await;
    ended.failed(69, &["EXEC_SERVER_SESSION_TTL", "server.log"]);
}

#[tokio::test]
async fn shared_socket_directory_is_rejected() {
    let user = TestUser::new();
    let directory = user.socket().parent().unwrap().to_owned();
    let elsewhere = user.home().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &directory).unwrap();
    let linked = user.run(["run", "--", "true"]).await;
    linked.failed(69, &["it is not a directory", "0700"]);

    fs::remove_file(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    let open = user.run(["run", "--", "true"]).await;
    open.failed(69, &["other accounts can use it"]);
    assert_eq!(user.local_server(), None);
}

/// Lists the processes that were started to listen on a user's socket.
fn servers_on(user: &TestUser) -> Vec<Pid> {
    let socket = format!("unix://{}", user.socket().display());
    let listens = |pid: &Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        let line = line.unwrap_or_default();
        line.split(|&byte| byte == 0)
            .any(|word| word == socket.as_bytes())
    };
    let entries = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap());
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .filter(listens)
        .collect()
}

/// Waits for the exit of a process that is not our child.
async fn wait_for_end(process: Pid) {
    let Ok(process) = pidfd_open(process, PidfdFlags::empty()) else {
        return;
    };
    let seconds = i64::try_from(TIMEOUT.as_secs()).unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        let mut watched = [PollFd::new(&process, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        poll(&mut watched, Some(&patience)).unwrap()
    });
    assert_eq!(ended.await.unwrap(), 1, "it goes on");
}
