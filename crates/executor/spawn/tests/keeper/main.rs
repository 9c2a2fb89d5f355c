//! Durable processes: servers that are killed, keepers that are killed, and what goes on then.
//!
//! A server that is to be killed is this test program under another name.
#![expect(
    unsafe_code,
    reason = "the test program becomes a server before main; the block states its argument"
)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::exit,
    reason = "a panic is how a test fails, and roles of the test program end here"
)]

mod test_server;

use std::{
    fs::File,
    future::Future,
    io::{PipeReader, PipeWriter, Read, Write, pipe},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use exec_process::spawner::{
    CommandSpec, CommandStdio, ExitReport, SpawnError, Spawner, SupervisedChild, SupervisorReport,
};
use exec_spawn::{
    keeper::{HeldRecord, KeeperClient, KeeperSlot},
    process_tree::{self, ProcessStat},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process, pidfd_send_signal},
};
use tokio::time::timeout;

use self::test_server::{Progress, TestServer};

/// Longest wait for another process.
const WAIT: Duration = Duration::from_secs(20);
/// Record of the process that a test starts.
const RECORD: [u8; 16] = *b"durable-process!";
/// Prints a line, and exits with the status that it reads.
const SCRIPT: &str = "echo ready; read status; exit $status";

/// A directory for a keeper's socket.
pub(crate) struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("keeper.sock")
    }

    fn keeper(&self) -> Arc<KeeperClient> {
        let program = Path::new("/proc/self/exe");
        Arc::new(KeeperClient::connect_or_start(&self.socket(), program).unwrap())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A keeper that holds a record would go on.
        if let Ok(Some(keeper)) = KeeperClient::connect(&self.socket()) {
            kill(keeper.exit_descriptor());
        }
    }
}

/// A durable command with the ends of its pipes.
pub(crate) struct DurableCommand {
    child: SupervisedChild,
    stdin: OwnedFd,
    stdout: OwnedFd,
}

impl DurableCommand {
    /// Starts a shell and hands it to the keeper. Its stderr is `stderr`.
    pub(crate) async fn start(
        keeper: &KeeperClient,
        spawner: &Spawner,
        script: &str,
        stderr: OwnedFd,
    ) -> Result<Self, SpawnError> {
        let (stdin_read, stdin) = pipe().unwrap();
        let (stdout, stdout_write) = pipe().unwrap();
        let (stdin, stdout) = (OwnedFd::from(stdin), OwnedFd::from(stdout));
        let spec = CommandSpec {
            program: "/bin/sh".into(),
            argv: ["sh", "-c", script].map(Into::into).to_vec(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            cwd: "/".into(),
            ..CommandSpec::default()
        };
        let stdio = CommandStdio {
            fds: [stdin_read.into(), stdout_write.into(), stderr],
            terminal: false,
        };
        let hold = async |control: OwnedFd, spawner: OwnedFd| {
            let slots = [
                (KeeperSlot::Control, control.as_fd()),
                (KeeperSlot::SpawnerPid, spawner.as_fd()),
                (KeeperSlot::Stdin, stdin.as_fd()),
                (KeeperSlot::Stdout, stdout.as_fd()),
            ];
            keeper.hold(&RECORD, &slots).map_err(SpawnError::Keeper)
        };
        let child = spawner.spawn_with_control(spec, stdio, hold).await?;
        Ok(Self {
            child,
            stdin,
            stdout,
        })
    }

    /// Adopts the process of a record.
    async fn adopt(record: HeldRecord) -> Result<Self, SpawnError> {
        let mut held = record.descriptors;
        let mut take = |slot| held.remove(&slot).unwrap();
        let control = take(KeeperSlot::Control);
        let pidfd = take(KeeperSlot::SpawnerPid);
        let (stdin, stdout) = (take(KeeperSlot::Stdin), take(KeeperSlot::Stdout));
        Ok(Self {
            child: bounded(SupervisedChild::adopt_starting(control, pidfd)).await?,
            stdin,
            stdout,
        })
    }

    /// Reads the line that [`SCRIPT`] prints.
    fn wait_ready(&mut self) {
        let mut line = [0; 6];
        wait_readable(&self.stdout);
        let mut stdout = File::from(self.stdout.try_clone().unwrap());
        stdout.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"ready\n");
    }

