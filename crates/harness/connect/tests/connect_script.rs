//! Tests of the script that runs at a target: what it leaves behind when it is interrupted or fails,
//! and where it puts things. A shell script stands for the program, so that no server runs.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::{
    fs,
    io::Write,
    ops::RangeBounds,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use data_encoding::HEXLOWER;
use flate2::{Compression, write::GzEncoder};
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

const SCRIPT: &str = include_str!("../src/connect.sh");
/// Limit for any wait.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Start of each line that is meant for the client.
const MARKER: &str = "client:";
const VERSION: &str = "1.2.3";
/// Shells of small systems.
const SHELLS: [&str; 2] = ["sh", "busybox sh"];
/// What the script needs, and `gzip`, which it uses if it is there.
const TOOLS: [&str; 21] = [
    "busybox",
    "cat",
    "chmod",
    "dd",
    "df",
    "env",
    "find",
    "gzip",
    "head",
    "id",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "rmdir",
    "sha256sum",
    "tail",
    "touch",
    "tr",
    "uname",
    "wc",
];

fn write_program(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn digest(content: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(content))
}

async fn within_timeout<T>(what: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, what).await.unwrap()
}

/// A place with a home, a temporary directory and the tools of busybox.
struct Place {
    directory: tempfile::TempDir,
    program: Vec<u8>,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for name in ["bin", "home", "tmp"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        for tool in TOOLS {
            symlink("/bin/busybox", root.join("bin").join(tool)).unwrap();
        }
        symlink("/bin/sh", root.join("bin/sh")).unwrap();
        // The path makes its digest unique: no copy of another test is found.
        let text = format!(
            "#!/bin/sh\n\
             # {}\n\
             case $* in 'bridge --check') echo exec-server-bridge {VERSION}; exit ;; esac\n\
             echo \"{MARKER} runs $*\"\n\
             echo \"{MARKER} socket $EXEC_SERVER_SOCKET\"\n\
             exit\n",
            root.display()
        );
        // Every byte has to arrive.
        let data = (0..20_000_u32).map(|index| index.to_le_bytes()[usize::from(index % 7 == 0)]);
        let program = text.into_bytes().into_iter().chain(data).collect();
        Self { directory, program }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Removes one of the tools.
    fn without(&self, tool: &str) {
        fs::remove_file(self.path("bin").join(tool)).unwrap();
    }

    /// Makes the home unusable, also for root.
    fn without_home(&self) {
        fs::remove_dir_all(self.path("home")).unwrap();
        fs::write(self.path("home"), "").unwrap();
    }

    /// Puts the program on the PATH.
    fn install(&self) {
        write_program(&self.path("bin/exec-server"), &self.program);
    }

    /// Returns the compressed program. It is as long as the program, so that a push has a middle.
    fn packed(&self) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
        encoder.write_all(&self.program).unwrap();
        encoder.finish().unwrap()
    }

    /// Starts a shell with the script.
    async fn start(&self, shell: &str, mode: &str) -> ScriptShell {
        let mut words = shell.split(' ');
        let mut command = Command::new(Path::new("/bin").join(words.next().unwrap()));
        command.args(words);
        self.start_in(command, mode).await
    }

