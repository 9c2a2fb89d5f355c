//! Entry point of this crate: prepares the sandbox of a command or an fs worker from a policy.

use std::{
    ffi::OsString,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use exec_env::filesystem::FileError;
use exec_process::spawner::Spawner;
use exec_spawn::sandbox_setup::SandboxSetup;
use exec_wire::sandbox::{EntryPath, FileSystemPolicy, SandboxPermissions, SandboxPolicy};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    abilities::{HostAbilities, ProbeDepth, probe},
    bubblewrap::BubblewrapCommand,
    enforcement::{
        Enforcement, EnforcementCache, EnforcementError, EnforcementRequest, ListenerHandoff,
        MechanismChoice, ProcessIsolation, SandboxSubject, select_enforcement,
    },
    facts::HostFacts,
    plan::SandboxPlan,
    plan_cache::{CachedPlan, PlanCache, coarse_now},
    policy::{PolicyError, PolicyPurpose, ResolveContext, resolve},
};

/// How long a failed probe is cached. Successful probes are cached forever.
const FAILED_PROBE_TTL: Duration = Duration::from_secs(30);

/// Configuration of sandboxes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SandboxSettings {
    /// Mechanisms that may be used.
    pub mechanism: MechanismChoice,
    /// Whether commands get their own PID namespace.
    pub processes: ProcessIsolation,
}

/// Prepares sandboxes. Clones share the probe results and the plan cache.
#[derive(Clone, Debug)]
pub struct SandboxFactory {
    spawner: Spawner,
    settings: SandboxSettings,
    protected: Arc<[PathBuf]>,
    probed: Arc<Mutex<Option<CachedProbe>>>,
    cache: Arc<EnforcementCache>,
    plan_cache: PlanCache,
}

#[derive(Clone, Debug)]
struct CachedProbe {
    abilities: Arc<HostAbilities>,
    until: Option<Instant>,
}

/// A command to be sandboxed.
#[derive(Debug)]
pub struct CommandRequest<'a> {
    /// Policy of the command.
    pub sandbox: &'a SandboxPolicy,
    /// Working directory of the command.
    pub cwd: &'a Path,
    /// Environment of the command.
    pub env: &'a [(OsString, OsString)],
    /// Managed network of the command, if any.
    pub managed: Option<ManagedNetworkRequest>,
}

/// Managed network: a loopback of the sandbox's own, of which only these ports lead out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ManagedNetworkRequest {
    /// Loopback ports that the server listens on. None: nothing leads out.
    pub ports: Vec<u16>,
    /// Unix sockets of the host stay reachable.
    pub unix: bool,
}

/// Prepared sandbox of a command.
#[derive(Debug, Default)]
pub struct PreparedSandbox {
    /// Set-up that the server applies. Absent if nothing is restricted, or `wrapper` does it.
    pub sandbox_setup: Option<SandboxSetup>,
    /// Program that applies the sandbox.
    pub wrapper: Option<BubblewrapCommand>,
    /// Socket that delivers the listening sockets of a managed network once the command runs.
    pub listener_socket: Option<OwnedFd>,
}

