//! Programs that this test binary becomes under other names: a server that starts one durable
//! command, and clients of the keeper.

use std::{
    ffi::{OsStr, OsString},
    io::{PipeReader, Read, Write, pipe},
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio, exit},
    sync::Arc,
};

use exec_process::spawner::Spawner;
use exec_spawn::{
    keeper::{KeeperClient, KeeperError},
    process_tree::{self, ProcessStat},
    spawner::{adopt_orphans, stop_orphans},
};
use tokio::runtime::Builder;

use super::{DurableCommand, SCRIPT, bounded, kill, wait_closed, wait_readable, wait_until};

/// `argv[0]` of a server.
const SERVER: &str = "keeper-test-server";
/// `argv[0]` of a server that adopts orphans.
pub(super) const SUBREAPER: &str = "keeper-test-subreaper";
/// `argv[0]` of a client that the keeper serves.
pub(super) const CLIENT: &str = "keeper-test-client";
/// `argv[0]` of a client that the keeper refuses.
pub(super) const CONFINED_CLIENT: &str = "keeper-test-confined-client";

const CONNECTING: u8 = b'c';
const STARTED: u8 = b's';

/// What a server has done.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Progress {
    /// It is about to connect to the keeper.
    Connecting,
    /// The command is running, and its start was not recorded.
    Started,
    /// It has exited.
    Exited,
}

/// A server in another process.
pub(super) struct TestServer {
    process: Child,
    progress: PipeReader,
    alive: PipeReader,
}

impl TestServer {
    /// Starts a server that uses the keeper behind `socket`.
    pub(super) fn start(socket: &Path) -> Self {
        Self::start_as(SERVER, socket)
    }

    /// Starts a process with another role.
    pub(super) fn start_as(role: &str, socket: &Path) -> Self {
        let (progress, progress_write) = pipe().unwrap();
        let (alive, alive_write) = pipe().unwrap();
        let process = Command::new("/proc/self/exe")
            .arg0(role)
            .arg(socket)
            .stdin(progress_write)
            .stdout(alive_write)
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self {
            process,
            progress,
            alive,
        }
    }

    /// Waits for the next progress of the server.
    pub(super) fn progress(&self) -> Progress {
        wait_readable(&self.progress);
        let mut byte = [0];
        match (&self.progress).read(&mut byte).unwrap() {
            0 => Progress::Exited,
            _ if byte == [CONNECTING] => Progress::Connecting,
            _ => Progress::Started,
        }
    }

    /// Waits for the server to start its command.
    pub(super) fn wait_started(&self) {
        assert_eq!(self.progress(), Progress::Connecting);
        assert_eq!(self.progress(), Progress::Started);
    }

    /// Waits until the process exits by itself.
    pub(super) fn wait(mut self) -> ExitStatus {
        wait_closed(&self.alive);
        self.process.wait().unwrap()
    }

    /// Kills the server. Returns a pipe that closes when its command has exited, too.
    pub(super) fn kill(mut self) -> PipeReader {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.alive
    }
}

extern "C" fn before_main() {
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let is_named = |role: &str| name.as_deref() == Some(OsStr::new(role));
    if is_named(SERVER) {
        serve(&arguments.next().unwrap());
    }
    if is_named(SUBREAPER) {
        look_for_orphans(&arguments.next().unwrap());
    }
    if is_named(CLIENT) {
        let client = KeeperClient::connect(Path::new(&arguments.next().unwrap()));
        exit(i32::from(!matches!(client, Ok(Some(_)))));
    }
    if is_named(CONFINED_CLIENT) {
        rustix::thread::set_no_new_privs(true).unwrap();
        let client = KeeperClient::connect(Path::new(&arguments.next().unwrap()));
        exit(i32::from(!matches!(client, Err(KeeperError::Refused))));
    }
}

#[used]
// SAFETY: the section holds pointers to functions without arguments; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// Starts a durable command, and waits to be killed.
fn serve(socket: &OsString) -> ! {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    report_progress(CONNECTING);
    runtime.block_on(async {
        let keeper = KeeperClient::connect(Path::new(socket)).unwrap().unwrap();
        let command = start_command(&Arc::new(keeper)).await;
        report_progress(STARTED);
        std::future::pending::<()>().await;
        drop(command);
    });
    exit(1);
}

/// Is the parent of a keeper, and after its death of the durable spawner.
fn look_for_orphans(socket: &OsString) -> ! {
    adopt_orphans().unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    report_progress(CONNECTING);
    runtime.block_on(async {
        let program = Path::new("/proc/self/exe");
        let keeper = KeeperClient::connect_or_start(Path::new(socket), program).unwrap();
        let keeper = Arc::new(keeper);
        let mut command = start_command(&keeper).await;
        command.wait_ready();
        let own = std::process::id().cast_signed();
        let supervisor = command.child.supervisor();
        let spawner = ProcessStat::read(supervisor).unwrap().parent;
        assert_eq!(process_tree::children(own), [keeper.pid().cast_signed()]);
        assert!(!stop_orphans(true));
        assert!(!keeper.has_exited());
        kill(keeper.exit_descriptor());
        wait_until(|| ProcessStat::read(spawner).unwrap().parent == own);
        assert!(!stop_orphans(true));
        assert!(!ProcessStat::read(spawner).unwrap().is_dead());
        report_progress(STARTED);
        command.finish(9).await;
        drop(keeper);
        // The spawner has exited, and is reaped by the task that watches it.
        while !process_tree::children(own).is_empty() {
            bounded(tokio::task::yield_now()).await;
        }
    });
    exit(0);
}

async fn start_command(keeper: &Arc<KeeperClient>) -> DurableCommand {
    let spawner = Spawner::durable(keeper.clone());
    let stderr = std::io::stdout().as_fd().try_clone_to_owned().unwrap();
    let command = DurableCommand::start(keeper, &spawner, SCRIPT, stderr).await;
    command.unwrap()
}

/// Writes to the pipe of the progress, which is standard input.
fn report_progress(byte: u8) {
    let progress = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    std::fs::File::from(progress).write_all(&[byte]).unwrap();
}
