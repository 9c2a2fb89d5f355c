//! Unified exec in a local or remote environment, with shortcuts for calls.

use std::{
    collections::BTreeMap, ffi::OsString, future::Future, num::NonZeroUsize, path::Path, sync::Arc,
    time::Duration,
};

use exec_client::client::ExecServerClient;
use exec_core::output_log::RetentionLimits;
use exec_env::{
    environment::{Environment, NoCatalog},
    http::NoHttpClient,
};
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    filesystem::LocalFileSystem,
    host::{HostDescription, HostFacts},
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_tools::unified::{
    CallId, CommandProgram, EventSink, ExecCommand, ExecEvent, OutputView, ProcessNumber,
    ToolOutput, ToolPolicy, UnifiedExec, UnifiedExecSettings, UnrestrictedPolicy, WaitFor,
    WriteStdin,
};
use exec_transport::memory;
use exec_wire::{initialize::ServerInfo, limits};
use regex::bytes::Regex;
use tokio::sync::watch;

/// Timeout of a case.
const CASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a case.
pub(crate) async fn run_case(case: impl Future<Output = ()>) {
    let run_case = tokio::time::timeout(CASE_TIMEOUT, case).await;
    run_case.expect("case timed out");
}

/// Unified exec with its recorded events.
pub(crate) struct ExecFixture {
    pub(crate) exec: UnifiedExec,
    pub(crate) events: Arc<EventLog>,
}

impl ExecFixture {
    pub(crate) fn new(environment: Environment) -> Self {
        Self::with(environment, Arc::new(UnrestrictedPolicy))
    }

    pub(crate) fn with(environment: Environment, policy: Arc<dyn ToolPolicy>) -> Self {
        let events = Arc::new(EventLog::default());
        let exec = UnifiedExec::new(
            environment,
            UnifiedExecSettings::default(),
            policy,
            events.clone(),
        );
        Self { exec, events }
    }

    /// Runs a command.
    pub(crate) async fn run(&self, call: ExecCommand) -> ToolOutput {
        self.exec.exec_command(call).await.unwrap()
    }

    /// Writes to a command.
    pub(crate) async fn write(
        &self,
        number: ProcessNumber,
        chars: &str,
        wait: WaitFor,
    ) -> ToolOutput {
        let call = WriteStdin {
            call_id: CallId("w".to_owned()),
            number,
            chars: chars.to_owned(),
            close: false,
            yield_time: Some(Duration::from_secs(30)),
            wait,
            max_output_tokens: None,
            view: OutputView::Plain,
        };
        self.exec.write_stdin(call).await.unwrap()
    }
}

/// Runs a command line with `sh`.
pub(crate) fn shell_command(line: &str) -> ExecCommand {
    ExecCommand {
        call_id: CallId("c".to_owned()),
        program: CommandProgram::Shell {
            line: line.to_owned(),
            shell: Some("/bin/sh".to_owned()),
            login: false,
        },
        workdir: None,
        env: Default::default(),
        tty: false,
        stdin: None,
        yield_time: Some(Duration::from_secs(30)),
        wait: WaitFor::Exit,
        max_output_tokens: None,
        view: OutputView::Plain,
        justification: None,
    }
}

/// Waits for output that matches a pattern.
pub(crate) fn wait_for_pattern(pattern: &str) -> WaitFor {
    WaitFor::Pattern(Regex::new(pattern).unwrap())
}

/// Returns the exit code of an ended command.
pub(crate) fn exit_code(output: &ToolOutput) -> Option<i32> {
    output.exit.as_ref().map(|exit| exit.code)
}

/// Returns the local environment.
pub(crate) fn local() -> Environment {
    let env: BTreeMap<OsString, OsString> = BTreeMap::from([
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("HOST_PLAIN".into(), "plain".into()),
        ("HOST_TOKEN".into(), "secret".into()),
        ("PAGER".into(), "less".into()),
    ]);
    let host = HostDescription::new(&HostFacts {
        env: &env,
        passwd: "",
        uid: 0,
        cwd: Path::new("/"),
        exists: &|path: &Path| path.exists(),
    });
    let backend = LocalBackend::new(LocalConfig {
        env,
        host,
        version: "0.0.0".to_owned(),
        retention: RetentionLimits::default(),
        sandbox: exec_sandbox::SandboxSettings::default(),
    });
    Environment {
        files: Arc::new(LocalFileSystem::default().with_policies(&backend)),
        backend: Arc::new(backend),
        http: Arc::new(NoHttpClient),
        catalog: Arc::new(NoCatalog),
        network: Arc::new(exec_env::tunnel::NoNetwork),
    }
}

/// Returns the local environment behind a server that accepts only approved commands.
pub(crate) async fn remote() -> Environment {
    let config = ServiceConfig {
        session_ttl: Duration::ZERO,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: false,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(NonZeroUsize::MIN.saturating_add(63)),
        busy_poll: Duration::ZERO,
        durability: None,
        server_name: ServerInfo {
            name: "memory".to_owned(),
            version: "0.0.0".to_owned(),
        },
    };
    let local_environment = local();
    let service = Service::new(config, move || local_environment.clone());
    let (near, far) = memory::pair();
    tokio::spawn(async move { service.serve(far).await });
    let client = ExecServerClient::connect(near, Default::default()).await;
    client.expect("the server accepts a client").environment()
}

/// Records events.
#[derive(Debug, Default)]
pub(crate) struct EventLog(watch::Sender<Vec<ExecEvent>>);

impl EventLog {
    /// Waits for an event and returns the value picked from it.
    pub(crate) async fn first<T>(&self, mut pick: impl FnMut(&ExecEvent) -> Option<T>) -> T {
        let mut events = self.0.subscribe();
        let mut value = None;
        let wait = events.wait_for(|events| {
            value = events.iter().find_map(&mut pick);
            value.is_some()
        });
        drop(wait.await.expect("the sink is alive"));
        value.expect("the event was picked")
    }

    /// Waits for the end of a command and returns its exit code and output.
    pub(crate) async fn end(&self) -> (i32, String) {
        self.first(|event| match event {
            ExecEvent::ExecCommandEnd {
                outcome,
                aggregated_output,
                ..
            } => Some((outcome.as_ref().unwrap().code, aggregated_output.clone())),
            _ => None,
        })
        .await
    }

    /// Returns the recorded output.
    pub(crate) fn output(&self) -> Vec<u8> {
        let events = self.0.borrow();
        let chunks = events.iter().filter_map(|event| match event {
            ExecEvent::ExecCommandOutputDelta { chunk, .. } => Some(&chunk[..]),
            _ => None,
        });
        chunks.collect::<Vec<_>>().concat()
    }
}

impl EventSink for EventLog {
    fn handle_event(&self, event: ExecEvent) {
        self.0.send_modify(|events| events.push(event));
    }
}