    /// Starts the script in a shell that a command starts.
    async fn start_in(&self, mut command: Command, mode: &str) -> ScriptShell {
        let mut child = command
            .env_clear()
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("tmp"))
            .env("PATH", self.path("bin"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let want = format!("{} {} static", digest(&self.program), self.program.len());
        let script = format!(
            "m='{MARKER}'\nv='{VERSION}'\nmode='{mode}'\nwant_x86_64='{want}'\n\
             want_aarch64='{want}'\n{SCRIPT}"
        );
        within_timeout(stdin.write_all(script.as_bytes()))
            .await
            .unwrap();
        let mut shell = ScriptShell {
            child,
            stdin: Some(stdin),
            lines,
            content: Vec::new(),
        };
        assert_eq!(shell.report().await, "shell");
        shell
    }

    /// Starts the script, and waits until it wants to receive the program. Returns how much of it
    /// is there.
    async fn start_push(&self, shell: &str, mode: &str) -> (ScriptShell, usize) {
        let mut shell = self.start(shell, mode).await;
        let have = self.offer(&mut shell).await;
        (shell, have)
    }

    /// Offers the program to a shell that needs it. Returns how much of it is there.
    async fn offer(&self, shell: &mut ScriptShell) -> usize {
        let need = shell.report().await;
        assert!(need.starts_with("need "), "{need}");
        shell.content = match need.ends_with(" gzip") {
            true => self.packed(),
            false => self.program.clone(),
        };
        let line = format!("{} {}\n", digest(&shell.content), shell.content.len());
        shell.write(line.as_bytes()).await;
        let have = shell.report().await;
        have.strip_prefix("have ").unwrap().parse().unwrap()
    }

    /// Pushes the program, and returns the arguments that it got, and its socket.
    async fn push(&self, shell: &str, mode: &str) -> (String, String) {
        let (mut shell, have) = self.start_push(shell, mode).await;
        shell.send(have..).await;
        shell.runs().await
    }

    /// Waits until more than this of the program is there, and returns how much.
    async fn part(&self, beyond: usize) -> usize {
        within_timeout(async {
            loop {
                let found = self.files();
                let part = found
                    .iter()
                    .find(|path| path.extension().is_some_and(|it| it == "part"));
                let length = part.and_then(|part| fs::metadata(part).ok());
                let length = length.map_or(0, |it| usize::try_from(it.len()).unwrap());
                if length > beyond {
                    return length;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// Lists everything in its home and its temporary directory.
    fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        let mut directories = vec![self.path("home"), self.path("tmp")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path.clone());
                }
                left.push(path);
            }
        }
        left.sort();
        left
    }

    /// Asserts that the program is there, and no other file.
    #[track_caller]
    fn has_only_the_program(&self) {
        let files = self.files();
        let contents: Vec<_> = files.iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(contents == [self.program.as_slice()], "{files:?}");
    }

    /// Lists the files among them.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = self.left();
        files.retain(|path| path.is_file());
        files
    }
}

/// A shell that runs the script.
struct ScriptShell {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    /// What it wants to receive.
    content: Vec<u8>,
}

impl ScriptShell {
    /// Waits for its next report.
    async fn report(&mut self) -> String {
        let line = within_timeout(self.lines.next_line()).await.unwrap();
        let line = line.unwrap_or_else(|| panic!("it ended"));
        let words = line.strip_prefix(MARKER);
        words.unwrap_or_else(|| panic!("{line}")).trim().to_owned()
    }

    /// Sends a part of the program.
    async fn send(&mut self, range: impl RangeBounds<usize>) {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        let part = self.content[range].to_vec();
        self.write(&part).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        within_timeout(stdin.write_all(bytes)).await.unwrap();
    }

    /// Waits until the program runs. Returns the arguments that it got, and its socket.
    async fn runs(&mut self) -> (String, String) {
        let run = self.report().await;
        assert!(run.starts_with("run "), "{run}");
        let runs = self.report().await;
        let socket = self.report().await;
        self.ended().await;
        let words = |line: &str, start: &str| line.strip_prefix(start).unwrap().trim().to_owned();
        (words(&runs, "runs"), words(&socket, "socket"))
    }

    /// Cuts the connection, and waits until the shell has ended.
    async fn cut(mut self) {
        drop(self.stdin.take());
        self.ended().await;
    }

    /// Signals the shell and its programs, and waits until it has ended.
    async fn signal(mut self, signal: Signal) {
        let group = Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        kill_process_group(group, signal).unwrap();
        self.ended().await;
    }

