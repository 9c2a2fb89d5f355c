//! Tests of `ssh:` against a real `sshd`.

use std::{
    fs,
    iter::successors,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use super::ssh_host::SshHost;
use crate::{
    processes::{
        RunningCommand, cuttable_link::CuttableLink, noise, terminal_window::TerminalWindow,
    },
    test_user::{OutputSoon, TIMEOUT, TestUser, product, within_timeout},
};

const MEBI: usize = 1 << 20;

#[tokio::test]
async fn clean_account_becomes_an_environment_and_later_commands_reuse_it() {
    let host = SshHost::start().await;
    let user = host.user();
    let script = "umask; pwd; cat; exit 7";
    let first = ["run", "--env", "ssh:box", "sh", "-c", script];
    let result = user.run_with(first, b"typed").await;
    assert_eq!(result.status, Some(7), "{result:?}");
    assert_eq!(result.stdout, "0027\n/\ntyped");
    assert_eq!(result.stderr, "");
    let [program] = &host.pushed()[..] else {
        panic!("{:?}", host.pushed());
    };
    let mode = fs::metadata(program).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let server = host.server().unwrap();
    // The commands for people, and a path, work there as well.
    fs::write(host.home().join("note"), "content").unwrap();
    let home = host.home();
    let path = format!("ssh:box:{}", home.join("note").display());
    assert_eq!(user.run(["cat", &path]).await.expect_success(), "content");
    user.run(["env", "add", "far", "ssh:box", "--default"])
        .await
        .expect_success();
    let listed = user.run(["env", "list"]).await.expect_success();
    assert!(listed.contains("ssh:box"), "{listed}");
    assert_eq!(
        user.run(["run", "echo", "on"]).await.expect_success(),
        "on\n"
    );
    user.run(["run", "-d", "--name=job", "echo", "kept"])
        .await
        .expect_success();
    user.run(["wait", "job"]).await.expect_success();
    assert_eq!(user.run(["logs", "job"]).await.expect_success(), "kept\n");
    assert_eq!(host.server(), Some(server), "one server serves all");
    assert_eq!(host.pushed(), std::slice::from_ref(program));
}

#[tokio::test]
async fn tampered_and_damaged_programs_are_replaced() {
    let host = SshHost::start().await;
    let user = host.user();
    let run = ["run", "--env", "ssh:box", "echo", "works"];
    user.run(run).await.expect_success();
    let [program] = &host.pushed()[..] else {
        panic!("{:?}", host.pushed());
    };
    let original = fs::read(program).unwrap();
    kill_process(host.server().unwrap(), Signal::KILL).unwrap();
    let evil = format!(
        "#!{}/sh\necho evil >&2\ntouch ~/ran\n",
        host.bin().display()
    );
    fs::remove_file(program).unwrap();
    super::ssh_host::write_program(program, &evil);
    host.give(program);
    assert_eq!(user.run(run).await.expect_success(), "works\n");
    assert!(!host.home().join("ran").exists());
    assert!(fs::read(program).unwrap() == original);
    // A file that has the right length, but one wrong byte.
    let mut damaged = original.clone();
    damaged[MEBI] ^= 1;
    fs::remove_file(program).unwrap();
    fs::write(program, &damaged).unwrap();
    host.give(program);
    assert_eq!(user.run(run).await.expect_success(), "works\n");
    assert!(fs::read(program).unwrap() == original);
}

#[tokio::test]
async fn program_of_this_version_on_the_path_is_used() {
    let host = SshHost::start().await;
    let user = host.user();
    host.install();
    let run = ["run", "--env", "ssh:box", "echo", "works"];
    assert_eq!(user.run(run).await.expect_success(), "works\n");
    assert_eq!(host.pushed(), [] as [std::path::PathBuf; 0]);
}

#[tokio::test]
async fn other_version_on_the_path_is_not_used() {
    let host = SshHost::start().await;
    let user = host.user();
    let other = format!(
        "#!{}/sh\necho exec-server-bridge 0.0.1\n",
        host.bin().display()
    );
    super::ssh_host::write_program(&host.bin().join("exec-server"), &other);
    let run = ["run", "--env", "ssh:box", "echo", "works"];
    assert_eq!(user.run(run).await.expect_success(), "works\n");
    assert_eq!(host.pushed().len(), 1);
}

#[tokio::test]
async fn interrupted_push_is_continued() {
    let host = SshHost::start().await;
    let user = host.user();
    // As a lost connection leaves it: what was sent, by a shell that is gone.
    let link = CuttableLink::to_address(host.address()).await;
    host.reach_through(link.url.strip_prefix("ws://").unwrap().parse().unwrap());
    let mut run = user.command(["run", "--env", "ssh:box", "echo", "works"]);
    let mut running = RunningCommand::start(&mut run);
    let directory = host.home().join(".cache/exec-server");
    let part = async || {
        loop {
            let entries = fs::read_dir(&directory).into_iter().flatten();
            let mut entries = entries.filter_map(Result::ok);
            let part = entries.find(|it| it.path().extension().is_some_and(|it| it == "part"));
            let bytes = part.map(|part| (part.path(), part.metadata().map_or(0, |it| it.len())));
            match bytes {
                Some((path, bytes)) if bytes > 0 => return path,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let part = within_timeout(part()).await;
    link.end();
    let (status, output) = running.end().await;
    assert_eq!(status.code(), Some(69), "{output}");
    // What is on the way still arrives.
    let shell = part
        .file_stem()
        .and_then(|name| Path::new(name).extension());
    let shell = process(shell.unwrap().to_str().unwrap().parse().unwrap());
    assert!(shell.is_none_or(|shell| ends_soon(&shell)));
    let kept = fs::read(&part).unwrap();
    host.reach_through(host.address());
    let mut second = user.command(["run", "--env", "ssh:box", "echo", "works"]);
    second.env("EXEC_SERVER_LOG_LEVEL", "info");
    let second = second.output_soon().await;
    assert_eq!(second.stdout, "works\n", "{second:?}");
    let sent = second
        .stderr
        .lines()
        .find(|line| line.contains("pushing the program"));
    let sent = sent.unwrap_or_else(|| panic!("{second:?}"));
    assert!(sent.contains(&format!("kept={}", kept.len())), "{sent}");
    assert_eq!(host.pushed().len(), 1, "{:?}", host.pushed());
}

#[tokio::test]
async fn fifty_cuts_under_load_lose_and_repeat_nothing() {
    let host = SshHost::start().await;
    let user = host.user();
    host.install();
    let link = CuttableLink::to_address(host.address()).await;
    host.reach_through(link.url.strip_prefix("ws://").unwrap().parse().unwrap());
    const CUTS: usize = 50;
    let wrote = noise(8 * MEBI, 6);
    let big = host.home().join("big");
    fs::write(&big, &wrote).unwrap();
    fs::set_permissions(&big, fs::Permissions::from_mode(0o644)).unwrap();
    // The output goes on until the last cut, so that each of them happens under load.
    let last = host.home().join("last");
    let script = format!(
        "until [ -e {0} ]; do cat {1}; done",
        last.display(),
        big.display()
    );
    let mut run = user.command(["run", "-E", "ssh:box", "sh", "-c", &script]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let expected = wrote.clone();
    let (count_sender, mut counts) = tokio::sync::watch::channel(0);
    let came = tokio::spawn(async move {
        let mut came = 0;
        let mut block = vec![0; 64 << 10];
        loop {
            let count = stdout.read(&mut block).await.unwrap();
            if count == 0 {
                return came;
            }
            for (index, byte) in block[..count].iter().enumerate() {
                assert_eq!(*byte, expected[(came + index) % expected.len()]);
            }
            came += count;
            count_sender.send_replace(came);
        }
    });
    let mut notices = BufReader::new(child.stderr.take().unwrap()).lines();
    let started = Instant::now();
    for cut in 0..CUTS {
        if cut > 0 {
            for notice in ["exec-server: reconnecting…", "exec-server: reconnected"] {
                let line = within_timeout(notices.next_line()).await.unwrap();
                assert_eq!(line.as_deref(), Some(notice));
            }
        }
        // Each connection carries output before it is cut.
        within_timeout(counts.changed()).await.unwrap();
        link.cut();
        counts.mark_unchanged();
    }
    let took = started.elapsed();
    fs::write(last, "").unwrap();
    let came = within_timeout(came).await.unwrap();
    let ended = within_timeout(child.wait()).await.unwrap();
    assert_eq!(ended.code(), Some(0));
    assert_eq!(came % wrote.len(), 0, "{came}");
    assert!(came > 0);
    println!("{CUTS} cuts within {took:?}, {came} bytes");
}

#[tokio::test]
async fn detached_process_is_followed_across_a_cut() {
    let host = SshHost::start().await;
    let user = host.user();
    host.install();
    let link = CuttableLink::to_address(host.address()).await;
    host.reach_through(link.url.strip_prefix("ws://").unwrap().parse().unwrap());
    let fifo = host.home().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from(0o600)).unwrap();
    host.give(&fifo);
    let script = format!("echo ready; cat {}", fifo.display());
    let detach = [
        "run",
        "-E",
        "ssh:box",
        "-d",
        "--name=job",
        "sh",
        "-c",
        &script,
    ];
    user.run(detach).await.expect_success();
    let logs = ["logs", "-E", "ssh:box", "-f", "job"];
    let mut logs = RunningCommand::start(&mut user.command(logs));
    logs.says("ready").await;
    link.cut();
    let write = tokio::task::spawn_blocking(move || fs::write(fifo, "on\n").unwrap());
    logs.says("on").await;
    within_timeout(write).await.unwrap();
    let (status, output) = logs.end().await;
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("reconnecting…"), "{output}");
}

#[tokio::test]
async fn ephemeral_server_leaves_nothing_behind() {
    let host = SshHost::start().await;
    let user = host.user();
    let here = || {
        let mut all: Vec<_> = walk(&host.home());
        all.retain(|path| !path.ends_with("big"));
        all
    };
    let (before, temporary) = (here(), host.temporary_files());
    let run = [
        "run",
        "--ephemeral",
        "--env",
        "ssh:box",
        "sh",
        "-c",
        "echo $$; ls /proc/$PPID/exe",
    ];
    let result = user.run(run).await;
    assert_eq!(result.status, Some(0), "{result:?}");
    assert_eq!(here(), before);
    assert_eq!(host.temporary_files(), temporary);
    assert_eq!(host.server(), None);
    let refused = user
        .run(["run", "--ephemeral", "--env", "local", "true"])
        .await;
    refused.failed(2, &["--ephemeral", "ssh:HOST"]);
    let refused = user
        .run(["run", "--detach", "--ephemeral", "--env", "ssh:box", "true"])
        .await;
    refused.failed(2, &["--detach", "--ephemeral", "omit one"]);
    assert_eq!(here(), before);
}

#[tokio::test]
async fn ephemeral_server_ends_with_its_connection() {
    let host = SshHost::start().await;
    let user = host.user();
    let before = (walk(&host.home()), host.temporary_files());
    let script = "sleep 1000 & echo $$ $!; wait";
    let line = ["run", "--ephemeral", "-E", "ssh:box", "sh", "-c", script];
    let mut command = user.command(line);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids = within_timeout(lines.next_line()).await.unwrap().unwrap();
    let (shell, sleeping) = pids.split_once(' ').unwrap();
    // From the command up to the server, whose parent is sshd.
    let ancestors = successors(Some(shell.parse().unwrap()), |pid| Some(parent(*pid)));
    let there: Vec<_> = ancestors
        .take_while(|pid| !name(*pid).starts_with("sshd"))
        .chain([sleeping.parse().unwrap()])
        .filter_map(process)
        .collect();
    assert!(there.len() >= 3, "{there:?}");
    // EXEC_SERVER_SSH has an option, so a shell is between.
    let own = i32::try_from(child.id().unwrap()).unwrap();
    let mut below = children(own);
    below.extend(below.clone().into_iter().flat_map(children));
    let ssh = below.into_iter().find(|pid| name(*pid) == "ssh").unwrap();
    kill_process(Pid::from_raw(ssh).unwrap(), Signal::KILL).unwrap();
    let ended = within_timeout(child.wait_with_output()).await.unwrap();
    assert_eq!(ended.status.code(), Some(75), "{ended:?}");
    for process in &there {
        assert!(ends_soon(process), "a process there has not ended");
    }
    assert_eq!((walk(&host.home()), host.temporary_files()), before);
}

#[tokio::test]
async fn ephemeral_push_that_is_cut_leaves_nothing_behind() {
    let host = SshHost::start().await;
    let user = host.user();
    let before = host.temporary_files();
    let home = walk(&host.home());
    let link = CuttableLink::to_address(host.address()).await;
    host.reach_through(link.url.strip_prefix("ws://").unwrap().parse().unwrap());
    let line = ["run", "--ephemeral", "--env", "ssh:box", "true"];
    let mut running = RunningCommand::start(&mut user.command(line));
    let started = async {
        loop {
            let new = host.temporary_files().into_iter();
            let mut new = new.filter(|path| !before.contains(path));
            let has_part = |directory: &PathBuf| {
                let files = fs::read_dir(directory).into_iter().flatten().flatten();
                let lengths = files.filter_map(|file| Some(file.metadata().ok()?.len()));
                lengths.sum::<u64>() > 64 << 10
            };
            match new.find(has_part) {
                Some(directory) => return directory,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let directory = within_timeout(started).await;
    let shell = directory.extension().unwrap().to_str().unwrap();
    let shell = process(shell.parse().unwrap()).unwrap();
    link.end();
    let (status, output) = running.end().await;
    assert_eq!(status.code(), Some(69), "{output}");
    assert!(ends_soon(&shell), "the shell there has not ended");
    assert_eq!(host.temporary_files(), before);
    assert_eq!(walk(&host.home()), home);
}

/// Returns a handle of a process, unless it has ended.
fn process(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).ok()
}

fn ends_soon(process: &OwnedFd) -> bool {
    let limit = Timespec::try_from(TIMEOUT).unwrap();
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    retry_on_intr(|| poll(&mut polled, Some(&limit))).unwrap() == 1
}

fn parent(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.unwrap().trim().parse().unwrap()
}

fn name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

fn children(pid: i32) -> Vec<i32> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let list = fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        children.extend(
            list.split_whitespace()
                .map(|pid| pid.parse::<i32>().unwrap()),
        );
    }
    children
}

fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(walk(&path));
        }
        all.push(path);
    }
    all.sort();
    all
}

