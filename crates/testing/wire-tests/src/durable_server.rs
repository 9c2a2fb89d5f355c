//! Server with a state directory, which a test kills and starts again, and the raw output of its
//! processes.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::net::UnixStream as BlockingStream,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use exec_test_support::keeper_process::{keeper_of, kill_keeper_of};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::UnixStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::{
    client::{Client, decode, with},
    server::{TIMEOUT, WatchedProcess, shell, to_pid, until},
};

/// Server on a unix socket whose processes outlive it. Dropping it kills everything that it has
/// started.
#[derive(Debug)]
pub(crate) struct DurableServer {
    dir: TempDir,
    script: String,
    flags: Vec<String>,
    child: Option<Child>,
}

impl DurableServer {
    /// Starts a server whose processes are durable unless their start says otherwise.
    pub(crate) async fn start(flags: &[&str]) -> Self {
        Self::start_by("exec \"$0\" \"$@\"", flags).await
    }

    /// Starts a server through a shell script that ends in `exec "$0" "$@"`.
    pub(crate) async fn start_by(script: &str, flags: &[&str]) -> Self {
        let mut server = Self::prepare(script, flags);
        server.restart().await;
        server
    }

    /// Creates the directory of a server that is not started yet.
    pub(crate) fn prepare(script: &str, flags: &[&str]) -> Self {
        let mut flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        if !flags.iter().any(|flag| flag == "--durable") {
            flags.extend(["--durable".to_owned(), "all".to_owned()]);
        }
        Self {
            dir: TempDir::new().unwrap(),
            script: script.to_owned(),
            flags,
            child: None,
        }
    }

    /// Returns the path of a file in the server's working directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the state directory.
    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Returns the directories of all recorded processes.
    pub(crate) fn records(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.state().join("processes")) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns the command that starts another server with the same state directory.
    pub(crate) fn command(&self, socket: &str) -> Command {
        let listen = format!("unix://{}", self.path(socket).display());
        let state = self.state();
        let mut flags = vec!["--listen", &listen, "--state-dir", state.to_str().unwrap()];
        flags.extend(self.flags.iter().map(String::as_str));
        let mut command = shell(self.dir.path(), &self.script, &flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Starts a server without waiting for it.
    pub(crate) fn spawn(&mut self) {
        assert!(self.child.is_none(), "the server is running");
        self.child = Some(self.command("s").spawn().unwrap());
    }

    /// Starts a server and waits until it listens.
    pub(crate) async fn restart(&mut self) {
        self.spawn();
        let stdout = self.child.as_mut().unwrap().stdout.take().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout);
        timeout(TIMEOUT, stdout.read_line(&mut line))
            .await
            .expect("server did not announce itself in time")
            .unwrap();
        assert!(line.starts_with("unix://"), "{line:?}");
        // Kept open: the server must not find a closed stdout.
        self.child.as_mut().unwrap().stdout = Some(stdout.into_inner());
    }

    /// Returns the server's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).expect("no server")
    }

    /// Kills the server and waits until it is gone.
    pub(crate) async fn kill(&mut self) {
        self.stop(Signal::KILL).await;
    }

    /// Sends the server a signal and waits until it is gone.
    pub(crate) async fn stop(&mut self, signal: Signal) {
        kill_process(to_pid(self.pid()), signal).unwrap();
        let mut child = self.child.take().unwrap();
        timeout(TIMEOUT, child.wait())
            .await
            .expect("server did not exit in time")
            .unwrap();
    }

    /// Connects without sending anything.
    pub(crate) async fn connect(&self) -> Client {
        let stream = UnixStream::connect(self.path("s")).await.unwrap();
        Client::upgrade(Box::new(stream), None).await
    }

    /// Connects and opens a session. Returns its id, too.
    pub(crate) async fn ready(&self) -> (Client, String) {
        let mut client = self.connect().await;
        let session = client.handshake().await;
        (client, session)
    }

    /// Connects and resumes a session.
    pub(crate) async fn resume(&self, session: &str) -> Client {
        self.resume_with(session, json!({})).await
    }