    /// Makes [`SCRIPT`] exit, and checks its reports: first the start, once, if it was not consumed.
    async fn finish(self, status: i32) {
        let mut stdin = File::from(self.stdin);
        writeln!(stdin, "{status}").unwrap();
        let exit = exit_of(&self.child).await.expect("exit report");
        assert_eq!(exit.status, status << 8);
    }
}

/// Consumes all reports, and returns the exit.
async fn exit_of(child: &SupervisedChild) -> Option<ExitReport> {
    let mut exit = None;
    while let Some(report) = bounded(child.peek_report()).await {
        assert_eq!(bounded(child.peek_report()).await, Some(report));
        child.consume_report();
        if let SupervisorReport::Exited(report) = report {
            assert_eq!(exit.replace(report), None);
        }
    }
    exit
}

async fn bounded<T>(work: impl Future<Output = T>) -> T {
    timeout(WAIT, work).await.expect("bounded time")
}

/// Waits until a descriptor is readable or closed.
fn wait_readable(descriptor: impl AsFd) {
    let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
    let timeout = Timespec::try_from(WAIT).unwrap();
    assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "nothing in {WAIT:?}");
}

/// Waits until every process that holds the other end has exited.
fn wait_closed(mut pipe: &PipeReader) {
    let deadline = Instant::now() + WAIT;
    loop {
        assert!(Instant::now() < deadline, "a process is left");
        wait_readable(pipe);
        if pipe.read(&mut [0; 4096]).unwrap() == 0 {
            return;
        }
    }
}

/// Waits until the keeper has no child.
fn wait_childless(keeper: &KeeperClient) {
    let pid = keeper.pid().cast_signed();
    wait_until(|| process_tree::children(pid).is_empty());
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not in {WAIT:?}");
        std::thread::yield_now();
    }
}

fn kill(process: BorrowedFd<'_>) {
    pidfd_send_signal(process, Signal::KILL).unwrap();
    wait_readable(process);
}

/// Returns a pipe whose write end processes inherit, to notice the exit of the last one.
fn alive_pipe() -> (PipeReader, PipeWriter) {
    pipe().unwrap()
}

#[tokio::test]
async fn command_survives_its_killed_server_with_its_exact_exit_code() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let server = TestServer::start(&fixture.socket());
    server.wait_started();
    let alive = server.kill();
    let record = keeper.list().unwrap().remove(0);
    assert_eq!(record.record, RECORD);
    let mut command = DurableCommand::adopt(record).await.unwrap();
    assert!(command.child.pid() > 1);
    command.wait_ready();
    command.finish(43).await;
    keeper.drop_record(&RECORD).unwrap();
    wait_closed(&alive);
    wait_childless(&keeper);
    // Nothing is held any more, so the keeper exits.
    let exit = keeper.exit_descriptor().try_clone_to_owned().unwrap();
    drop(keeper);
    wait_readable(exit);
}

#[tokio::test]
async fn server_killed_at_any_instant_leaves_no_process_unlisted() {
    const ROUNDS: u32 = 100;
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let mut longest = WAIT;
    for _ in 0..5 {
        let server = TestServer::start(&fixture.socket());
        assert_eq!(server.progress(), Progress::Connecting);
        let begin = Instant::now();
        assert_eq!(server.progress(), Progress::Started);
        longest = longest.min(begin.elapsed() * 3 / 2);
        drop(server.kill());
        assert_eq!(finish_record(&keeper, 0).await, 1);
    }
    for round in 1..=ROUNDS {
        let server = TestServer::start(&fixture.socket());
        assert_eq!(server.progress(), Progress::Connecting);
        // The instant of the kill, spread over the start.
        std::thread::sleep(longest * round / ROUNDS);
        let alive = server.kill();
        finish_record(&keeper, i32::try_from(round).unwrap()).await;
        // A process that runs without a record would hold the pipe.
        wait_closed(&alive);
    }
    wait_childless(&keeper);
}

