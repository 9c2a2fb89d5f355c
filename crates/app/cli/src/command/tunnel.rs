//! `exec-server tunnel`, and the tunnels of `run` and `shell`.

mod port_forward;
mod port_watcher;
#[cfg(test)]
mod tests;
mod tunnel_spec;

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use exec_env::tunnel::TunnelError;
use exec_wire::id::ProcessId;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use tokio::time::timeout;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached,
    failure::{CommandFailure, FailureKind},
    print::{print, printable},
    process_session::{SignalListener, print_notice, show_outages},
    terminal::StandardStream,
    tunnel::{
        port_forward::{
            ForwardNotice, ForwardSet, ForwardedPort, LocalForward, ReverseForward, url,
        },
        port_watcher::{PortWatcher, ProcessHost},
    },
};

pub use self::tunnel_spec::{TunnelArg, TunnelSpec, TunnelSpecError};

pub(crate) use self::port_forward::{NoticeReceiver, no_notices};

/// Makes ports of an environment reachable here, or ports of this machine there.
///
/// Listens on this machine's loopback until Ctrl-C, and prints where. Connections survive a lost
/// connection to the server. If a port without LOCAL is in use, the system chooses another.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TunnelCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Listens in the environment, and connects from here, repeatable:
    /// `[[BIND:]PORT:][HOST:]PORT`.
    #[arg(short = 'R', long = "reverse", value_name = "SPEC")]
    pub reverse: Vec<TunnelSpec>,

    /// Uses the network of this process, such as one in a sandbox without network: its id, or a
    /// unique prefix of it.
    #[arg(long, value_name = "ID")]
    pub process: Option<String>,

    /// Listens on this address of this machine instead of the loopback; 0.0.0.0 means all of them.
    /// Everyone who reaches the address can then connect.
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,

    /// Prints a JSON object per tunnel, each on its line.
    #[arg(long)]
    pub json: bool,

    /// Ports to reach: `[[BIND:]LOCAL:][HOST:]PORT`, where LOCAL 0 lets the system choose; or
    /// `auto`, for every port that the process opens.
    #[arg(value_name = "SPEC", required_unless_present = "reverse")]
    pub specs: Vec<TunnelArg>,
}

const EXAMPLES: &str = "\
Examples:
  exec-server tunnel 3000                      # port 3000 of the environment, here
  exec-server tunnel 8080:3000 5433:db:5432    # under other numbers; on a host that it reaches
  exec-server tunnel --process web auto        # whatever the process `web` opens
  exec-server tunnel -R 9000:localhost:9000    # port 9000 of this machine, there";

/// Limit for closing the tunnels at the server. The client allows its peer one second.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(1200);

