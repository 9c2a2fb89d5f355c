//! Opens links to a target, through a fresh connection each time.

use std::{
    fmt,
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use exec_client::connect::{BackoffDelay, ServerConnector, SessionContinuity};
use exec_transport::{connect::ConnectError, link::Link};
use flate2::{Compression, write::GzEncoder};
use futures_util::future::{BoxFuture, FutureExt};
use rustix::process::Pid;
use tokio::task::spawn_blocking;

use crate::{
    conversation::{Conversation, ShellReport},
    dist::{self, DistProgram, DistSources},
    error::PlaceError,
    shell_command::{PromptMode, TargetPrograms},
    target::Target,
};

/// Time limit until the shell answers, including the input of a password for ssh.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit until the shell answers if ssh must not prompt.
const SHELL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for an answer of the script, which may have to compute the digest of the program.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit until the server at the target accepts the websocket, including its start.
const SERVER_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the server at a target lives.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ServerLifetime {
    /// It is the background server of the account. Sessions survive lost connections.
    #[default]
    Background,
    /// It ends with its connection, and leaves no files.
    Ephemeral,
}

/// How to reach a target.
#[derive(Clone, Debug)]
pub struct TargetConnector {
    /// The target.
    pub target: Target,
    /// Replacements for `ssh` and the other programs of the first hop.
    pub programs: TargetPrograms,
    /// Programs to push.
    pub dist: DistSources,
    /// How long the server lives.
    pub lifetime: ServerLifetime,
    /// How the first connection may ask for passwords. Later ones do not ask.
    pub prompt: PromptMode,
    /// Receives progress, for interactive use.
    pub progress: Option<PlaceObserver>,
}

/// Receives progress while a connection is being made.
#[derive(Clone)]
pub struct PlaceObserver(pub Arc<dyn Fn(PlaceProgress) + Send + Sync>);

impl fmt::Debug for PlaceObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlaceObserver")
    }
}

/// Progress of a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PlaceProgress {
    /// A program that may ask for a password on the terminal was started, as this process group.
    PromptBegins(Pid),
    /// That program no longer prompts: the target has answered, or the attempt has failed.
    PromptEnds,
    /// The program is being pushed.
    Pushing {
        /// Bytes to send.
        bytes: u64,
        /// Bytes that an earlier connection has sent.
        kept: u64,
    },
    /// A server is running at the target.
    Running {
        /// Whether it was `found` there, `kept` from an earlier connection, or `pushed`.
        how: String,
        /// Its program.
        path: String,
    },
}

