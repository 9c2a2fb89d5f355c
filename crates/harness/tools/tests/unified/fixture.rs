//! Unified exec in a place, and short ways to call it.

use std::{
    collections::BTreeMap, ffi::OsString, future::Future, num::NonZeroUsize, path::Path, sync::Arc,
    time::Duration,
};

use exec_client::client::ExecServerClient;
use exec_core::log::Retention;
use exec_env::{
    catalog::NoCatalog, environment::Environment, http::NoHttpClient, process::ProcessNumber,
};
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    filesystem::LocalFileSystem,
    host::{Host, HostFacts},
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_tools::unified::{
    CallId, EventSink, ExecCommand, ExecEvent, Program, Settings, ToolOutput, ToolPolicy,
    UnifiedExec, Unrestricted, View, WaitFor, WriteStdin,
};
use exec_transport::memory;
use exec_wire::{initialize::ServerName, limits};
use regex::bytes::Regex;
use tokio::sync::watch;

/// Longest that a case may take.
const CASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a case.
pub(crate) async fn run_case(case: impl Future<Output = ()>) {
    let run_case = tokio::time::timeout(CASE_TIMEOUT, case).await;
    run_case.expect("a case ends in time");
}

/// Unified exec, and what it tells.
pub(crate) struct ExecFixture {
    pub(crate) exec: UnifiedExec,
    pub(crate) events: Arc<EventLog>,
}

impl ExecFixture {
    pub(crate) fn new(environment: Environment) -> Self {
        Self::with(environment, Arc::new(Unrestricted))
    }

    pub(crate) fn with(environment: Environment, policy: Arc<dyn ToolPolicy>) -> Self {
        let events = Arc::new(EventLog::default());
        let exec = UnifiedExec::new(environment, Settings::default(), policy, events.clone());
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
            view: View::Plain,
        };
        self.exec.write_stdin(call).await.unwrap()
    }
}

/// A line for `sh`.
pub(crate) fn shell_command(line: &str) -> ExecCommand {
    ExecCommand {
        call_id: CallId("c".to_owned()),
        program: Program::Shell {
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
        view: View::Plain,
        justification: None,
    }
}

/// Waits for output that matches.
pub(crate) fn wait_for_pattern(pattern: &str) -> WaitFor {
    WaitFor::Pattern(Regex::new(pattern).unwrap())
}

/// The code of a command that has ended.
pub(crate) fn exit_code(output: &ToolOutput) -> Option<i32> {
    output.exit.as_ref().map(|exit| exit.code)
}

/// This machine.
pub(crate) fn local() -> Environment {
    let env: BTreeMap<OsString, OsString> = BTreeMap::from([
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("HOST_PLAIN".into(), "plain".into()),
        ("HOST_TOKEN".into(), "secret".into()),
        ("PAGER".into(), "less".into()),
    ]);
    let host = Host::new(&HostFacts {
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
        retention: Retention::default(),
        sandbox: exec_sandbox::Settings::default(),
    });
    Environment {
        files: Arc::new(LocalFileSystem::default().with_policies_of(&backend)),
        backend: Arc::new(backend),
        http: Arc::new(NoHttpClient),
        catalog: Arc::new(NoCatalog),
    }
}

/// This machine, behind a server that takes only commands that were approved.
pub(crate) async fn remote() -> Environment {
    let config = ServiceConfig {
        session_ttl: Duration::ZERO,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: false,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(NonZeroUsize::MIN.saturating_add(63)),
        attention: Duration::ZERO,
        server: ServerName {
            name: "memory".to_owned(),
            version: "0.0.0".to_owned(),
        },
    };
    let local_environment = local();
    let service = Service::new(config, move || local_environment.clone());
    let (near, far) = memory::pair();
    tokio::spawn(async move { service.serve(far).await });
    let client = ExecServerClient::connect(near, Default::default()).await;
    client.expect("the server takes a client").environment()
}

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct EventLog(watch::Sender<Vec<ExecEvent>>);

impl EventLog {
    /// Waits for an event, and returns what is made of it.
    pub(crate) async fn first<T>(&self, mut pick: impl FnMut(&ExecEvent) -> Option<T>) -> T {
        let mut events = self.0.subscribe();
        let mut picked = None;
        let wait = events.wait_for(|events| {
            picked = events.iter().find_map(&mut pick);
            picked.is_some()
        });
        drop(
            wait.await
                .expect("events are told as long as there is a sink"),
        );
        picked.expect("it was waited for")
    }

    /// Waits for the end of a command: its code, and all it wrote.
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

    /// Returns all output that was told.
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