impl TunnelCommand {
    /// Forwards ports until a signal arrives or the session is lost.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        if self.process.is_none() && self.specs.contains(&TunnelArg::Auto) {
            let what = "`auto` needs a process whose ports it forwards";
            return Err(CommandFailure::usage(what)
                .next("`--process ID` names one that `exec-server ps` lists"));
        }
        let mut signals = SignalListener::listen().map_err(CommandFailure::failed)?;
        raise_descriptor_limit();
        let mut disconnected = None;
        let served = async {
            let env = ConnectedEnv::open(&self.env_args).await?;
            disconnected = Some(env.client.ended());
            show_outages(&env.client, self.serve(&env)).await
        };
        let outcome = tokio::select! {
            biased;
            status = signals.exit_requested() => Ok(status),
            failure = served => failure,
        };
        if let Some(disconnected) = disconnected {
            // The session stays for a while. Its tunnels are closed by what is sent now.
            let _late = timeout(CLOSE_TIMEOUT, disconnected).await;
        }
        outcome
    }

    /// Forwards ports until the session is lost.
    async fn serve(&self, env: &ConnectedEnv) -> Result<ExitCode, CommandFailure> {
        let network = env.environment().network;
        let process = shared_process(env, self.process.as_deref()).await?;
        network.ports(process.clone()).await?;
        let (mut forwards, mut notices) = ForwardSet::new(network);
        // Nothing is printed unless all of them listen.
        let mut lines = self.forward(&mut forwards, process.as_ref())?;
        lines.extend(self.reverse(&mut forwards, process.as_ref()).await?);
        for line in lines {
            self.print(&line, env)?;
        }
        if let (Some(process), true) = (&process, self.specs.contains(&TunnelArg::Auto)) {
            let watcher = PortWatcher {
                process: process.clone(),
                bind: self.bind,
                host: process_host(env),
            };
            forwards.spawn(watcher.run(forwards.context()));
        }
        loop {
            tokio::select! {
                () = env.client.closed() => return Err(lost(env).await),
                error = forwards.failed() => {
                    // The session is lost, or a port of the environment failed.
                    let failure = CommandFailure::from(error);
                    return Err(failure.next(REOPEN));
                }
                Some(notice) = notices.recv() => match notice {
                    ForwardNotice::Opened(ForwardedPort { port, address, .. }) => {
                        let spec = TunnelSpec::loopback(port);
                        let line = TunnelLine::local(&spec, address, process.as_ref());
                        self.print(&line, env)?;
                    }
                    ForwardNotice::Problem(_) => print_notice(&notice.to_string()),
                },
            }
        }
    }

    /// Listens on this machine.
    fn forward(
        &self,
        forwards: &mut ForwardSet,
        process: Option<&ProcessId>,
    ) -> Result<Vec<TunnelLine>, CommandFailure> {
        let mut lines = Vec::new();
        for spec in &self.specs {
            let TunnelArg::Port(spec) = spec else {
                continue;
            };
            let forward = LocalForward::bind(spec, self.bind, process.cloned())?;
            let address = forward.address();
            if !address.ip().is_loopback() {
                let target = spec.authority();
                print_notice(&format!(
                    "everyone who reaches {address} can connect to {target}"
                ));
            }
            if spec.listen_port.is_none() && address.port() != spec.port {
                print_notice(&format!(
                    "port {} is not available on this machine",
                    spec.port
                ));
            }
            lines.push(TunnelLine::local(spec, address, process));
            forwards.forward(forward);
        }
        Ok(lines)
    }

    /// Listens in the environment.
    async fn reverse(
        &self,
        forwards: &mut ForwardSet,
        process: Option<&ProcessId>,
    ) -> Result<Vec<TunnelLine>, CommandFailure> {
        let mut lines = Vec::new();
        for spec in &self.reverse {
            let network = &forwards.context().network;
            let reverse = ReverseForward::bind(spec, process.cloned(), &**network).await?;
            let address = SocketAddr::new(spec.listen_address(None).ip(), reverse.port());
            if !address.ip().is_loopback() {
                let target = spec.authority();
                print_notice(&format!(
                    "everyone who reaches {address} there can connect to {target}"
                ));
            }
            lines.push(TunnelLine::reverse(spec, address, process));
            forwards.reverse(reverse);
        }
        Ok(lines)
    }

    fn print(&self, line: &TunnelLine, env: &ConnectedEnv) -> Result<(), CommandFailure> {
        if self.json {
            let text = serde_json::to_string(line).map_err(CommandFailure::failed)?;
            return print(&format!("{text}\n"));
        }
        let text = line.text(&env.name, StandardStream::Output.is_terminal());
        print(&format!("{}\n", printable(&text)))
    }
}

/// An open tunnel, as it is printed.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TunnelLine {
    direction: TunnelDirection,
    /// Address that is listened on: here, or in the environment for a reverse tunnel.
    address: IpAddr,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    target_host: String,
    target_port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_id: Option<ProcessId>,
    /// Host and port that are connected to, for people.
    #[serde(skip)]
    target: String,
}

/// Which end listens.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
enum TunnelDirection {
    /// This machine.
    Local,
    /// The environment.
    Reverse,
}

impl TunnelLine {
    fn local(spec: &TunnelSpec, address: SocketAddr, process: Option<&ProcessId>) -> Self {
        Self {
            direction: TunnelDirection::Local,
            url: Some(url(address)),
            ..Self::reverse(spec, address, process)
        }
    }

    fn reverse(spec: &TunnelSpec, address: SocketAddr, process: Option<&ProcessId>) -> Self {
        Self {
            direction: TunnelDirection::Reverse,
            address: address.ip(),
            port: address.port(),
            url: None,
            target_host: spec.host_name().to_owned(),
            target_port: spec.port,
            process_id: process.cloned(),
            target: spec.authority(),
        }
    }