#[tokio::test]
async fn target_is_refused_where_it_is_malformed() {
    let user = TestUser::new();
    let result = user
        .run(["run", "--env", "ssh:-oProxyCommand=x", "true"])
        .await;
    result.failed(2, &["ssh:[user@]host[:port]"]);
    let result = user.run(["env", "add", "x", "docker:a b"]).await;
    result.failed(2, &["docker:NAME"]);
    let result = user.run(["connect", "box"]).await;
    result.failed(2, &["ssh:, docker:"]);
}

#[tokio::test]
async fn passphrase_is_asked_for_only_where_a_user_can_answer() {
    let host = SshHost::start().await;
    host.install();
    host.encrypt_user_key("secret");
    let user = host.user().with("TERM", "dumb");
    let run = ["run", "-E", "ssh:box", "echo", "in"];
    let denied = ["Permission denied", "without a terminal"];

    // Without a terminal, as in a service.
    let mut words = vec!["--wait", product().to_str().unwrap()];
    words.extend(run);
    let mut service = user.program(Path::new("/usr/bin/setsid"), &words);
    service.output_soon().await.failed(69, &denied);
    // A program that asks in a window does not need one.
    let ask = host.root().join("askpass");
    super::ssh_host::write_program(&ask, "#!/bin/sh\necho secret\n");
    service.env("SSH_ASKPASS", &ask);
    assert_eq!(service.output_soon().await.expect_success(), "in\n");

    // On a terminal, but not for the user of the terminal.
    let program = product().display();
    for script in [
        format!("'{program}' connect ssh:box </dev/null"),
        format!("'{program}' mcp -E ssh:box </dev/null"),
        format!("set -m; '{program}' run -E ssh:box true & wait $!"),
        format!("'{program}' run -E ssh:box true 2>errors; status=$?; cat errors; exit $status"),
    ] {
        let shell = user.program(Path::new("/bin/sh"), ["-c", &script]);
        let mut window = TerminalWindow::open(&shell, (24, 200));
        assert_eq!(window.end().await.code(), Some(69), "{script}");
        let shown = window.remaining_output();
        assert!(shown.contains("Permission denied"), "{script}: {shown}");
        assert!(!shown.contains("passphrase"), "{script}: {shown}");
    }

    // In the foreground, also with piped input.
    let script = format!("echo piped | '{program}' run -E ssh:box cat");
    let shell = user.program(Path::new("/bin/sh"), ["-c", &script]);
    let mut window = TerminalWindow::open(&shell, (24, 200));
    window.shows("Enter passphrase").await;
    window.types("secret\r");
    window.shows("piped").await;
    assert_eq!(window.end().await.code(), Some(0));
}