/// Why a command or file operation cannot be sandboxed. It does not run in any of these cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// Caller: the policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Host: the policy cannot be enforced here.
    #[error(transparent)]
    Enforcement(#[from] EnforcementError),
    /// Host: out of descriptors or memory.
    #[error("cannot prepare the sandbox: {0}")]
    Host(#[from] io::Error),
}

impl SandboxFactory {
    /// Creates a factory that has not probed the host yet.
    pub fn new(spawner: Spawner, settings: SandboxSettings) -> Self {
        Self {
            spawner,
            settings,
            protected: Arc::default(),
            probed: Arc::default(),
            cache: Arc::default(),
            plan_cache: PlanCache::default(),
        }
    }

    /// Protects files and directories regardless of a policy: nothing is created, removed or
    /// replaced directly in these directories.
    #[must_use]
    pub fn with_protected_paths(self, paths: Vec<PathBuf>) -> Self {
        let protected = paths.into();
        Self { protected, ..self }
    }

    /// Returns what this host can enforce. The first call probes it.
    pub async fn abilities(&self) -> Arc<HostAbilities> {
        let mut probed = self.probed.lock().await;
        if let Some(cached) = &*probed
            && cached.until.is_none_or(|until| Instant::now() < until)
        {
            return Arc::clone(&cached.abilities);
        }
        let thoroughness = match self.settings.mechanism {
            MechanismChoice::Bubblewrap => ProbeDepth::All,
            MechanismChoice::Cheapest | MechanismChoice::Landlock | MechanismChoice::Namespaces => {
                ProbeDepth::Enough
            }
        };
        let abilities = Arc::new(probe(&self.spawner, thoroughness).await);
        let all_work = abilities.namespaces.works() && abilities.seccomp.works();
        *probed = Some(CachedProbe {
            abilities: Arc::clone(&abilities),
            until: (!all_work).then(|| Instant::now() + FAILED_PROBE_TTL),
        });
        abilities
    }

    /// Prepares the sandbox of a command.
    ///
    /// # Errors
    /// Fails if the policy is invalid or cannot be enforced here. Policies are never weakened.
    pub async fn prepare(
        &self,
        request: CommandRequest<'_>,
    ) -> Result<PreparedSandbox, SandboxError> {
        let tmpdir = request.env.iter().find(|(name, _)| name == "TMPDIR");
        let context = ResolveContext {
            purpose: PolicyPurpose::Process,
            cwd: request.cwd.to_owned(),
            tmpdir: tmpdir.map(|(_, value)| value.clone()),
            always_readable: Vec::new(),
            protected: Arc::clone(&self.protected),
        };
        let plan = self.plan_for(request.sandbox, context).await?;
        let abilities = self.abilities().await;
        let (mut handoff, mut listener_socket) = (None, None);
        if let Some(ManagedNetworkRequest { ports, unix }) = request.managed {
            let mut socket = None;
            if !ports.is_empty() {
                let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
                let (server_end, sandbox_end) =
                    socketpair(AddressFamily::UNIX, kind, flags, None).map_err(io::Error::from)?;
                socket = Some(sandbox_end);
                listener_socket = Some(server_end);
            }
            handoff = Some(ListenerHandoff {
                ports,
                socket,
                unix,
            });
        }
        let enforcement_request = EnforcementRequest {
            plan: plan.plan(),
            subject: SandboxSubject::Command,
            mechanism: self.settings.mechanism,
            processes: self.settings.processes,
            handoff,
            cache: &self.cache,
        };
        Ok(match select_enforcement(enforcement_request, &abilities)? {
            Enforcement::Unrestricted => PreparedSandbox::default(),
            Enforcement::Kernel(setup) => PreparedSandbox {
                sandbox_setup: Some(setup),
                wrapper: None,
                listener_socket,
            },
            Enforcement::Bubblewrap(spec) => PreparedSandbox {
                wrapper: Some(BubblewrapCommand::new(
                    *spec,
                    request.env,
                    request.cwd.as_os_str(),
                )?),
                ..PreparedSandbox::default()
            },
        })
    }

    /// Returns the plan for a file operation.
    ///
    /// # Errors
    /// Fails if the policy is invalid.
    pub async fn plan_for_files(&self, sandbox: &SandboxPolicy) -> Result<CachedPlan, FileError> {
        let context = ResolveContext {
            purpose: PolicyPurpose::Files,
            // Not used: relative entries require a `cwd` in the policy.
            cwd: PathBuf::from("/"),
            tmpdir: None,
            always_readable: Vec::new(),
            protected: Arc::clone(&self.protected),
        };
        let refused = |error| FileError::Refused(format!("sandbox: {error}"));
        self.plan_for(sandbox, context).await.map_err(refused)
    }

    /// Prepares the sandbox set-up of an fs worker.
    ///
    /// # Errors
    /// Fails if the plan cannot be enforced here.
    pub async fn setup_for_worker(&self, plan: &SandboxPlan) -> Result<SandboxSetup, SandboxError> {
        let abilities = self.abilities().await;
        let enforcement_request = EnforcementRequest {
            plan,
            subject: SandboxSubject::FsWorker,
            mechanism: match self.settings.mechanism {
                // Bubblewrap cannot run fs workers.
                MechanismChoice::Bubblewrap => MechanismChoice::Cheapest,
                mechanism @ (MechanismChoice::Cheapest
                | MechanismChoice::Landlock
                | MechanismChoice::Namespaces) => mechanism,
            },
            processes: self.settings.processes,
            handoff: None,
            cache: &self.cache,
        };
        match select_enforcement(enforcement_request, &abilities)? {
            Enforcement::Kernel(setup) => Ok(setup),
            Enforcement::Unrestricted => Ok(SandboxSetup::default()),
            Enforcement::Bubblewrap(_) => Err(EnforcementError::Unenforceable(
                "bubblewrap cannot run fs workers".to_owned(),
            )
            .into()),
        }
    }

    /// Resolves a policy, or returns its cached plan. Resolution may access any file system, so it
    /// runs on the blocking pool. Validating a cached plan is fast and runs here. Policies with
    /// globs are never cached.
    async fn plan_for(
        &self,
        sandbox: &SandboxPolicy,
        context: ResolveContext,
    ) -> Result<CachedPlan, SandboxError> {
        let has_globs = has_globs(sandbox);
        if !has_globs && let Some(plan) = self.plan_cache.lookup(sandbox, &context, &HostFacts) {
            return Ok(plan);
        }
        let (sandbox, plan_cache) = (sandbox.clone(), self.plan_cache.clone());
        let resolved = tokio::task::spawn_blocking(move || {
            if has_globs {
                resolve(&sandbox, &context, &HostFacts).map(|plan| Arc::new(plan).into())
            } else {
                plan_cache.get_or_resolve(&sandbox, &context, &HostFacts, coarse_now())
            }
        });
        match resolved.await {
            Ok(plan) => Ok(plan?),
            Err(error) => Err(io::Error::other(error).into()),
        }
    }

    /// Returns whether commands can have a managed network.
    pub async fn can_manage_networks(&self) -> bool {
        let abilities = self.abilities().await;
        let namespaces = abilities.namespaces.works() || abilities.privileged_namespaces.works();
        let is_permitted = matches!(
            self.settings.mechanism,
            MechanismChoice::Cheapest | MechanismChoice::Namespaces
        );
        is_permitted && namespaces && abilities.seccomp.works()
    }
}

fn has_globs(sandbox: &SandboxPolicy) -> bool {
    match &sandbox.permissions {
        SandboxPermissions::Managed {
            file_system: FileSystemPolicy::Restricted { entries, .. },
            ..
        } => entries
            .iter()
            .any(|entry| matches!(entry.path, EntryPath::GlobPattern { .. })),
        SandboxPermissions::Managed { .. }
        | SandboxPermissions::Disabled
        | SandboxPermissions::External { .. } => false,
    }
}
