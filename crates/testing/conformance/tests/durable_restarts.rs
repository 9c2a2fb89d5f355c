//! Servers that are killed under load: the next one continues every process, and a client that
//! resumes its session loses and repeats nothing.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed assertion panics"
)]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_client::{client::ExecServerClient, connect::RemoteExecServerConnectArgs};
use exec_conformance::restarted_server::{RandomInstants, RestartedServer};
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart};
use exec_env::{
    environment::{Command, Environment, ProcessIo, StdinMode},
    process::{EventStream, ExecProcess, ExecProcessEvent},
};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{OutputStream, TerminalSize, WriteStatus},
};
use futures_util::StreamExt;
use tokio::time::timeout;

/// Timeout of a single step, including the recovery from several kills.
const STEP: Duration = Duration::from_secs(60);
/// Kills, unless `EXEC_KILL_ROUNDS` says otherwise.
const ROUNDS: u64 = 20;
/// Small enough that the writers reach it and are paused.
const JOURNAL_BYTES: &str = "16777216";

/// Writes numbered lines to `$1` until the file `stop` exists, and their number to `$2`.
const WRITE_LINES: &str = r#"i=0
    while [ ! -e stop ]; do
        seq $((i + 1)) $((i + 20000))
        i=$((i + 20000))
    done
    echo $i > "$1""#;

#[tokio::test]
async fn killed_servers_lose_and_repeat_nothing() {
    let mut server = RestartedServer::start(&["--journal-bytes", JOURNAL_BYTES]).await;
    let args = RemoteExecServerConnectArgs::new(server.url(), "kills");
    let client = ExecServerClient::connect_websocket(args).await.unwrap();
    let session = client.session().session_id.clone();
    let home = server.path("");
    let work = DurableWork {
        environment: client.environment(),
        home: home.clone(),
    };
    let pipes = work
        .start("pipes", &lines_on_both_streams(), Stdio::None)
        .await;
    let terminal = work
        .start(
            "terminal",
            &format!("stty -onlcr; set -- terminal; {WRITE_LINES}; exit 43"),
            Stdio::Terminal,
        )
        .await;
    let cat = work.start("cat", "cat; exit 44", Stdio::Piped).await;
    let echo_terminal = work
        .start(
            "echo",
            "stty raw -echo; echo; cat; exit 45",
            Stdio::Terminal,
        )
        .await;
    let pids: Vec<u32> = [&pipes, &terminal, &cat, &echo_terminal]
        .map(|events| events.process.status().os_pid.unwrap())
        .to_vec();
    let progress = Arc::new(AtomicU64::new(0));
    let tasks = [
        tokio::spawn(check_lines(pipes, home.clone(), progress.clone(), 42)),
        tokio::spawn(check_lines(terminal, home.clone(), progress.clone(), 43)),
        tokio::spawn(check_echo(cat, home.clone(), progress.clone(), 44)),
        tokio::spawn(check_echo(
            echo_terminal,
            home.clone(),
            progress.clone(),
            45,
        )),
    ];
    let mut random = RandomInstants::default();
    let rounds = rounds();
    for round in 0..rounds {
        let gate = format!("gate{round}");
        let script = format!("until [ -e {gate} ]; do sleep 0.01; done; echo {round}; exit 7");
        let waiting = match round % 4 {
            0 => Some(work.start(&format!("w{round}"), &script, Stdio::None).await),
            _ => None,
        };
        random.pause(Duration::from_millis(400)).await;
        server.kill().await;
        if let Some(waiting) = &waiting {
            // It exits while no server runs.
            fs::write(home.join(&gate), "").unwrap();
            await_death(waiting.process.status().os_pid.unwrap()).await;
        } else {
            random.pause(Duration::from_millis(50)).await;
        }
        server.restart().await;
        if random.below(4) == 0 {
            // Before the client is back, or while it reads what it has missed.
            random.pause(Duration::from_millis(120)).await;
            server.kill().await;
            server.restart().await;
        }
        if let Some(waiting) = waiting {
            let (output, code) = rest_of(waiting).await;
            assert_eq!((output.as_str(), code), (&*format!("{round}\n"), 7));
        }
        for pid in &pids {
            assert!(is_alive(*pid), "{pid} died in round {round}");
        }
        for task in &tasks {
            assert!(!task.is_finished(), "a check failed in round {round}");
        }
    }
    fs::write(home.join("stop"), "").unwrap();
    for task in tasks {
        timeout(STEP, task).await.unwrap().unwrap();
    }
    assert_eq!(client.session().session_id, session);
    eprintln!("{rounds} rounds, {} MB", progress.load(Relaxed) / 1_000_000);
}

