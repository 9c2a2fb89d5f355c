//! The door to everything here: from a policy of the wire to something that encloses.

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
use exec_spawn::enclosure::Enclosure;
use exec_wire::sandbox::{EntryPath, FileSystemPolicy, Permissions, Sandbox};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    abilities::{Abilities, Thoroughness, probe},
    bubblewrap::BubblewrapCommand,
    enforcement::{
        Enforcement, EnforcementCache, EnforcementError, EnforcementRequest, ListenerHandoff,
        Mechanism, Processes, SandboxSubject, select_enforcement,
    },
    facts::HostFacts,
    plan::SandboxPlan,
    plan_cache::{PlanCache, Planned, coarse_now},
    policy::{
        PolicyError, PolicyPurpose, ResolveContext, reads_everything, resolve, writes_everything,
    },
};

/// How long it is believed that something does not work. What works is believed for good.
const FAILED_PROBE_TTL: Duration = Duration::from_secs(30);

/// How sandboxes are made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Settings {
    /// Which mechanisms may be used.
    pub mechanism: Mechanism,
    /// Whether commands get a namespace of processes.
    pub processes: Processes,
}

/// Makes sandboxes. Clones share what was found out about the machine.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    spawner: Spawner,
    settings: Settings,
    protected: Arc<[PathBuf]>,
    probed: Arc<Mutex<Option<CachedProbe>>>,
    cache: Arc<EnforcementCache>,
    plan_cache: PlanCache,
}

#[derive(Clone, Debug)]
struct CachedProbe {
    abilities: Arc<Abilities>,
    until: Option<Instant>,
}

/// A command that is to be enclosed.
#[derive(Debug)]
pub struct CommandRequest<'a> {
    /// The policy.
    pub sandbox: &'a Sandbox,
    /// Its working directory.
    pub cwd: &'a Path,
    /// Its environment.
    pub env: &'a [(OsString, OsString)],
    /// The network it gets, if it is managed.
    pub managed: Option<ManagedRequest>,
}

/// A network from which only some ports lead out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ManagedRequest {
    /// The ports.
    pub ports: Vec<u16>,
    /// Unix sockets of the host stay within reach.
    pub unix: bool,
}

/// What encloses a command.
#[derive(Debug, Default)]
pub struct Prepared {
    /// What the kernel is told. Absent: nothing is restricted, or a wrapper does it.
    pub enclosure: Option<Enclosure>,
    /// A program that does it.
    pub wrapper: Option<BubblewrapCommand>,
    /// Where the listening sockets of a managed network come out, once the command runs.
    pub door: Option<OwnedFd>,
}

/// What an operation on files does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Need {
    /// It only reads.
    Read,
    /// It changes something.
    Change,
}

