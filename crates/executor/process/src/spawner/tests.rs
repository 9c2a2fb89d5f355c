use std::{io::Read, os::fd::OwnedFd};

use exec_spawn::keeper::KeeperClient;

use super::*;
use crate::stdio;

fn spec(argv: &[&str]) -> CommandSpec {
    CommandSpec {
        program: argv[0].into(),
        argv: argv.iter().map(Into::into).collect(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: "/".into(),
        ..CommandSpec::default()
    }
}

/// Standard descriptors with this output.
fn stdio_to(stdout: OwnedFd) -> CommandStdio {
    let mut stdio = CommandStdio::null().unwrap();
    stdio.fds[1] = stdout;
    stdio
}

#[tokio::test]
async fn exit_of_a_command_is_reported() {
    let spawner = Spawner::default();
    let child = spawner
        .spawn(
            spec(&["/bin/sh", "-c", "exit 7"]),
            stdio_to(stdio::open_null().unwrap()),
        )
        .await
        .unwrap();
    assert!(child.pid() > 1);
    let Some(SupervisorReport::Exited(exit)) = child.report().await else {
        panic!("expected an exit report")
    };
    assert_eq!(libc::WEXITSTATUS(exit.status), 7);
    assert_eq!(child.report().await, None);
}

#[tokio::test]
async fn failed_stage_of_a_start_is_reported() {
    let spawner = Spawner::default();
    let failure = async |spec: CommandSpec| {
        let stdio = stdio_to(stdio::open_null().unwrap());
        match spawner.spawn(spec, stdio).await {
            Err(SpawnError::Host { stage, source }) => (stage, source.raw_os_error().unwrap()),
            other => panic!("expected a failure: {other:?}"),
        }
    };
    assert_eq!(
        failure(spec(&["/nope"])).await,
        (SpawnStage::Exec, libc::ENOENT)
    );
    assert_eq!(
        failure(spec(&["/etc/passwd"])).await,
        (SpawnStage::Exec, libc::EACCES)
    );
    let nowhere = CommandSpec {
        cwd: "/nope".into(),
        ..spec(&["/bin/true"])
    };
    assert_eq!(failure(nowhere).await, (SpawnStage::Chdir, libc::ENOENT));
}

#[tokio::test]
async fn child_has_three_descriptors_and_default_signals() {
    let (ours, theirs) = stdio::pipe_to_child()
        .map(|(write, read)| (read, write))
        .unwrap();
    rustix::io::ioctl_fionbio(&theirs, false).unwrap();
    let spawner = Spawner::default();
    let script = "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd";
    let _child = spawner
        .spawn(spec(&["/bin/sh", "-c", script]), stdio_to(theirs))
        .await
        .unwrap();
    let mut text = String::new();
    std::fs::File::from(ours).read_to_string(&mut text).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    // `ls` itself opens the directory as descriptor 3.
    let zero = "0000000000000000";
    assert_eq!(
        words,
        ["SigBlk:", zero, "SigIgn:", zero, "0", "1", "2", "3"]
    );
}

#[tokio::test]
async fn dropping_a_child_kills_double_forked_descendants() {
    let (ours, theirs) = stdio::pipe_to_child()
        .map(|(write, read)| (read, write))
        .unwrap();
    let spawner = Spawner::default();
    let script = "setsid sh -c 'setsid sleep 1000 & exit' & wait; echo ready; sleep 1000";
    let child = spawner
        .spawn(spec(&["/bin/sh", "-c", script]), stdio_to(theirs))
        .await
        .unwrap();
    let mut pipe = std::fs::File::from(ours);
    let mut ready = [0; 6];
    pipe.read_exact(&mut ready).unwrap();
    drop(child);
    // Every descendant holds the pipe, so end of file means that all of them are gone.
    let mut rest = Vec::new();
    pipe.read_to_end(&mut rest).unwrap();
}

#[tokio::test]
async fn dead_spawner_is_replaced_and_its_commands_are_lost() {
    let spawner = Spawner::default();
    let null = || stdio::open_null().unwrap();
    let child = spawner
        .spawn(spec(&["/bin/sleep", "1000"]), stdio_to(null()))
        .await
        .unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.pid())).unwrap();
    let parent = |stat: &str| {
        stat.rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .nth(1)
            .unwrap()
            .to_owned()
    };
    let supervisor = parent(&stat);
    let spawner_pid = parent(&std::fs::read_to_string(format!("/proc/{supervisor}/stat")).unwrap());
    let spawner_pid = rustix::process::Pid::from_raw(spawner_pid.parse().unwrap()).unwrap();
    rustix::process::kill_process(spawner_pid, rustix::process::Signal::KILL).unwrap();
    while child.report().await.is_some() {}
    let next = spawner
        .spawn(spec(&["/bin/true"]), stdio_to(null()))
        .await
        .unwrap();
    assert!(matches!(
        next.report().await,
        Some(SupervisorReport::Exited(_))
    ));
}

