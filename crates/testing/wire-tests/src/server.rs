//! Server process of a test, killed with it, and process information from `/proc`.

use std::{
    net::SocketAddr,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{ExitStatus, Output, Stdio},
    time::Duration,
};

use exec_test_support::workspace_program::workspace_program;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::{TcpStream, UnixStream},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::spawn_blocking,
    time::{sleep, timeout},
};

use crate::client::{Client, Duplex};

/// Timeout of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Transport between test and server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Transport {
    WebSocket,
    Unix,
    Stdio,
}

/// Server process. Dropping it sends SIGKILL, which also kills all its processes.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) dir: TempDir,
    child: Child,
    address: Address,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

#[derive(Clone, Debug)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Pipes,
}

impl Server {
    /// Starts a server and waits until it listens.
    pub(crate) async fn start(transport: Transport, flags: &[&str]) -> Self {
        Self::start_by("exec \"$0\" \"$@\"", transport, flags).await
    }

    /// Starts a server as another user, who owns its directory. Needs privileges.
    pub(crate) async fn start_as(user: u32, transport: Transport, flags: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        chown(dir.path(), Some(user), Some(user)).unwrap();
        let command = |command: &mut Command| {
            command.uid(user).gid(user);
        };
        Self::launch(dir, command, "exec \"$0\" \"$@\"", transport, flags).await
    }

    /// Starts a server through a shell script that ends in `exec "$0" "$@"`.
    pub(crate) async fn start_by(script: &str, transport: Transport, flags: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        Self::launch(dir, |_| {}, script, transport, flags).await
    }

    async fn launch(
        dir: TempDir,
        change: impl FnOnce(&mut Command),
        script: &str,
        transport: Transport,
        flags: &[&str],
    ) -> Self {
        let socket = dir.path().join("s");
        let listen = match transport {
            Transport::WebSocket => "ws://127.0.0.1:0".to_owned(),
            Transport::Unix => format!("unix://{}", socket.display()),
            Transport::Stdio => "stdio".to_owned(),
        };
        let mut flags = flags.to_vec();
        if !flags.contains(&"--listen") {
            flags.extend(["--listen", &listen]);
        }
        let mut command = shell(dir.path(), script, &flags);
        change(&mut command);
        let mut child = command
            .stdin(if transport == Transport::Stdio {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, mut stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        let address = match transport {
            Transport::Stdio => Address::Pipes,
            Transport::Unix | Transport::WebSocket => {
                let mut line = String::new();
                let read = stdout.as_mut().unwrap().read_line(&mut line);
                timeout(TIMEOUT, read)
                    .await
                    .expect("server did not announce itself in time")
                    .unwrap();
                Address::parse(&line)
            }
        };
        Self {
            dir,
            child,
            address,
            stdin,
            stdout,
        }
    }

    /// Connects and completes the handshake.
    pub(crate) async fn ready(&mut self) -> Client {
        let mut client = self.connect().await;
        client.handshake().await;
        client
    }

    /// Connects without sending anything.
    pub(crate) async fn connect(&mut self) -> Client {
        match self.address {
            Address::Pipes => {
                let (stdin, stdout) = (self.stdin.take(), self.stdout.take());
                Client::lines(
                    stdin.expect("stdio allows only one client"),
                    stdout.unwrap(),
                )
            }
            Address::Tcp(_) | Address::Unix(_) => Client::upgrade(self.stream().await, None).await,
        }
    }

    /// Opens a byte stream to the server's socket.
    pub(crate) async fn stream(&self) -> Box<dyn Duplex> {
        match &self.address {
            Address::Tcp(address) => Box::new(TcpStream::connect(address).await.unwrap()),
            Address::Unix(path) => Box::new(UnixStream::connect(path).await.unwrap()),
            Address::Pipes => panic!("stdio has no socket"),
        }
    }

    /// Returns the port that the server listens on.
    pub(crate) fn port(&self) -> u16 {
        match &self.address {
            Address::Tcp(address) => address.port(),
            Address::Unix(_) | Address::Pipes => panic!("only TCP has ports"),
        }
    }

    /// Returns the server's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("server has exited")
    }

    /// Returns the path of a file in the server's working directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Sends the server a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(to_pid(self.pid()), signal).unwrap();
    }

    /// Waits for the server to exit. Returns its status and its output after the first line.
    pub(crate) async fn ended(&mut self) -> (ExitStatus, String) {
        drop(self.stdin.take());
        let mut rest = String::new();
        let end = async {
            if let Some(mut stdout) = self.stdout.take() {
                stdout.read_to_string(&mut rest).await.unwrap();
            }
            self.child.wait().await.unwrap()
        };
        let status = timeout(TIMEOUT, end)
            .await
            .expect("server did not exit in time");
        (status, rest)
    }
}

impl Address {
    fn parse(line: &str) -> Self {
        let line = line.strip_suffix('\n').expect("announcement is not a line");
        match line.split_once("://") {
            Some(("ws" | "wss", address)) => Self::Tcp(address.parse().expect(line)),
            Some(("unix", path)) => Self::Unix(path.into()),
            _ => panic!("invalid URL {line:?}"),
        }
    }
}

/// Runs a server that is expected to exit by itself.
pub(crate) async fn run(dir: &Path, flags: &[&str]) -> Output {
    let mut command = shell(dir, "exec \"$0\" \"$@\"", flags);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    timeout(TIMEOUT, command.output())
        .await
        .expect("server did not exit by itself")
        .unwrap()
}

/// Prepares a server without this machine's configuration.
pub(crate) fn shell(dir: &Path, script: &str, flags: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .arg(workspace_program("exec-server"))
        .args(flags)
        .current_dir(dir)
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", dir)
        .env("EXEC_SERVER_HOME", dir)
        .kill_on_drop(true);
    command
}

/// `PATH` of children.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Process of this host, held by a pidfd.
#[derive(Debug)]
pub(crate) struct WatchedProcess {
    pid: u32,
    fd: OwnedFd,
}

impl WatchedProcess {
    /// Opens a pidfd of a live process.
    pub(crate) fn new(pid: u32) -> Self {
        let fd = pidfd_open(to_pid(pid), PidfdFlags::NONBLOCK).expect("process is not alive");
        Self { pid, fd }
    }

    /// Returns its id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it exits.
    pub(crate) async fn death(self) {
        let what = format!("death of {}", status_of(self.pid));
        until(&what, || {
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
        })
        .await;
    }

    /// Waits at most this long for its exit. Returns whether it has exited.
    pub(crate) async fn exits_within(&self, time: Duration) -> bool {
        let (fd, time) = (self.fd.try_clone().unwrap(), time.try_into().unwrap());
        let poll = move || poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).unwrap() > 0;
        spawn_blocking(poll).await.unwrap()
    }

    /// Returns whether it is alive.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(state_of(self.pid), None | Some('Z' | 'X'))
    }
}

/// Polls until `condition` holds, for state without notifications.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let holds = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, holds)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

/// Returns the number of open descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

/// Returns one line of a process's `/proc` file, without its name.
pub(crate) fn proc_line(pid: u32, file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn status_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()
}

fn state_of(pid: u32) -> Option<char> {
    status_of(pid).rsplit_once(") ")?.1.chars().next()
}

pub(crate) fn to_pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}
