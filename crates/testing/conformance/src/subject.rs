//! The environment under test.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use exec_client::client::ExecServerClient;
use exec_core::output_log::ExitInfo;
use exec_env::{
    environment::{
        Command, Environment, ExecBackend, ExecutorCatalog, ProcessIo, StartError, StdinMode,
    },
    filesystem::ExecutorFileSystem,
    http::HttpClient,
    tunnel::EnvironmentNetwork,
};
use exec_transport::link::Link;
use exec_wire::{
    id::ProcessId,
    path_uri::PathUri,
    process::{ExitCause, TerminalSize},
};

use crate::{bounded_wait::within, difference::Difference, followed_process::FollowedProcess};

/// Variables that a subject's host environment must contain besides `PATH`. The second one looks
/// like a secret.
pub const HOST_ENVIRONMENT: [(&str, &str); 2] = [
    ("EXEC_CONFORMANCE_PLAIN", "plain"),
    ("EXEC_CONFORMANCE_TOKEN", "secret"),
];

/// `PATH` of the cases.
const PATH: &str = "/usr/bin:/bin";

/// Environment under test, with the values that keep it alive.
pub struct Subject {
    pub(crate) backend: Arc<dyn ExecBackend>,
    pub(crate) files: Arc<dyn ExecutorFileSystem>,
    pub(crate) http: Arc<dyn HttpClient>,
    pub(crate) catalog: Arc<dyn ExecutorCatalog>,
    pub(crate) network: Arc<dyn EnvironmentNetwork>,
    pub(crate) capabilities: SubjectCapabilities,
    probe: PathBuf,
    _kept: Box<dyn Any + Send>,
}

/// Legitimate differences between environments.
#[derive(Clone, Copy, Debug)]
pub struct SubjectCapabilities {
    /// Form of the error if the host refuses a start.
    pub refusals: StartErrorForm,
    /// Whether process ids must be unique.
    pub ids: ProcessIdScope,
    /// Parts of the contract that the subject implements differently.
    pub differences: &'static [Difference],
    /// The same, because of the transport.
    pub on_the_way: &'static [Difference],
}

/// SubjectCapabilities of our server over any transport.
pub const REMOTE: SubjectCapabilities = SubjectCapabilities {
    refusals: StartErrorForm::Rpc,
    ids: ProcessIdScope::Unique,
    differences: &[],
    on_the_way: &[],
};

/// Form of the error if the host refuses a start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StartErrorForm {
    /// The operating system's error.
    Errno,
    /// A protocol error.
    Rpc,
}