impl TargetConnector {
    /// Describes a target that is reached with the plain programs.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            programs: TargetPrograms::default(),
            dist: DistSources::default(),
            lifetime: ServerLifetime::default(),
            prompt: PromptMode::Never,
            progress: None,
        }
    }

    async fn open(&self, prompt: PromptMode) -> Result<Link, PlaceError> {
        let command = self.programs.shell_at(&self.target, prompt);
        let pipes = command.open().map_err(|error| self.start_error(error))?;
        let prompt_guard = PromptGuard::begin(self, prompt, pipes.group());
        // The search runs while ssh connects.
        let sources = self.dist.clone();
        let found = blocking(move || sources.find().to_vec()).await;
        let mut conversation = Conversation::new(pipes);
        let limit = match prompt {
            PromptMode::Terminal | PromptMode::Askpass => PROMPT_TIMEOUT,
            PromptMode::Never => SHELL_TIMEOUT,
        };
        conversation
            .send_script(&self.variables(&found), limit)
            .await?;
        drop(prompt_guard);
        let mut report = conversation.report(ANSWER_TIMEOUT).await?;
        if let ShellReport::Need {
            architecture,
            is_gzip,
        } = report
        {
            let program = found
                .into_iter()
                .find(|program| program.architecture.name() == architecture)
                .ok_or(PlaceError::Architecture(architecture))?;
            report = self.push(&mut conversation, program, is_gzip).await?;
        }
        let ShellReport::Run { how, path } = report else {
            return Err(PlaceError::Noise);
        };
        self.report_progress(PlaceProgress::Running { how, path });
        let pipes = conversation.into_pipes()?;
        match self.lifetime {
            ServerLifetime::Ephemeral => Ok(pipes.into_link()),
            ServerLifetime::Background => {
                let opened = pipes.into_websocket(SERVER_TIMEOUT).await;
                opened.map_err(PlaceError::Server)
            }
        }
    }

    fn variables(&self, found: &[DistProgram]) -> Vec<(&'static str, String)> {
        let want = |architecture: dist::Architecture| {
            let program = found.iter().find(|it| it.architecture == architecture);
            program.map_or(String::new(), |it| {
                let loader = it.loader.as_deref().unwrap_or("static");
                format!("{} {} {loader}", it.digest, it.bytes)
            })
        };
        let mode = match self.lifetime {
            ServerLifetime::Background => "shared",
            ServerLifetime::Ephemeral => "ephemeral",
        };
        vec![
            ("v", env!("CARGO_PKG_VERSION").to_owned()),
            ("mode", mode.to_owned()),
            ("want_x86_64", want(dist::Architecture::X86_64)),
            ("want_aarch64", want(dist::Architecture::Aarch64)),
        ]
    }

    /// Sends the program, or the rest after an interrupted push.
    async fn push(
        &self,
        conversation: &mut Conversation,
        program: DistProgram,
        is_gzip: bool,
    ) -> Result<ShellReport, PlaceError> {
        let architecture = program.architecture;
        let packed = blocking(move || {
            let content = program.read()?;
            let content = match is_gzip {
                true => compress(&content)?,
                false => content,
            };
            let digest = dist::digest(&content);
            io::Result::Ok((content, digest))
        });
        let (content, digest) = packed.await.map_err(|error| PlaceError::Program {
            architecture,
            error,
        })?;
        let size = content.len();
        conversation.send_line(&format!("{digest} {size}")).await?;
        let ShellReport::Have(kept) = conversation.report(ANSWER_TIMEOUT).await? else {
            return Err(PlaceError::Noise);
        };
        let start = usize::try_from(kept).unwrap_or(usize::MAX);
        let rest = content.get(start..).ok_or(PlaceError::Noise)?;
        let bytes = rest.len() as u64;
        self.report_progress(PlaceProgress::Pushing { bytes, kept });
        tracing::info!(target = %self.target, bytes, kept, "pushing the program");
        conversation.send_content(rest).await
    }

    fn report_progress(&self, progress: PlaceProgress) {
        if let Some(PlaceObserver(observe)) = &self.progress {
            observe(progress);
        }
    }

    fn start_error(&self, error: ConnectError) -> PlaceError {
        let (program, variable) = match self.target.hops().first() {
            Some(hop) => hop.program(),
            None => ("sh", None),
        };
        let error = if let ConnectError::Start { source, .. } = error {
            source
        } else {
            io::Error::other(error)
        };
        PlaceError::Start {
            program,
            variable,
            error,
        }
    }
}

impl ServerConnector for TargetConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        async move { Ok(self.open(self.prompt).await?) }.boxed()
    }

    fn reconnect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        // A command may use the terminal now.
        async move { Ok(self.open(PromptMode::Never).await?) }.boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.reconnect()
    }

    fn continuity(&self) -> SessionContinuity {
        match self.lifetime {
            ServerLifetime::Background => SessionContinuity::Resumed,
            ServerLifetime::Ephemeral => SessionContinuity::Ended,
        }
    }

    fn backoff(&self, failures: u32) -> BackoffDelay {
        // Each attempt starts processes at both ends.
        match failures {
            0..10 => BackoffDelay::FromStart(Duration::from_millis(100)),
            10..60 => BackoffDelay::FromEnd(Duration::from_secs(1)),
            _ => BackoffDelay::FromEnd(Duration::from_secs(5)),
        }
    }
}

/// Reports when ssh may ask for a password, and when it no longer does: also if the attempt is
/// cancelled.
struct PromptGuard<'a>(Option<&'a TargetConnector>);

impl<'a> PromptGuard<'a> {
    fn begin(connector: &'a TargetConnector, prompt: PromptMode, group: Pid) -> Self {
        if prompt != PromptMode::Terminal {
            return Self(None);
        }
        connector.report_progress(PlaceProgress::PromptBegins(group));
        Self(Some(connector))
    }
}

impl Drop for PromptGuard<'_> {
    fn drop(&mut self) {
        if let Some(connector) = self.0 {
            connector.report_progress(PlaceProgress::PromptEnds);
        }
    }
}

/// Runs blocking work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => std::future::pending().await,
        },
    }
}

/// Compresses a program. Deterministic, so that a push can resume.
fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    let packed = Vec::with_capacity(content.len() / 2);
    let mut encoder = GzEncoder::new(packed, Compression::new(6));
    encoder.write_all(content)?;
    encoder.finish()
}