    /// Describes it. On a terminal, a URL can be clicked.
    fn text(&self, env: &str, is_terminal: bool) -> String {
        let place = self.process_id.as_ref().map_or(env, ProcessId::as_str);
        let address = SocketAddr::new(self.address, self.port);
        let target = &self.target;
        match (self.direction, &self.url) {
            (TunnelDirection::Local, Some(url)) if is_terminal => {
                format!("{url} → {target} in `{place}`")
            }
            (TunnelDirection::Local, _) => format!("{address} → {target} in `{place}`"),
            (TunnelDirection::Reverse, _) => format!("{address} in `{place}` → {target}"),
        }
    }
}

/// Tunnels of a command that `run` or `shell` starts.
#[derive(Debug)]
pub(crate) struct CommandTunnels {
    forwards: ForwardSet,
    notices: NoticeReceiver,
    opened: Vec<LocalForward>,
    watcher: Option<PortWatcher>,
}

impl CommandTunnels {
    /// Listens for a command that has not been started yet. Connections queue until it starts.
    pub(crate) async fn bind(
        args: &[TunnelArg],
        env: &ConnectedEnv,
        process: &ProcessId,
    ) -> Result<Self, CommandFailure> {
        let network = env.environment().network;
        if !args.is_empty()
            && let Err(error @ TunnelError::Unsupported) = network.ports(None).await
        {
            return Err(error.into());
        }
        let (forwards, notices) = ForwardSet::new(network);
        let mut tunnels = Self {
            forwards,
            notices,
            opened: Vec::new(),
            watcher: None,
        };
        for arg in args {
            match arg {
                TunnelArg::Port(spec) => {
                    let forward = LocalForward::bind(spec, None, Some(process.clone()))?;
                    tunnels.opened.push(forward);
                }
                TunnelArg::Auto => {
                    tunnels.watcher = Some(PortWatcher {
                        process: process.clone(),
                        bind: None,
                        host: process_host(env),
                    });
                }
            }
        }
        Ok(tunnels)
    }

    /// Starts to forward, and returns the messages for the user.
    pub(crate) fn start(self) -> (ForwardSet, NoticeReceiver) {
        let Self {
            mut forwards,
            notices,
            opened,
            watcher,
        } = self;
        for forward in opened {
            forwards
                .context()
                .notify(ForwardNotice::Opened(forward.port()));
            forwards.forward(forward);
        }
        if let Some(watcher) = watcher {
            forwards.spawn(watcher.run(forwards.context()));
        }
        (forwards, notices)
    }
}

/// Finds the process that provides the network. It must be detached: a session cannot use the
/// processes of another session.
pub(crate) async fn shared_process(
    env: &ConnectedEnv,
    typed: Option<&str>,
) -> Result<Option<ProcessId>, CommandFailure> {
    let Some(typed) = typed else {
        return Ok(None);
    };
    let found = detached::find_attachable(&env.client, typed).await?;
    if found.detached {
        return Ok(Some(found.process_id));
    }
    let id = found.process_id.as_str();
    let what = format!("`{id}` belongs to another session");
    Err(CommandFailure::failed(what).next(format_args!(
        "start it with `--tunnel` or `--detach`, or take it over with `{}`",
        env.line("attach", &[id])
    )))
}

fn process_host(env: &ConnectedEnv) -> ProcessHost {
    match env.is_this_machine {
        true => ProcessHost::Here,
        false => ProcessHost::Remote,
    }
}

/// Explains why the session is lost.
async fn lost(env: &ConnectedEnv) -> CommandFailure {
    let failure = match env.client.info().await {
        Err(error) => error.into(),
        // A new session has started, which has none of the tunnels.
        Ok(_) => CommandFailure::new(FailureKind::Lost, "the session is lost"),
    };
    failure.next(REOPEN)
}

/// What to do when tunnels have ended.
const REOPEN: &str = "the same command opens new tunnels when the server answers";

/// Allows as many connections as the system does: each takes a descriptor, and the usual limit is
/// below theirs.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // With the old limit, connections beyond it wait.
    let _unchanged = setrlimit(Resource::Nofile, raised);
}