    /// Connects and resumes a session with extra params.
    pub(crate) async fn resume_with(&self, session: &str, extra: Value) -> Client {
        let params = with(
            json!({"clientName": "c", "resumeSessionId": session}),
            extra,
        );
        let mut client = self.connect().await;
        let resumed = client.call("initialize", params).await;
        assert_eq!(resumed["sessionId"], session);
        client.send(r#"{"method":"initialized"}"#).await;
        client
    }

    /// Returns the pid of the keeper, if one answers.
    pub(crate) fn keeper(&self) -> Option<u32> {
        // The server may have mounts of its own.
        let root = match self.child.as_ref().and_then(Child::id) {
            Some(server) => PathBuf::from(format!("/proc/{server}/root")),
            None => PathBuf::from("/"),
        };
        let state = self.state();
        let state = state.strip_prefix("/").expect("path is absolute");
        let keeper = keeper_of(&root.join(state))?;
        u32::try_from(keeper.as_raw_nonzero().get()).ok()
    }

    /// Waits until a keeper other than `earlier` holds at least as many descriptors.
    pub(crate) async fn await_keeper_after(&self, earlier: u32, descriptors: usize) -> u32 {
        until("another keeper holds all descriptors", || {
            self.keeper()
                .is_some_and(|keeper| keeper != earlier && open_descriptors(keeper) >= descriptors)
        })
        .await;
        self.keeper().unwrap()
    }
}

impl Drop for DurableServer {
    fn drop(&mut self) {
        // Supervisors kill their trees once server and keeper are gone.
        let keeper = self.keeper();
        if let Some(mut child) = self.child.take()
            && let Some(pid) = child.id()
        {
            let _gone = kill_process(to_pid(pid), Signal::KILL);
            let deadline = Instant::now() + TIMEOUT;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if let Some(keeper) = keeper {
            let _gone = kill_process(to_pid(keeper), Signal::KILL);
        }
        kill_keeper_of(&self.state());
    }
}

/// Returns the number of open descriptors of a process, or 0 if it is gone.
pub(crate) fn open_descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Output of a process as a client without `acknowledge` reads it.
#[derive(Debug, Default)]
pub(crate) struct ReadOutput {
    pub(crate) streams: BTreeMap<String, Vec<u8>>,
    /// Highest sequence number that was read.
    pub(crate) last: u64,
    pub(crate) exit_code: Option<i64>,
    pub(crate) closed: bool,
}

impl ReadOutput {
    /// Reads one page after the last event. Returns whether it had output.
    pub(crate) async fn page(&mut self, client: &mut Client, id: &str, extra: Value) -> bool {
        let params = with(json!({"processId": id, "afterSeq": self.last}), extra);
        let page = client.call("process/read", params).await;
        let chunks = page["chunks"].as_array().unwrap();
        for chunk in chunks {
            let seq = chunk["seq"].as_u64().unwrap();
            // The exit has a sequence number, too, and no chunk.
            let is_next = seq == self.last + 1 || seq == self.last + 2 && page["exited"] == true;
            assert!(is_next, "{seq} follows {}", self.last);
            self.last = seq;
            let stream = chunk["stream"].as_str().unwrap().to_owned();
            let data = decode(&chunk["chunk"]);
            self.streams.entry(stream).or_default().extend(data);
        }
        let next = page["nextSeq"].as_u64().unwrap();
        assert!(next > self.last, "{page}");
        self.last = next - 1;
        self.exit_code = page["exitCode"].as_i64();
        self.closed = page["closed"] == true && chunks.is_empty();
        !chunks.is_empty()
    }

    /// Reads everything up to the close.
    pub(crate) async fn finish(&mut self, client: &mut Client, id: &str) {
        let started = Instant::now();
        while !self.closed {
            assert!(started.elapsed() < 6 * TIMEOUT, "no close: {}", self.last);
            self.page(client, id, json!({"waitMs": 1000})).await;
        }
    }

    /// Returns what a stream has written.
    pub(crate) fn stream(&self, stream: &str) -> &[u8] {
        self.streams.get(stream).map_or(&[], Vec::as_slice)
    }
}

/// Asserts equality without printing megabytes.
#[track_caller]
pub(crate) fn assert_same(found: &[u8], expected: &[u8]) {
    let difference = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(difference, None, "first difference");
    assert_eq!(found.len(), expected.len(), "length");
}

/// Returns the output of `seq FIRST LAST`.
pub(crate) fn numbers(last: u64) -> Vec<u8> {
    let lines: Vec<String> = (1..=last).map(|line| format!("{line}\n")).collect();
    lines.concat().into_bytes()
}

/// Returns the only process that `process/list` shows under an id.
pub(crate) async fn listed(client: &mut Client, id: &str) -> Option<Value> {
    let list = client.call("process/list", json!({})).await;
    let mut found = list["processes"].as_array().unwrap().iter();
    let process = found.find(|process| process["processId"] == id).cloned();
    assert!(found.all(|process| process["processId"] != id), "{list}");
    process
}

/// Returns the OS pid of a process.
pub(crate) async fn os_pid(client: &mut Client, id: &str) -> u32 {
    let process = listed(client, id).await.expect("process is not listed");
    u32::try_from(process["osPid"].as_u64().unwrap()).unwrap()
}

/// Opens a pidfd of a process.
pub(crate) async fn watch(client: &mut Client, id: &str) -> WatchedProcess {
    WatchedProcess::new(os_pid(client, id).await)
}

/// Writes text to stdin, with itself as the write id.
pub(crate) async fn write(client: &mut Client, id: &str, text: &str) {
    let params = json!({
        "processId": id, "chunk": crate::client::encode(text.as_bytes()), "writeId": text,
    });
    let written = client.call("process/write", params).await;
    assert_eq!(written, json!({"status": "accepted"}));
}

/// Waits until a server's socket accepts a connection.
pub(crate) async fn until_listening(socket: &Path) {
    until("server listens", || BlockingStream::connect(socket).is_ok()).await;
}

/// Random numbers that a failure can be repeated with.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Starts with a new seed, which is printed.
    pub(crate) fn new() -> Self {
        let now = std::time::SystemTime::now();
        let seed = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = u64::try_from(seed.as_nanos() & u128::from(u64::MAX)).unwrap();
        eprintln!("seed {seed}");
        Self(seed)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Waits for a random time, to choose the instant of a kill.
    pub(crate) async fn pause(&mut self, most: Duration) {
        let micros = self.below(u64::try_from(most.as_micros()).unwrap());
        sleep(Duration::from_micros(micros)).await;
    }
}