/// Returns a script that writes numbered lines to both streams.
fn lines_on_both_streams() -> String {
    let lines = |name: &str| format!("(set -- {name}; {WRITE_LINES})");
    format!(
        "{} & {} >&2 & wait; exit 42",
        lines("stdout"),
        lines("stderr")
    )
}

/// Standard streams of a process.
#[derive(Clone, Copy, Debug)]
enum Stdio {
    None,
    Piped,
    Terminal,
}

/// Starts the processes of the test.
#[derive(Debug)]
struct DurableWork {
    environment: Environment,
    home: PathBuf,
}

impl DurableWork {
    async fn start(&self, id: &str, script: &str, stdio: Stdio) -> OrderedEvents {
        let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
        let cwd = format!("file://{}", self.home.display());
        let command = Command {
            io: match stdio {
                Stdio::None => ProcessIo::Pipes {
                    stdin: StdinMode::Null,
                },
                Stdio::Piped => ProcessIo::Pipes {
                    stdin: StdinMode::Piped,
                },
                Stdio::Terminal => ProcessIo::Terminal(TerminalSize::default()),
            },
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            ..Command::new(ProcessId::new(id).unwrap(), argv, cwd.parse().unwrap())
        };
        let started = timeout(STEP, self.environment.backend.start(command));
        OrderedEvents::new(&started.await.unwrap().unwrap().process)
    }
}

/// Checks that the lines of each stream are numbered from 1 without gaps, up to the number in its
/// file.
async fn check_lines(
    mut events: OrderedEvents,
    home: PathBuf,
    progress: Arc<AtomicU64>,
    code: i32,
) {
    let mut streams: BTreeMap<&str, LineCheck> = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(chunk) => {
                progress.fetch_add(chunk.data.len() as u64, Relaxed);
                let check = streams.entry(name(chunk.stream)).or_default();
                check.push(&chunk.data);
            }
            ExecProcessEvent::Exited(_, exit) => assert_eq!(exit.code, code),
            other @ (ExecProcessEvent::Closed(_) | ExecProcessEvent::Failed(_)) => {
                panic!("{other:?}")
            }
        }
    }
    assert!(!streams.is_empty());
    for (stream, check) in streams {
        let written = fs::read_to_string(home.join(stream)).unwrap();
        assert_eq!(check.last.to_string(), written.trim(), "{stream}");
        assert_eq!(check.rest, b"", "{stream}");
    }
}

fn name(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
        OutputStream::Pty => "terminal",
    }
}

/// Checks numbered lines as they arrive.
#[derive(Debug, Default)]
struct LineCheck {
    last: u64,
    rest: Vec<u8>,
}

impl LineCheck {
    fn push(&mut self, data: &[u8]) {
        self.rest.extend_from_slice(data);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return;
        };
        for line in self.rest[..end].split(|byte| *byte == b'\n') {
            let text = String::from_utf8_lossy(line);
            assert_eq!(text, (self.last + 1).to_string(), "after {}", self.last);
            self.last += 1;
        }
        self.rest.drain(..=end);
    }
}