/// Adopts the only process, makes it exit with this status, and drops its record. Returns how many
/// there were.
async fn finish_record(keeper: &KeeperClient, status: i32) -> u32 {
    let mut records = keeper.list().unwrap();
    assert!(records.len() <= 1);
    let Some(record) = records.pop() else {
        return 0;
    };
    let adopted = match DurableCommand::adopt(record).await {
        Ok(mut command) => {
            command.wait_ready();
            command.finish(status).await;
            1
        }
        // The server was killed after it had handed the process over, and before it was started.
        Err(SpawnError::Lost) => 0,
        Err(error) => panic!("{error:?}"),
    };
    keeper.drop_record(&RECORD).unwrap();
    adopted
}

#[tokio::test]
async fn processes_go_on_without_the_keeper_while_their_server_lives() {
    let fixture = Fixture::new();
    let first = fixture.keeper();
    let (alive, stderr) = alive_pipe();
    let spawner = Spawner::durable(first.clone());
    let command = DurableCommand::start(&first, &spawner, SCRIPT, stderr.into());
    let mut command = bounded(command).await.unwrap();
    kill(first.exit_descriptor());
    command.wait_ready();
    // The next keeper gets all descriptors again.
    let second = fixture.keeper();
    let control = command.child.control();
    second
        .hold(&RECORD, &[(KeeperSlot::Control, control)])
        .unwrap();
    assert_eq!(second.list().unwrap().len(), 1);
    command.finish(5).await;
    second.drop_record(&RECORD).unwrap();
    wait_closed(&alive);
}

#[tokio::test]
async fn tree_dies_if_keeper_and_server_are_killed() {
    for keeper_first in [true, false] {
        let fixture = Fixture::new();
        let keeper = fixture.keeper();
        let server = TestServer::start(&fixture.socket());
        server.wait_started();
        let alive = if keeper_first {
            kill(keeper.exit_descriptor());
            server.kill()
        } else {
            let alive = server.kill();
            kill(keeper.exit_descriptor());
            alive
        };
        wait_closed(&alive);
    }
}

#[tokio::test]
async fn tree_of_a_killed_spawner_dies_and_the_keeper_reaps_it() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (alive, stderr) = alive_pipe();
    let spawner = Spawner::durable(keeper.clone());
    let command = DurableCommand::start(&keeper, &spawner, SCRIPT, stderr.into());
    let mut command = bounded(command).await.unwrap();
    command.wait_ready();
    let pid = ProcessStat::read(command.child.supervisor())
        .unwrap()
        .parent;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let exit = exit_of(&command.child).await.expect("exit report");
    assert!(libc::WIFSIGNALED(exit.status));
    wait_closed(&alive);
    wait_childless(&keeper);
    keeper.drop_record(&RECORD).unwrap();
    // The next command has a new spawner.
    let (_alive, stderr) = alive_pipe();
    let next = DurableCommand::start(&keeper, &spawner, SCRIPT, stderr.into());
    bounded(next).await.unwrap().finish(0).await;
}

