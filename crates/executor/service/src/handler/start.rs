//! Handlers of `process/start`: checks parameters, reserves the id, starts the process and follows
//! its events.

use std::{
    ops::RangeInclusive,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use exec_core::output_log::FollowStart;
use exec_env::{
    durable::{DurableOwner, DurableRequest},
    environment::{
        Command, CommandNetwork, NetworkPolicyHook, ProcessIo, StartError, StartedProcess,
        StdinMode,
    },
};
use exec_wire::{
    error::RpcError,
    id::{OutputSeq, ProcessId},
    message::RequestId,
    method::notification,
    outgoing_message::OutgoingMessage,
    process::{ExecMode, ProcessFailed, ProcessStarted, StartProcess, StartResult},
};
use futures_util::future::FutureExt;
use serde::Serialize;

use super::{Dispatch, HandlerContext, RequestResult};
use crate::{
    connection::MethodFamily,
    metrics::StartFailureReason,
    request_guard::truncate_for_log,
    send_queue::SendQueue,
    server_requests::{ClientNetworkWatcher, PolicyClient},
    service::DurabilityDefault,
    session::{
        AdmitError, OwnerCell, ProcessLookup, ProcessSpan, Session, SessionProcess, UnackedOutput,
        follow,
    },
};

/// A validated start request: the command, its owner and its method family.
pub(super) struct StartPlan {
    pub(super) command: Command,
    pub(super) family: MethodFamily,
    pub(super) detached: bool,
    pub(super) watcher: Option<Arc<ClientNetworkWatcher>>,
}

impl HandlerContext<'_> {
    pub(super) fn start(&self, id: RequestId, params: StartProcess) -> Result<Dispatch, RpcError> {
        let planned = self.plan(params).and_then(|plan| {
            let is_refused = plan.command.durable.is_none() && self.shared.refuses_ordinary();
            match is_refused {
                true => Err(RpcError::internal("server is being replaced: try again")),
                false => Ok(plan),
            }
        });
        let failures = &self.shared.metrics.start_failures;
        let plan = planned.inspect_err(|_| failures.count(StartFailureReason::Params))?;
        self.launch(id, plan, |process_id, started| StartResult {
            process_id,
            sandbox_type: started.sandbox_type,
        })
    }

    /// Reserves the process id at once. The returned future starts the process.
    pub(super) fn launch<R: Serialize>(
        &self,
        id: RequestId,
        plan: StartPlan,
        result: impl FnOnce(ProcessId, &StartedProcess) -> R + Send + 'static,
    ) -> Result<Dispatch, RpcError> {
        let process_id = plan.command.process_id.clone();
        let owner = if plan.detached {
            &self.shared.detached
        } else {
            &self.session
        };
        // Ids of detached processes are unique on the server.
        let is_free =
            |session: &Session| matches!(session.find(&process_id), ProcessLookup::Unknown);
        let is_free = match plan.detached {
            true => self.shared.sessions.all().iter().all(|it| is_free(it)),
            false => is_free(&self.shared.detached),
        };
        let admitted = match is_free {
            true => owner.admit(&process_id),
            false => Err(AdmitError::Exists(process_id.clone())),
        };
        let metrics = Arc::clone(&self.shared.metrics);
        let reservation = admitted.map_err(|error| {
            metrics.start_failures.count(StartFailureReason::Table);
            RpcError::invalid_request(error.to_string())
        })?;
        let (owner, send_queue) = (Arc::clone(owner), Arc::clone(self.send_queue));
        let continue_trace = self.shared.continue_trace;
        let run = async move {
            let StartPlan {
                command,
                family,
                detached,
                watcher,
            } = plan;
            let (argv, cwd) = (command.argv.clone(), command.cwd.clone());
            let tty = matches!(command.io, ProcessIo::Terminal(_));
            let started = tokio::select! {
                biased;
                () = reservation.cancelled() => Err(StartError::Cancelled),
                started = owner.environment.backend.start(command) => started,
            };
            let started = match started {
                Ok(started) => started,
                Err(error) => {
                    let reason = StartFailureReason::of(&error);
                    metrics.start_failures.count(reason);
                    tracing::info!(
                        target: "exec_service::process",
                        process_id = truncate_for_log(reservation.id().as_str()), refusal = ?reason, %error,
                        "process did not start"
                    );
                    return Err(start_error(error));
                }
            };
            let handle = Arc::clone(&started.process);
            let process = Arc::new(SessionProcess {
                handle,
                family,
                argv,
                cwd,
                tty,
                network: Arc::clone(&owner.environment.network),
                owner: OwnerCell::new(&owner, detached),
                watcher,
                unacked: UnackedOutput::default(),
                released: AtomicBool::default(),
            });
            let process_span = ProcessSpan::start(&process, &owner.id, continue_trace);
            if !reservation.finish(&process, process_span) {
                return Err(RpcError::invalid_request(
                    "session ended while the process was starting",
                ));
            }
            Ok((process, started))
        };
        let finish = async move {
            match run.await {
                Ok((process, started)) => {
                    let result = RequestResult::new(&id, &Ok(result(process_id.clone(), &started)));
                    let status = process.handle.status();
                    let started = ProcessStarted {
                        process_id,
                        os_pid: status.os_pid,
                        started_at_ms: status.started_at_ms,
                    };
                    notify(&send_queue, notification::PROCESS_STARTED, &started).await;
                    // Send the response before the events.
                    let result = result.send(&send_queue).await;
                    follow(&send_queue, &process, FollowStart::After(OutputSeq(0)));
                    result
                }
                Err(error) => {
                    let message = error.message.clone();
                    let failed = ProcessFailed {
                        process_id,
                        message,
                    };
                    notify(&send_queue, notification::PROCESS_FAILED, &failed).await;
                    RequestResult::error(&id, &error)
                }
            }
        };
        Ok(Dispatch::Running(finish.boxed()))
    }

    fn plan(&self, params: StartProcess) -> Result<StartPlan, RpcError> {
        let config = &self.shared.config;
        let allowed = match params.mode.unwrap_or(ExecMode::Direct) {
            ExecMode::Direct => config.allow_direct_exec,
            ExecMode::Prepared => config.allow_prepared_exec,
        };
        if !allowed {
            let mode = if params.mode == Some(ExecMode::Prepared) {
                "prepared"
            } else {
                "direct"
            };
            return Err(RpcError::invalid_request(format!(
                "{mode} exec is disabled on this server"
            )));
        }
        let invalid =
            |field: &str, reason: &str| Err(RpcError::invalid_params(format!("{field}: {reason}")));
        if params
            .size
            .is_some_and(|size| size.rows == 0 || size.cols == 0)
        {
            return invalid("size", "expected at least one row and one column");
        }
        let watcher = self.watcher(&params)?;
        let metadata = params.metadata.unwrap_or_default();
        if let Some(thread) = &metadata.thread_id
            && uuid::Uuid::try_parse(thread).is_err()
        {
            return invalid("metadata.threadId", "expected a UUID");
        }
        let io = match (params.tty, params.pipe_stdin) {
            (true, _) => ProcessIo::Terminal(params.size.unwrap_or_default()),
            (false, true) => ProcessIo::Pipes {
                stdin: StdinMode::Piped,
            },
            (false, false) => ProcessIo::Pipes {
                stdin: StdinMode::Null,
            },
        };
        let command = Command {
            process_id: params.process_id,
            argv: params.argv,
            arg0: params.arg0,
            cwd: params.cwd,
            env_policy: params.env_policy,
            env: params.env,
            shell_snapshot: params.shell_snapshot,
            metadata,
            io,
            limits: params.limits.unwrap_or_default(),
            retained_bytes: None,
            sandbox: params.sandbox,
            network: CommandNetwork {
                enforced: params.enforce_managed_network,
                managed: params.managed_network,
                proxy: params.network_proxy,
                policy_hook: watcher
                    .clone()
                    .map(|watcher| watcher as Arc<dyn NetworkPolicyHook>),
            },
            mode: params.mode,
            durable: self.durable_request(params.durable, params.detached)?,
        };
        Ok(StartPlan {
            command,
            family: MethodFamily::Process,
            detached: params.detached,
            watcher,
        })
    }

    /// Decides whether a process shall be durable, and saves its session if so.
    fn durable_request(
        &self,
        requested: Option<bool>,
        detached: bool,
    ) -> Result<Option<DurableRequest>, RpcError> {
        let durability = self.shared.config.durability.as_ref();
        let by_default = match durability.map_or(DurabilityDefault::Off, |it| it.default) {
            DurabilityDefault::Off => false,
            DurabilityDefault::Detached => detached,
            DurabilityDefault::All => true,
        };
        if !requested.unwrap_or(by_default) {
            return Ok(None);
        }
        let Some(durability) = durability else {
            return match requested {
                Some(_) => Err(RpcError::invalid_params(
                    "durable: this server has no state directory (start it with --state-dir)",
                )),
                None => Ok(None),
            };
        };
        let owner = match detached {
            true => DurableOwner::Server,
            false => {
                self.session.save(&*durability.state).map_err(|error| {
                    RpcError::internal(format!("failed to save the session: {error}"))
                })?;
                DurableOwner::Session(self.session.id.clone())
            }
        };
        Ok(Some(DurableRequest {
            owner,
            principal: self.session.principal_name(),
            required: requested.is_some(),
        }))
    }

    /// Creates the network watcher of a process with a proxy.
    fn watcher(
        &self,
        params: &StartProcess,
    ) -> Result<Option<Arc<ClientNetworkWatcher>>, RpcError> {
        let Some(proxy) = &params.network_proxy else {
            return Ok(None);
        };
        let decision_timeout = proxy.policy_decision_timeout_ms;
        if decision_timeout == Some(0) {
            let text = "networkProxy.policyDecisionTimeoutMs: expected at least 1";
            return Err(RpcError::invalid_params(text));
        }
        let id = &params.process_id;
        if decision_timeout.is_some() && !POLICY_PROCESS_ID_BYTES.contains(&id.as_str().len()) {
            let text = "processId: expected 1 to 256 bytes for network policy requests";
            return Err(RpcError::invalid_params(text));
        }
        let client = if params.detached {
            PolicyClient::Connection(Arc::downgrade(self.send_queue))
        } else {
            PolicyClient::Session(Arc::downgrade(&self.session))
        };
        let decision_timeout = decision_timeout.map(Duration::from_millis);
        let metrics = Arc::clone(&self.shared.metrics);
        let watcher = ClientNetworkWatcher::new(id.clone(), client, decision_timeout, metrics);
        Ok(Some(Arc::new(watcher)))
    }
}

/// Allowed length of a process id in network policy requests.
const POLICY_PROCESS_ID_BYTES: RangeInclusive<usize> = 1..=256;

/// Notifies a client of a start, if it wants to know.
async fn notify(send_queue: &SendQueue, method: &str, start: &(impl Serialize + Sync)) {
    if send_queue.lifecycle() {
        let message = OutgoingMessage::notification(method, start);
        send_queue.send(message).await;
    }
}

/// Maps a start error to its JSON-RPC error.
fn start_error(error: StartError) -> RpcError {
    match error {
        StartError::EmptyArgv | StartError::Refused { .. } => {
            RpcError::invalid_params(error.to_string())
        }
        StartError::Cwd(reason) => RpcError::invalid_params(format!("cwd: {reason}")),
        StartError::Spawn { context, source } => RpcError::internal(format!("{context}: {source}")),
        StartError::Cancelled => RpcError::invalid_request(error.to_string()),
        StartError::Remote(error) => error,
        StartError::EmptyProgram | StartError::Disconnected(_) | _ => {
            RpcError::internal(error.to_string())
        }
    }
}