    async fn ended(&mut self) {
        within_timeout(self.child.wait()).await.unwrap();
    }
}

#[tokio::test]
async fn ephemeral_push_that_is_cut_leaves_nothing() {
    for shell in SHELLS {
        let place = Place::new();
        let mut waiting = place.start(shell, "ephemeral").await;
        assert!(waiting.report().await.starts_with("need "));
        waiting.cut().await;
        assert_eq!(place.left(), [] as [PathBuf; 0], "{shell}");

        let (mut receiving, _) = place.start_push(shell, "ephemeral").await;
        receiving.send(..9000).await;
        place.part(0).await;
        receiving.cut().await;
        assert_eq!(place.left(), [] as [PathBuf; 0], "{shell}");
    }
}

#[tokio::test]
async fn ephemeral_push_that_a_signal_ends_leaves_nothing() {
    for shell in SHELLS {
        for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
            let place = Place::new();
            let mut waiting = place.start(shell, "ephemeral").await;
            assert!(waiting.report().await.starts_with("need "));
            waiting.signal(signal).await;
            assert_eq!(place.left(), [] as [PathBuf; 0], "{shell} {signal:?}");

            let (mut receiving, _) = place.start_push(shell, "ephemeral").await;
            receiving.send(..9000).await;
            place.part(0).await;
            receiving.signal(signal).await;
            assert_eq!(place.left(), [] as [PathBuf; 0], "{shell} {signal:?}");
        }
    }
}

#[tokio::test]
async fn shared_push_continues_after_a_cut_and_after_a_signal() {
    for shell in SHELLS {
        let place = Place::new();
        let (mut first, have) = place.start_push(shell, "shared").await;
        assert_eq!(have, 0);
        first.send(..9000).await;
        place.part(0).await;
        first.cut().await;
        let cut = place.part(0).await;

        let (mut second, have) = place.start_push(shell, "shared").await;
        assert_eq!(have, cut, "{shell}");
        second.send(have..have + 9000).await;
        place.part(cut).await;
        second.signal(Signal::HUP).await;
        let signalled = place.part(cut).await;

        let (mut third, have) = place.start_push(shell, "shared").await;
        assert_eq!(have, signalled, "{shell}");
        third.send(have..).await;
        assert_eq!(third.runs().await.0, "bridge");
        place.has_only_the_program();
    }
}

#[tokio::test]
async fn push_continues_while_an_older_shell_waits_for_a_lost_connection() {
    for shell in SHELLS {
        let place = Place::new();
        let (mut older, _) = place.start_push(shell, "shared").await;
        older.send(..9000).await;
        place.part(0).await;

        let (mut newer, have) = place.start_push(shell, "shared").await;
        assert!(have > 0, "{shell}");
        // The older one was not lost after all: neither disturbs the other.
        older.send(9000..19_000).await;
        newer.send(have..).await;
        assert_eq!(newer.runs().await.0, "bridge");
        older.send(19_000..).await;
        assert_eq!(older.runs().await.0, "bridge");
        place.has_only_the_program();
    }
}