/// Whether process ids must be unique.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProcessIdScope {
    /// The session tracks ids and refuses a duplicate.
    Unique,
    /// Ids are not tracked.
    Free,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("backend", &self.backend)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Subject {
    /// Wraps an environment, the probe program, and the values that keep the environment alive.
    pub fn new(
        environment: Environment,
        capabilities: SubjectCapabilities,
        probe: impl AsRef<Path>,
        kept: impl Any + Send,
    ) -> Self {
        let probe = probe.as_ref().to_owned();
        Self {
            backend: environment.backend,
            files: environment.files,
            http: environment.http,
            catalog: environment.catalog,
            network: environment.network,
            capabilities,
            probe,
            _kept: Box::new(kept),
        }
    }

    /// Connects to a server over `link` and wraps it as an environment.
    pub async fn remote(link: Link, probe: impl AsRef<Path>, kept: impl Any + Send) -> Self {
        Self::remote_with(link, REMOTE, probe, kept).await
    }

    /// Wraps the server of a connected client as an environment.
    pub fn of_client(
        client: &ExecServerClient,
        capabilities: SubjectCapabilities,
        probe: impl AsRef<Path>,
        kept: impl Any + Send,
    ) -> Self {
        Self::new(client.environment(), capabilities, probe, kept)
    }

    /// Connects to a server with limited capabilities over `link`.
    pub async fn remote_with(
        link: Link,
        capabilities: SubjectCapabilities,
        probe: impl AsRef<Path>,
        kept: impl Any + Send,
    ) -> Self {
        let connected = ExecServerClient::connect(link, Default::default()).await;
        let client = connected.expect("failed to connect to the server");
        Self::of_client(&client, capabilities, probe, kept)
    }

    /// Returns whether the subject declares this difference, which the case then asserts.
    pub(crate) fn differs(&self, difference: Difference) -> bool {
        self.capabilities.differs(difference)
    }

    /// Asserts the reported exit.
    #[track_caller]
    pub(crate) fn assert_end(
        &self,
        exit: &ExitInfo,
        code: i32,
        signal: Option<&'static str>,
        cause: ExitCause,
    ) {
        let (signal, cause) = if self.differs(Difference::BareExits) {
            (None, ExitCause::Unknown)
        } else {
            (signal, cause)
        };
        assert_eq!((exit.code, exit.signal, exit.cause), (code, signal, cause));
    }

    /// Asserts that an error message names `name`.
    #[track_caller]
    pub(crate) fn assert_names(&self, text: &str, culprit: &str) {
        let named = !self.differs(Difference::ErrorsNameNothing);
        assert_eq!(text.contains(culprit), named, "{culprit}: {text}");
    }

    /// Builds a command with a new id, on pipes, without stdin.
    pub(crate) fn command(&self, argv: &[&str]) -> Command {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = format!("case-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let id = ProcessId::new(&id).expect("process id is too long");
        let argv = argv.iter().map(|&argument| argument.to_owned()).collect();
        let env = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
        Command {
            env,
            ..Command::new(id, argv, uri(Path::new("/")))
        }
    }

    /// Builds a `cat` that exits when stdin closes or, for servers that cannot close stdin, after
    /// `bytes` bytes.
    pub(crate) fn cat(&self, bytes: usize) -> Command {
        if self
            .capabilities
            .differences
            .contains(&Difference::NoCloseStdin)
        {
            piped(self.probe(&["copy", &bytes.to_string()]))
        } else {
            piped(self.command(&["cat"]))
        }
    }

    /// Builds a shell script; `$1` and so on are `arguments`.
    pub(crate) fn sh(&self, script: &str, arguments: &[&str]) -> Command {
        self.command(&[&["/bin/sh", "-c", script, "sh"], arguments].concat())
    }

    /// Builds a command that runs the probe.
    pub(crate) fn probe(&self, arguments: &[&str]) -> Command {
        self.command(&[&[self.probe_path()], arguments].concat())
    }

    pub(crate) fn probe_path(&self) -> &str {
        self.probe.to_str().expect("probe path is not UTF-8")
    }

    /// Starts a command that must succeed, and follows it from its first event.
    pub(crate) async fn start(&self, command: Command) -> FollowedProcess {
        let started = within("command starts", self.backend.start(command)).await;
        let process = started.expect("command failed to start").process;
        FollowedProcess::new(process, self.capabilities)
    }

    /// Starts a command that must be refused, and returns the error.
    pub(crate) async fn refused(&self, command: Command) -> StartError {
        match within("start is refused", self.backend.start(command)).await {
            Ok(started) => panic!("expected a refusal: {started:?}"),
            Err(error) => error,
        }
    }
}

/// Returns the command with a piped stdin.
pub(crate) fn piped(command: Command) -> Command {
    Command {
        io: ProcessIo::Pipes {
            stdin: StdinMode::Piped,
        },
        ..command
    }
}

/// Returns the command on a terminal.
pub(crate) fn on_terminal(command: Command, rows: u16, cols: u16) -> Command {
    Command {
        io: ProcessIo::Terminal(TerminalSize { rows, cols }),
        ..command
    }
}

pub(crate) fn uri(path: &Path) -> PathUri {
    PathUri::from_native(path).expect("path is not absolute")
}