#[tokio::test]
async fn password_is_asked_for_on_the_terminal_and_ctrl_c_reaches_ssh() {
    let host = SshHost::start().await;
    host.install();
    // Stands for an ssh that asks: keys need no password.
    let ask = host.root().join("ask");
    let config = host.root().join("ssh_config");
    let text = format!(
        "#!/bin/sh\nprintf 'Password: ' >/dev/tty\nread -r word </dev/tty\n\
         [ \"$word\" = secret ] || exit 1\nexec ssh -F {} \"$@\"\n",
        config.display()
    );
    super::ssh_host::write_program(&ask, &text);
    let user = host
        .user()
        .with("TERM", "xterm")
        .with("EXEC_SERVER_SSH", ask.to_str().unwrap());
    let line = [
        "run",
        "-t",
        "-E",
        "ssh:box",
        "sh",
        "-c",
        "read line; echo got $line",
    ];
    let mut window = TerminalWindow::open(&user.command(line), (24, 80));
    window.shows("Password: ").await;
    window.types("secret\r");
    window.types("it\r");
    window.shows("got it").await;
    assert_eq!(window.end().await.code(), Some(0));
    let mut window = TerminalWindow::open(&user.command(line), (24, 80));
    window.shows("Password: ").await;
    window.is_lent().await;
    window.types("\x03");
    assert_eq!(window.end().await.code(), Some(69));
}