/// Why a command or an operation is not enclosed, and so does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// Caller: the policy says nothing that can be done.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Host: this machine does not do it.
    #[error(transparent)]
    EnforcementError(#[from] EnforcementError),
    /// Host: there are no descriptors, or no memory.
    #[error("cannot prepare it: {0}")]
    Host(#[from] io::Error),
}

impl Sandboxes {
    /// Begins with nothing known about the machine.
    pub fn new(spawner: Spawner, settings: Settings) -> Self {
        Self {
            spawner,
            settings,
            protected: Arc::default(),
            probed: Arc::default(),
            cache: Arc::default(),
            plan_cache: PlanCache::default(),
        }
    }

    /// Keeps some files and directories as they are, whatever a policy makes writable: nothing is
    /// created, removed or replaced directly in these directories.
    #[must_use]
    pub fn protecting(self, paths: Vec<PathBuf>) -> Self {
        let protected = paths.into();
        Self { protected, ..self }
    }

    /// Tells what this machine can enforce. The first call finds out.
    pub async fn abilities(&self) -> Arc<Abilities> {
        let mut probed = self.probed.lock().await;
        if let Some(known) = &*probed
            && known.until.is_none_or(|until| Instant::now() < until)
        {
            return Arc::clone(&known.abilities);
        }
        let thoroughness = match self.settings.mechanism {
            Mechanism::Bubblewrap => Thoroughness::All,
            Mechanism::Cheapest | Mechanism::Landlock | Mechanism::Namespaces => {
                Thoroughness::Enough
            }
        };
        let abilities = Arc::new(probe(&self.spawner, thoroughness).await);
        let sound = abilities.namespaces.works() && abilities.seccomp.works();
        *probed = Some(CachedProbe {
            abilities: Arc::clone(&abilities),
            until: (!sound).then(|| Instant::now() + FAILED_PROBE_TTL),
        });
        abilities
    }

    /// Prepares what encloses a command.
    ///
    /// # Errors
    /// Fails if the policy is broken or cannot be enforced here. Nothing is weakened.
    pub async fn prepare(&self, request: CommandRequest<'_>) -> Result<Prepared, SandboxError> {
        let tmpdir = request.env.iter().find(|(name, _)| name == "TMPDIR");
        let context = ResolveContext {
            purpose: PolicyPurpose::Process,
            cwd: request.cwd.to_owned(),
            tmpdir: tmpdir.map(|(_, value)| value.clone()),
            always_readable: Vec::new(),
            protected: Arc::clone(&self.protected),
        };
        let planned = self.planned(request.sandbox, context).await?;
        let abilities = self.abilities().await;
        let (handoff, door) = match request.managed {
            Some(ManagedRequest { ports, unix }) => {
                let (ours, theirs) = socketpair(
                    AddressFamily::UNIX,
                    SocketType::SEQPACKET,
                    SocketFlags::CLOEXEC,
                    None,
                )
                .map_err(io::Error::from)?;
                let handoff = ListenerHandoff {
                    ports,
                    socket: theirs,
                    unix,
                };
                (Some(handoff), Some(ours))
            }
            None => (None, None),
        };
        let order = EnforcementRequest {
            plan: planned.plan(),
            subject: SandboxSubject::Command,
            mechanism: self.settings.mechanism,
            processes: self.settings.processes,
            handoff,
            cache: &self.cache,
        };
        Ok(match select_enforcement(order, &abilities)? {
            Enforcement::Unrestricted => Prepared::default(),
            Enforcement::Kernel(enclosure) => Prepared {
                enclosure: Some(enclosure),
                wrapper: None,
                door,
            },
            Enforcement::Bubblewrap(order) => Prepared {
                wrapper: Some(BubblewrapCommand::new(
                    *order,
                    request.env,
                    request.cwd.as_os_str(),
                )?),
                ..Prepared::default()
            },
        })
    }

    /// Tells what an operation on files may use. `None`: nothing restricts it.
    ///
    /// # Errors
    /// Fails if the policy is broken.
    pub async fn plan_for_files(
        &self,
        sandbox: &Sandbox,
        need: Need,
    ) -> Result<Option<Planned>, FileError> {
        let refused = |error: SandboxError| FileError::Refused(format!("sandbox: {error}"));
        let free = match need {
            Need::Read => reads_everything(sandbox),
            Need::Change => writes_everything(sandbox),
        };
        if free {
            return Ok(None);
        }
        let context = ResolveContext {
            purpose: PolicyPurpose::Files,
            // Nothing that is resolved for files relates to it.
            cwd: PathBuf::from("/"),
            tmpdir: None,
            always_readable: Vec::new(),
            protected: Arc::clone(&self.protected),
        };
        let planned = self.planned(sandbox, context).await.map_err(refused)?;
        Ok(Some(planned))
    }

    /// Makes what encloses a helper for files.
    ///
    /// # Errors
    /// Fails if the plan cannot be enforced here.
    pub async fn enclosure_for_worker(
        &self,
        plan: &SandboxPlan,
    ) -> Result<Enclosure, SandboxError> {
        let abilities = self.abilities().await;
        let order = EnforcementRequest {
            plan,
            subject: SandboxSubject::FsWorker,
            mechanism: match self.settings.mechanism {
                // Which starts no helpers.
                Mechanism::Bubblewrap => Mechanism::Cheapest,
                mechanism @ (Mechanism::Cheapest | Mechanism::Landlock | Mechanism::Namespaces) => {
                    mechanism
                }
            },
            processes: self.settings.processes,
            handoff: None,
            cache: &self.cache,
        };
        match select_enforcement(order, &abilities)? {
            Enforcement::Kernel(enclosure) => Ok(enclosure),
            Enforcement::Unrestricted => Ok(Enclosure::default()),
            Enforcement::Bubblewrap(_) => Err(EnforcementError::Unenforceable(
                "bubblewrap starts no helpers for files".to_owned(),
            )
            .into()),
        }
    }

    /// Resolves a policy, or remembers what it came to. Resolving looks at paths that may be anywhere, on
    /// a thread that may block; what is remembered is checked at once. Globs are not remembered.
    async fn planned(
        &self,
        sandbox: &Sandbox,
        context: ResolveContext,
    ) -> Result<Planned, SandboxError> {
        let globs = has_globs(sandbox);
        if !globs && let Some(planned) = self.plan_cache.lookup(sandbox, &context, &HostFacts) {
            return Ok(planned);
        }
        let (sandbox, plan_cache) = (sandbox.clone(), self.plan_cache.clone());
        let resolved = tokio::task::spawn_blocking(move || {
            if globs {
                resolve(&sandbox, &context, &HostFacts).map(|plan| Arc::new(plan).into())
            } else {
                plan_cache.get_or_resolve(&sandbox, &context, &HostFacts, coarse_now())
            }
        });
        match resolved.await {
            Ok(planned) => Ok(planned?),
            Err(error) => Err(io::Error::other(error).into()),
        }
    }

    /// Tells whether commands can have a network of their own, with ports that lead out.
    pub async fn can_manage_networks(&self) -> bool {
        let abilities = self.abilities().await;
        let namespaces = abilities.namespaces.works() || abilities.privileged_namespaces.works();
        let may = matches!(
            self.settings.mechanism,
            Mechanism::Cheapest | Mechanism::Namespaces
        );
        may && namespaces && abilities.seccomp.works()
    }
}

fn has_globs(sandbox: &Sandbox) -> bool {
    match &sandbox.permissions {
        Permissions::Managed {
            file_system: FileSystemPolicy::Restricted { entries, .. },
            ..
        } => entries
            .iter()
            .any(|entry| matches!(entry.path, EntryPath::GlobPattern { .. })),
        Permissions::Managed { .. } | Permissions::Disabled | Permissions::External { .. } => false,
    }
}