#[tokio::test]
async fn orphans_of_a_killed_spawner_and_supervisor_are_killed_by_the_keeper() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (alive, stderr) = alive_pipe();
    let spawner = Spawner::durable(keeper.clone());
    let script = "setsid sh -c 'setsid sleep 1000 & exit' & wait; echo ready; sleep 1000";
    let command = DurableCommand::start(&keeper, &spawner, script, stderr.into());
    let mut command = bounded(command).await.unwrap();
    command.wait_ready();
    let supervisor = command.child.supervisor();
    let spawner = ProcessStat::read(supervisor).unwrap().parent;
    let send = |pid, signal| kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    // Stopped, so that the spawner does not kill the orphans of the supervisor itself.
    send(spawner, Signal::STOP);
    send(supervisor, Signal::KILL);
    wait_until(|| ProcessStat::read(supervisor).is_none_or(ProcessStat::is_dead));
    send(spawner, Signal::KILL);
    wait_closed(&alive);
    wait_childless(&keeper);
}

#[tokio::test]
async fn dropped_child_is_killed_and_released_child_goes_on() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (alive, stderr) = alive_pipe();
    let spawner = Spawner::durable(keeper.clone());
    let command = DurableCommand::start(&keeper, &spawner, SCRIPT, stderr.into());
    let mut command = bounded(command).await.unwrap();
    command.wait_ready();
    command.child.release();
    // The spawner outlives the handle, too.
    drop((command, spawner));
    let command = DurableCommand::adopt(keeper.list().unwrap().remove(0));
    let command = command.await.unwrap();
    drop(command);
    // The keeper still holds the control socket.
    wait_closed(&alive);
    wait_childless(&keeper);
    assert_eq!(keeper.list().unwrap().len(), 1);
    keeper.drop_record(&RECORD).unwrap();
}

#[tokio::test]
async fn failed_start_leaves_a_record_that_cannot_be_adopted() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let spawner = Spawner::durable(keeper.clone());
    let mut command = None;
    let spec = CommandSpec {
        program: "/nope".into(),
        argv: vec!["nope".into()],
        cwd: "/".into(),
        ..CommandSpec::default()
    };
    let stdio = CommandStdio::null().unwrap();
    let hold = |control: OwnedFd, spawner: OwnedFd| {
        let slots = [
            (KeeperSlot::Control, control.as_fd()),
            (KeeperSlot::SpawnerPid, spawner.as_fd()),
        ];
        let held = keeper.hold(&RECORD, &slots).map_err(SpawnError::Keeper);
        command = Some((control, spawner));
        std::future::ready(held)
    };
    let failed = bounded(spawner.spawn_with_control(spec, stdio, hold)).await;
    assert!(matches!(failed, Err(SpawnError::Host { .. })), "{failed:?}");
    let (control, spawner) = command.unwrap();
    let adopted = bounded(SupervisedChild::adopt_starting(control, spawner)).await;
    assert!(
        matches!(adopted, Err(SpawnError::Host { .. })),
        "{adopted:?}"
    );
}

#[tokio::test]
async fn command_is_not_started_if_it_cannot_be_held() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (alive, stderr) = alive_pipe();
    let spawner = Spawner::durable(keeper.clone());
    // Started ahead, because only a keeper that lives starts one.
    spawner.warm_up().await.unwrap();
    kill(keeper.exit_descriptor());
    let command = DurableCommand::start(&keeper, &spawner, SCRIPT, stderr.into());
    let result = bounded(command).await;
    assert!(matches!(result.err(), Some(SpawnError::Keeper(_))));
    wait_closed(&alive);
}

#[test]
fn sandboxed_process_is_refused() {
    let fixture = Fixture::new();
    let _keeper = fixture.keeper();
    let connect = |role| {
        let mut command = Command::new("/proc/self/exe");
        std::os::unix::process::CommandExt::arg0(&mut command, role);
        command.arg(fixture.socket()).status().unwrap()
    };
    assert!(connect(test_server::CLIENT).success());
    assert!(connect(test_server::CONFINED_CLIENT).success());
}

#[test]
fn subreaper_does_not_take_keeper_and_durable_spawner_for_orphans() {
    let fixture = Fixture::new();
    let server = TestServer::start_as(test_server::SUBREAPER, &fixture.socket());
    server.wait_started();
    assert!(server.wait().success());
}
