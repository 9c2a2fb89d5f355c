//! What the suite is run on.

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
use exec_core::log::Exit;
use exec_env::{
    backend::{ExecBackend, StartError},
    catalog::ExecutorCatalog,
    command::{Command, Io, Stdin},
    environment::Environment,
    filesystem::ExecutorFileSystem,
    http::HttpClient,
};
use exec_transport::link::Link;
use exec_wire::{
    id::ProcessId,
    path_uri::PathUri,
    process::{ExitCause, TerminalSize},
};

use crate::{bounded_wait::within, difference::Difference, followed_process::Running};

/// Variables that the host's environment must hold for a subject, beside `PATH`. The second looks
/// like a secret.
pub const HOST_ENVIRONMENT: [(&str, &str); 2] = [
    ("EXEC_CONFORMANCE_PLAIN", "plain"),
    ("EXEC_CONFORMANCE_TOKEN", "secret"),
];

/// Where cases find programs.
const PATH: &str = "/usr/bin:/bin";

/// An environment under test, and what it needs to stay alive.
pub struct Subject {
    pub(crate) backend: Arc<dyn ExecBackend>,
    pub(crate) files: Arc<dyn ExecutorFileSystem>,
    pub(crate) http: Arc<dyn HttpClient>,
    pub(crate) catalog: Arc<dyn ExecutorCatalog>,
    pub(crate) capabilities: Capabilities,
    probe: PathBuf,
    _kept: Box<dyn Any + Send>,
}

/// What legitimately differs between environments.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// How a start that the host refuses is told.
    pub refusals: Refusals,
    /// Whether an id can be in use.
    pub ids: Ids,
    /// Promises that are kept in another way, or refused.
    pub differences: &'static [Difference],
    /// The same, because of the way that leads there.
    pub on_the_way: &'static [Difference],
}

/// What every server of ours promises.
pub const REMOTE: Capabilities = Capabilities {
    refusals: Refusals::Rpc,
    ids: Ids::Unique,
    differences: &[],
    on_the_way: &[],
};

/// How a start that the host refuses is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusals {
    /// By the operating system's own error.
    Errno,
    /// By an error of the wire.
    Rpc,
}

/// Whether an id can be in use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ids {
    /// A session keeps a table: a second process of the same id is refused.
    Unique,
    /// Nothing is kept: ids are only names.
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
    /// Takes an environment, the probe program, and whatever the environment needs to be kept.
    pub fn new(
        environment: Environment,
        capabilities: Capabilities,
        probe: impl AsRef<Path>,
        kept: impl Any + Send,
    ) -> Self {
        let probe = probe.as_ref().to_owned();
        Self {
            backend: environment.backend,
            files: environment.files,
            http: environment.http,
            catalog: environment.catalog,
            capabilities,
            probe,
            _kept: Box::new(kept),
        }
    }

    /// Takes the other end of a link to a server as an environment.
    pub async fn remote(link: Link, probe: impl AsRef<Path>, kept: impl Any + Send) -> Self {
        Self::remote_with(link, REMOTE, probe, kept).await
    }

    /// Takes a server that a client is connected to as an environment.
    pub fn of_client(
        client: &ExecServerClient,
        capabilities: Capabilities,
        probe: impl AsRef<Path>,
        kept: impl Any + Send,
    ) -> Self {
        Self::new(client.environment(), capabilities, probe, kept)
    }

    /// Takes the other end of a link to a server that does not promise everything.
    pub async fn remote_with(
        link: Link,
        capabilities: Capabilities,
        probe: impl AsRef<Path>,
        kept: impl Any + Send,
    ) -> Self {
        let connected = ExecServerClient::connect(link, Default::default()).await;
        let client = connected.expect("the server takes a client");
        Self::of_client(&client, capabilities, probe, kept)
    }

    /// Tells whether a promise is kept in another way, which the case then asserts.
    pub(crate) fn differs(&self, difference: Difference) -> bool {
        self.capabilities.differs(difference)
    }

    /// Sees that an exit is told as it was.
    #[track_caller]
    pub(crate) fn assert_end(
        &self,
        exit: &Exit,
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

    /// Sees that an error names what it is about.
    #[track_caller]
    pub(crate) fn assert_names(&self, text: &str, culprit: &str) {
        let named = !self.differs(Difference::ErrorsNameNothing);
        assert_eq!(text.contains(culprit), named, "{culprit}: {text}");
    }

    /// A command with a fresh id, on pipes and without stdin.
    pub(crate) fn command(&self, argv: &[&str]) -> Command {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = format!("case-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let id = ProcessId::new(&id).expect("the id is short");
        let argv = argv.iter().map(|&argument| argument.to_owned()).collect();
        let env = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
        Command {
            env,
            ..Command::new(id, argv, uri(Path::new("/")))
        }
    }

    /// A program that writes what is written to it, and ends when its input does: at the latest, where
    /// nobody can end it, after so many bytes.
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

    /// A script of the shell's; `$1` and so on are `arguments`.
    pub(crate) fn sh(&self, script: &str, arguments: &[&str]) -> Command {
        self.command(&[&["/bin/sh", "-c", script, "sh"], arguments].concat())
    }

    /// The probe.
    pub(crate) fn probe(&self, arguments: &[&str]) -> Command {
        self.command(&[&[self.probe_path()], arguments].concat())
    }

    pub(crate) fn probe_path(&self) -> &str {
        self.probe.to_str().expect("the probe's path is text")
    }

    /// Starts a command that must start, and follows it so that nothing is lost.
    pub(crate) async fn start(&self, command: Command) -> Running {
        let started = within("a command starts", self.backend.start(command)).await;
        let process = started.expect("the command starts").process;
        Running::new(process, self.capabilities)
    }

    /// Starts a command that must not start.
    pub(crate) async fn refused(&self, command: Command) -> StartError {
        match within("a start is refused", self.backend.start(command)).await {
            Ok(started) => panic!("expected a refusal: {started:?}"),
            Err(error) => error,
        }
    }
}

/// The command with a stdin that can be written.
pub(crate) fn piped(command: Command) -> Command {
    Command {
        io: Io::Pipes {
            stdin: Stdin::Piped,
        },
        ..command
    }
}

/// The command on a terminal.
pub(crate) fn on_terminal(command: Command, rows: u16, cols: u16) -> Command {
    Command {
        io: Io::Terminal(TerminalSize { rows, cols }),
        ..command
    }
}

pub(crate) fn uri(path: &Path) -> PathUri {
    PathUri::from_native(path).expect("the path is absolute")
}