#[tokio::test]
async fn ephemeral_program_creates_no_directory_for_a_socket() {
    for shell in SHELLS {
        let place = Place::new();
        place.push(shell, "shared").await;
        fs::remove_dir_all(place.path("home/.local")).unwrap();
        let before = place.left();
        let mut kept = place.start(shell, "ephemeral").await;
        assert_eq!(kept.runs().await.0, "--ephemeral --listen stdio");
        assert_eq!(place.left(), before, "{shell}");
    }
    let place = Place::new();
    place.without_home();
    assert_eq!(
        place.push("sh", "ephemeral").await,
        ("--ephemeral --listen stdio".to_owned(), String::new())
    );
    assert_eq!(place.left(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn program_on_the_path_gets_a_socket_where_the_home_is_unusable() {
    let uid = geteuid().as_raw();
    for shell in SHELLS {
        let place = Place::new();
        place.install();
        let found = place.start(shell, "shared").await.runs().await;
        // The program itself finds the directory in a home.
        assert_eq!(found, ("bridge".to_owned(), String::new()), "{shell}");
        place.without_home();
        let (_, socket) = place.start(shell, "shared").await.runs().await;
        let run = place.path(&format!("tmp/exec-server-{uid}/run"));
        assert_eq!(socket, run.join("server.sock").to_str().unwrap(), "{shell}");
        let mode = fs::metadata(run).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[tokio::test]
async fn exactly_the_program_is_received_without_head_and_gzip() {
    for mode in ["shared", "ephemeral"] {
        let place = Place::new();
        place.without("head");
        place.without("gzip");
        let (arguments, _) = place.push("sh", mode).await;
        assert!(arguments.starts_with(match mode {
            "shared" => "bridge",
            _ => "--ephemeral",
        }));
        match mode {
            "shared" => place.has_only_the_program(),
            _ => assert_eq!(place.left(), [] as [PathBuf; 0]),
        }
    }
}

#[tokio::test]
async fn failed_push_in_shared_mode_leaves_no_directory() {
    for shell in SHELLS {
        let place = Place::new();
        let (mut damaged, _) = place.start_push(shell, "shared").await;
        damaged.content.fill(b'x');
        damaged.send(..).await;
        let report = damaged.report().await;
        assert!(report.starts_with("fail digest "), "{report}");
        damaged.ended().await;
        assert_eq!(place.left(), [place.path("home/.cache")], "{shell}");

        let place = Place {
            program: b"#!/bin/sh\nexit 1\n".to_vec(),
            ..place
        };
        let (mut broken, _) = place.start_push(shell, "shared").await;
        broken.send(..).await;
        let report = broken.report().await;
        assert!(report.starts_with("fail run"), "{report}");
        broken.ended().await;
        assert_eq!(place.left(), [place.path("home/.cache")], "{shell}");
    }
}

/// Starts a shell in a mount namespace of its own. `mounts` prepares it; when the shell has ended,
/// what is in the home and in the temporary directories is printed.
fn in_own_mounts(mounts: &str) -> Command {
    let mut command = Command::new("/usr/bin/unshare");
    let script = format!(
        "PATH=$PATH:/usr/bin:/bin; {mounts} || exit; \
         for d in /var/tmp /dev/shm; do mount -t tmpfs tmpfs $d || exit; done; \
         (exec /bin/sh); find $HOME $TMPDIR /var/tmp /dev/shm -mindepth 1 -exec echo '{MARKER} left' {{}} ';'; \
         echo '{MARKER} end'"
    );
    command.args(["--mount", "sh", "-c", &script]);
    command
}

impl ScriptShell {
    /// Returns what the shell has left in its mounts.
    async fn left_in_mounts(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        loop {
            let report = self.report().await;
            match report.strip_prefix("left ") {
                Some(path) => left.push(path.to_owned()),
                None if report == "end" => return left,
                None => {}
            }
        }
    }
}

#[tokio::test]
async fn home_that_cannot_hold_programs_is_replaced_in_shared_mode() {
    if !geteuid().is_root() {
        return;
    }
    for mounts in [
        "mount -t tmpfs -o noexec tmpfs $HOME",
        "mount -t tmpfs -o ro tmpfs $HOME",
        "mount -t tmpfs -o size=64k tmpfs $HOME",
    ] {
        let place = Place::new();
        let mut shell = place.start_in(in_own_mounts(mounts), "shared").await;
        let have = place.offer(&mut shell).await;
        shell.send(have..).await;
        let run = shell.report().await;
        let program = place.path(&format!(
            "tmp/exec-server-0/exec-server-{}",
            digest(&place.program)
        ));
        assert_eq!(run, format!("run pushed {}", program.display()), "{mounts}");
        assert_eq!(shell.report().await, "runs bridge");
        let left = shell.left_in_mounts().await;
        let is_cache = |path: &&String| path.contains("home/.cache/");
        assert_eq!(left.iter().find(is_cache), None, "{mounts}");
        assert!(left.contains(&program.display().to_string()), "{left:?}");
    }
}

#[tokio::test]
async fn disk_that_fills_during_the_push_is_reported_and_left_empty() {
    if !geteuid().is_root() {
        return;
    }
    for mode in ["shared", "ephemeral"] {
        let place = Place::new();
        // There is room when it starts.
        place.without("df");
        let df = "#!/bin/sh\necho tmpfs 100000 0 100000 0% /\n";
        write_program(&place.path("bin/df"), df.as_bytes());
        let size = 8192;
        let mounts =
            format!("for d in $HOME $TMPDIR; do mount -t tmpfs -o size={size} tmpfs $d; done");
        let mut shell = place.start_in(in_own_mounts(&mounts), mode).await;
        place.offer(&mut shell).await;
        shell.send(..).await;
        let report = shell.report().await;
        assert!(report.starts_with("fail write "), "{report}");
        let left = shell.left_in_mounts().await;
        let cache = place.path("home/.cache").display().to_string();
        assert!(left.is_empty() || left == [cache], "{mode}: {left:?}");
    }
}