/// Sends numbered lines and expects each once, in order.
async fn check_echo(mut events: OrderedEvents, home: PathBuf, progress: Arc<AtomicU64>, code: i32) {
    let process = Arc::clone(&events.process);
    let (mut check, mut sent) = (LineCheck::default(), 0_u64);
    let is_terminal = code == 45;
    if is_terminal {
        // The first line shows that the terminal is ready.
        assert_eq!(&events.output().await[..], b"\n");
    }
    while !home.join("stop").exists() {
        // Several at once, so that a kill finds some unanswered.
        let lines = (1..=20).map(|number| format!("{}\n", sent + number));
        let writes = lines.map(|line| process.write(None, Bytes::from(line)));
        for write in writes.collect::<Vec<_>>() {
            let written = timeout(STEP, write).await.unwrap();
            assert_eq!(written, Ok(WriteStatus::Accepted));
        }
        sent += 20;
        while check.last < sent {
            let data = events.output().await;
            progress.fetch_add(data.len() as u64, Relaxed);
            check.push(&data);
        }
        assert_eq!((check.last, check.rest.len()), (sent, 0));
    }
    if is_terminal {
        // In raw mode the end of file is an ordinary byte.
        process
            .signal(exec_wire::process::ProcessSignal::Kill)
            .await
            .unwrap();
        let (rest, exit) = rest_of(events).await;
        assert_eq!((rest.as_str(), exit), ("", 137));
        return;
    }
    let closed = timeout(STEP, process.close_stdin(None)).await;
    let closed = closed.unwrap();
    assert_eq!(closed, Ok(WriteStatus::Accepted));
    let (rest, exit) = rest_of(events).await;
    assert_eq!((rest.as_str(), exit), ("", code));
}

async fn rest_of(mut events: OrderedEvents) -> (String, i32) {
    let (mut output, mut code) = (Vec::new(), None);
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(chunk) => output.extend_from_slice(&chunk.data),
            ExecProcessEvent::Exited(_, exit) => code = Some(exit.code),
            other @ (ExecProcessEvent::Closed(_) | ExecProcessEvent::Failed(_)) => {
                panic!("{other:?}")
            }
        }
    }
    (String::from_utf8(output).unwrap(), code.unwrap())
}

/// Process with its events, whose numbers must have no gaps.
struct OrderedEvents {
    process: Arc<dyn ExecProcess>,
    events: EventStream,
    last: u64,
}

impl OrderedEvents {
    fn new(process: &Arc<dyn ExecProcess>) -> Self {
        let events = process.follow(FollowOptions {
            start: FollowStart::After(OutputSeq(0)),
            backpressure: BackpressureMode::Pause,
        });
        Self {
            process: Arc::clone(process),
            events,
            last: 0,
        }
    }

    /// Returns the next event before the close.
    async fn next(&mut self) -> Option<ExecProcessEvent> {
        let event = timeout(STEP, self.events.next()).await;
        let event =
            event.unwrap_or_else(|_| panic!("{} is silent after {}", self.process.id(), self.last));
        let event = event.unwrap();
        if let ExecProcessEvent::Failed(error) = &event {
            panic!(
                "{} failed after event {}: {error}",
                self.process.id(),
                self.last
            );
        }
        let seq = event.seq().unwrap().0;
        assert_eq!(seq, self.last + 1, "{}", self.process.id());
        self.last = seq;
        (!matches!(event, ExecProcessEvent::Closed(_))).then_some(event)
    }

    /// Returns the next output.
    async fn output(&mut self) -> Bytes {
        match self.next().await {
            Some(ExecProcessEvent::Output(chunk)) => chunk.data,
            other => panic!("{} ends: {other:?}", self.process.id()),
        }
    }
}

/// Waits until a process is gone.
async fn await_death(pid: u32) {
    let gone = async {
        while is_alive(pid) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(STEP, gone).await.unwrap();
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let state = stat.ok().and_then(|stat| {
        let (_, rest) = stat.rsplit_once(") ")?;
        rest.chars().next()
    });
    !matches!(state, None | Some('Z' | 'X'))
}

fn rounds() -> u64 {
    let rounds = env::var("EXEC_KILL_ROUNDS").ok();
    rounds.map_or(ROUNDS, |rounds| rounds.parse().unwrap())
}