/// Connects to a keeper in a directory, and starts it first.
fn keeper(directory: &tempfile::TempDir) -> Arc<KeeperClient> {
    let socket = directory.path().join("keeper.sock");
    Arc::new(KeeperClient::connect_or_start(&socket, Path::new(THIS_PROGRAM)).unwrap())
}

#[tokio::test]
async fn adopted_child_is_killed_although_its_supervisor_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = keeper(&directory);
    let (ours, theirs) = std::io::pipe().unwrap();
    let script = "setsid sleep 1000 & echo ready; sleep 1000";
    let spec = spec(&["/bin/sh", "-c", script]);
    let mut handed_over = None;
    let child = Spawner::durable(keeper.clone())
        .spawn_with_control(spec, stdio_to(theirs.into()), |control, spawner| {
            handed_over = Some((control, spawner));
            std::future::ready(Ok(()))
        })
        .await
        .unwrap();
    let mut output = std::fs::File::from(OwnedFd::from(ours));
    output.read_exact(&mut [0; 6]).unwrap();
    child.consume_report();
    let (pid, supervisor) = (child.pid(), child.supervisor());
    child.release();
    drop(child);
    let (control, pidfd) = handed_over.unwrap();
    let child = SupervisedChild::adopt(control, pid, supervisor, pidfd).unwrap();
    let number = rustix::process::Pid::from_raw(supervisor).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::STOP).unwrap();
    child.force_kill(false);
    let killed = async {
        let report = child.peek_report().await;
        let Some(SupervisorReport::Exited(exit)) = report else {
            panic!("expected an exit report: {report:?}")
        };
        assert_eq!(libc::WTERMSIG(exit.status), libc::SIGKILL);
        assert_eq!(child.peek_report().await, report);
        child.consume_report();
        // The supervisor exits after the last descendant.
        while child.peek_report().await.is_some() {
            child.consume_report();
        }
    };
    let limit = std::time::Duration::from_secs(10);
    tokio::time::timeout(limit, killed).await.unwrap();
    child.force_kill(true);
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
}

#[tokio::test]
async fn peeked_report_is_kept_until_it_is_consumed() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = keeper(&directory);
    let null = stdio::open_null().unwrap();
    let child = Spawner::durable(keeper)
        .spawn(spec(&["/bin/sh", "-c", "exit 3"]), stdio_to(null))
        .await
        .unwrap();
    let started = child.peek_report().await;
    let pid = child.pid();
    assert!(
        matches!(started, Some(SupervisorReport::Started { pid: reported, .. }) if reported == pid)
    );
    assert_eq!(child.peek_report().await, started);
    child.consume_report();
    let Some(SupervisorReport::Exited(exit)) = child.report().await else {
        panic!("expected an exit report")
    };
    assert_eq!(libc::WEXITSTATUS(exit.status), 3);
    assert_eq!(child.peek_report().await, None);
}

#[tokio::test]
async fn script_without_interpreter_line_runs_in_the_shell() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("script");
    std::fs::write(&path, "exit $1\n").unwrap();
    let mut mode = std::fs::metadata(&path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    let child = Spawner::default()
        .spawn(
            spec(&[path.to_str().unwrap(), "9"]),
            stdio_to(stdio::open_null().unwrap()),
        )
        .await
        .unwrap();
    let Some(SupervisorReport::Exited(exit)) = child.report().await else {
        panic!("expected an exit report")
    };
    assert_eq!(libc::WEXITSTATUS(exit.status), 9);
}
