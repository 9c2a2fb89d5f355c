//! Selects the cheapest mechanism that can enforce all of a plan, and prepares it.
//!
//! 1. Landlock and a seccomp filter, for plans that only grant access.
//! 2. Namespaces with their own mounts, for every other plan.
//! 3. Bubblewrap, where the server cannot create namespaces.
//!
//! A plan that no available mechanism can enforce is refused.
//!
//! Filters and rulesets that are the same for many commands are cached. A ruleset that names files
//! of a policy is not: Landlock rules refer to inodes, and a path may name another inode when the
//! next command starts.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use exec_spawn::sandbox_setup::{
    FilterInstruction, NameGuard, NamespaceSetup, NetworkNamespace, SandboxSetup,
};

use crate::{
    abilities::HostAbilities,
    landlock_domain::{self, AbstractSocketScope, LandlockError},
    mount_steps::{MountStepsError, PseudoFs, mount_steps},
    plan::{
        FileAccess, FileView, NetworkScope, PathAccess, PathKind, SandboxPlan, ViewLayer,
        missing_feature::{MissingFeature, missing_landlock_features},
    },
    syscall_filter::{FilterSpec, SocketAccess, build_filter},
};

/// Process that runs in the sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SandboxSubject {
    /// A command of the client.
    Command,
    /// A worker of this server for file operations, which runs no other program.
    FsWorker,
}

/// Mechanisms that may be used.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum MechanismChoice {
    /// The cheapest mechanism that can enforce the plan.
    #[default]
    Cheapest,
    /// Only Landlock.
    Landlock,
    /// Only namespaces.
    Namespaces,
    /// Only bubblewrap.
    Bubblewrap,
}

/// Whether commands get their own PID namespace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ProcessIsolation {
    /// Commands get one where that works.
    #[default]
    Isolated,
    /// Commands see the processes of the host.
    Inherited,
}

/// Own network of a command, with listening sockets that are handed to the server.
#[derive(Debug)]
pub(crate) struct ListenerHandoff {
    /// Loopback ports to listen on inside the network namespace.
    pub(crate) ports: Vec<u16>,
    /// Socket through which the listening sockets are passed to the server. Absent without ports.
    pub(crate) socket: Option<OwnedFd>,
    /// Unix sockets of the host stay reachable.
    pub(crate) unix: bool,
}

/// What to sandbox, and how.
#[derive(Debug)]
pub(crate) struct EnforcementRequest<'a> {
    pub(crate) plan: &'a SandboxPlan,
    pub(crate) subject: SandboxSubject,
    pub(crate) mechanism: MechanismChoice,
    pub(crate) processes: ProcessIsolation,
    pub(crate) handoff: Option<ListenerHandoff>,
    /// Filters and rulesets shared with other commands.
    pub(crate) cache: &'a EnforcementCache,
}

/// How a plan is enforced.
#[derive(Debug)]
pub(crate) enum Enforcement {
    /// The plan restricts nothing.
    Unrestricted,
    /// The server applies this set-up itself.
    Kernel(SandboxSetup),
    /// Bubblewrap applies this view and filter.
    Bubblewrap(Box<BubblewrapSpec>),
}

/// Everything that bubblewrap needs to build the sandbox.
#[derive(Debug)]
pub(crate) struct BubblewrapSpec {
    pub(crate) program: PathBuf,
    pub(crate) view: FileView,
    pub(crate) network: NetworkScope,
    pub(crate) filter: Vec<FilterInstruction>,
    pub(crate) processes: ProcessIsolation,
}

/// Why a policy cannot be enforced. Nothing runs in any of these cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnforcementError {
    /// Host: no available mechanism can enforce the policy.
    #[error(
        "this host cannot enforce the policy: {0}; run `exec-server doctor` to see what would help"
    )]
    Unenforceable(String),
    /// Host: a working mechanism failed.
    #[error("{0}")]
    Domain(#[from] LandlockError),
    /// Caller: the policy is too large.
    #[error("{0}")]
    View(String),
}

impl From<MountStepsError> for EnforcementError {
    fn from(error: MountStepsError) -> Self {
        Self::View(error.to_string())
    }
}

/// Selects the mechanism and prepares it.
pub(crate) fn select_enforcement(
    request: EnforcementRequest<'_>,
    abilities: &HostAbilities,
) -> Result<Enforcement, EnforcementError> {
    let plan = request.plan;
    if plan.network == NetworkScope::Host
        && plan.files == FileAccess::All
        && request.handoff.is_none()
    {
        return Ok(Enforcement::Unrestricted);
    }
    if !abilities.seccomp.works() {
        let reason = abilities.seccomp.reason().unwrap_or("not tried");
        return Err(EnforcementError::Unenforceable(format!(
            "no seccomp filters: {reason}"
        )));
    }
    let view = match (&plan.files, &request.handoff) {
        (FileAccess::All, None) => return enforce_with_seccomp(request.cache, abilities),
        (FileAccess::All, Some(_)) => unrestricted_view(),
        (FileAccess::View(view), _) => view.clone(),
    };
    let has_namespaces = abilities.namespaces.works() || abilities.privileged_namespaces.works();
    let missing = missing_landlock_features(plan, abilities.landlock);
    let landlock_suffices = match request.mechanism {
        // The filter alone denies the network as well; a network namespace is a second barrier.
        MechanismChoice::Landlock => missing
            .iter()
            .all(|feature| *feature == MissingFeature::NoNetwork),
        MechanismChoice::Cheapest if !has_namespaces => missing
            .iter()
            .all(|feature| *feature == MissingFeature::NoNetwork),
        MechanismChoice::Cheapest => missing.is_empty(),
        MechanismChoice::Namespaces | MechanismChoice::Bubblewrap => false,
    };
    if landlock_suffices && request.handoff.is_none() {
        return enforce_with_landlock(request.cache, &view, plan.network).map(Enforcement::Kernel);
    }
    let mut reasons = Vec::new();
    match request.mechanism {
        MechanismChoice::Cheapest | MechanismChoice::Namespaces if has_namespaces => {
            return enforce_with_namespaces(request, &view, abilities).map(Enforcement::Kernel);
        }
        MechanismChoice::Cheapest | MechanismChoice::Namespaces => {
            let reason = abilities.namespaces.reason().unwrap_or("not tried");
            reasons.push(format!("no namespaces ({reason})"));
        }
        MechanismChoice::Landlock | MechanismChoice::Bubblewrap => {}
    }
    if matches!(
        request.mechanism,
        MechanismChoice::Cheapest | MechanismChoice::Landlock
    ) {
        let missing: Vec<&str> = missing.iter().map(|feature| feature.reason()).collect();
        reasons.push(format!(
            "Landlock does not suffice ({})",
            missing.join("; ")
        ));
    }
    if matches!(
        request.mechanism,
        MechanismChoice::Cheapest | MechanismChoice::Bubblewrap
    ) {
        match enforce_with_bubblewrap(&request, view, abilities) {
            Ok(enforcement) => return Ok(enforcement),
            Err(reason) => reasons.push(format!("bubblewrap does not suffice ({reason})")),
        }
    }
    Err(EnforcementError::Unenforceable(reasons.join(", ")))
}

/// Enforces a plan that restricts only the network, with a seccomp filter.
fn enforce_with_seccomp(
    cache: &EnforcementCache,
    abilities: &HostAbilities,
) -> Result<Enforcement, EnforcementError> {
    // Without Landlock the command could use the memory of other processes of the account, which
    // have network access.
    let landlock = match abilities.landlock {
        landlock_domain::MIN_ABI_SCOPES.. => {
            cache.domain(DomainKind::ScopedOnly, AbstractSocketScope::Isolated)?
        }
        landlock_domain::MIN_ABI_REFER.. => landlock_domain::deny_tracing()?,
        0..landlock_domain::MIN_ABI_REFER => {
            return Err(EnforcementError::Unenforceable(format!(
                "denying the network requires Landlock ABI {}, to protect other processes of the \
                 account that have network access",
                landlock_domain::MIN_ABI_REFER
            )));
        }
    };
    let landlock = Some(landlock);
    Ok(Enforcement::Kernel(SandboxSetup {
        landlock,
        filter: cache.filter(FilterSpec {
            sockets: SocketAccess::Pairs,
            shares_host_files: false,
            shares_host_processes: true,
            brokered: false,
        }),
        ..SandboxSetup::default()
    }))
}

fn enforce_with_landlock(
    cache: &EnforcementCache,
    view: &FileView,
    network: NetworkScope,
) -> Result<SandboxSetup, EnforcementError> {
    let writable = view
        .layers
        .iter()
        .filter(|layer| layer.access == PathAccess::Write);
    let files: Vec<&Path> = writable.map(|layer| layer.path.as_path()).collect();
    let (sockets, socket_scope) = match network {
        NetworkScope::Host => (SocketAccess::Host, AbstractSocketScope::Shared),
        NetworkScope::None => (SocketAccess::Pairs, AbstractSocketScope::Isolated),
    };
    let domain = if files.is_empty() {
        cache.domain(DomainKind::ReadOnly, socket_scope)?
    } else {
        landlock_domain::read_only_except(&files, socket_scope)?
    };
    Ok(SandboxSetup {
        landlock: Some(domain),
        filter: cache.filter(FilterSpec {
            sockets,
            shares_host_files: true,
            shares_host_processes: true,
            brokered: false,
        }),
        ..SandboxSetup::default()
    })
}

fn enforce_with_namespaces(
    request: EnforcementRequest<'_>,
    view: &FileView,
    abilities: &HostAbilities,
) -> Result<SandboxSetup, EnforcementError> {
    let cache = request.cache;
    let isolated = request.processes == ProcessIsolation::Isolated && abilities.processes.works();
    let processes = request.subject == SandboxSubject::Command && isolated;
    let pseudo_fs = PseudoFs {
        // A plan that allows all files allows all devices.
        devices: request.subject == SandboxSubject::Command
            && request.plan.files != FileAccess::All,
        processes,
        account: abilities.host.account,
    };
    if !processes
        && request.subject == SandboxSubject::Command
        && abilities.landlock < landlock_domain::MIN_ABI_SCOPES
    {
        let reason = abilities.processes.reason().unwrap_or("set to inherit");
        return Err(EnforcementError::Unenforceable(format!(
            "denying signals to other processes requires a PID namespace ({reason}) or Landlock ABI {}",
            landlock_domain::MIN_ABI_SCOPES
        )));
    }
    let guards = broker_guards(view)?;
    if !guards.is_empty()
        && let Some(reason) = abilities.guards.reason()
    {
        let NameGuard { directory, .. } = &guards[0];
        return Err(EnforcementError::Unenforceable(format!(
            "names that must not be created in {directory:?}: {reason}"
        )));
    }
    let socket_scope = match (request.plan.network, &request.handoff) {
        (NetworkScope::Host, None) => AbstractSocketScope::Shared,
        (NetworkScope::None, _) | (_, Some(_)) => AbstractSocketScope::Isolated,
    };
    let landlock = match (guards.is_empty(), abilities.landlock) {
        (false, abi) => Some(cache.domain(DomainKind::NoCreation { abi }, socket_scope)?),
        (true, landlock_domain::MIN_ABI_SCOPES..) => {
            Some(cache.domain(DomainKind::ScopedOnly, socket_scope)?)
        }
        (true, _) => None,
    };
    let sockets = match (&request.handoff, request.plan.network) {
        (Some(handoff), _) => SocketAccess::Internet { unix: handoff.unix },
        (None, NetworkScope::Host) => SocketAccess::Host,
        (None, NetworkScope::None) => SocketAccess::Pairs,
    };
    let network = match (request.handoff, request.plan.network) {
        (Some(handoff), _) => Some(NetworkNamespace {
            listen: handoff.ports,
            listener_socket: handoff.socket,
        }),
        (None, NetworkScope::None) => Some(NetworkNamespace::default()),
        (None, NetworkScope::Host) => None,
    };
    Ok(SandboxSetup {
        namespaces: Some(NamespaceSetup {
            user: abilities.namespaces.works(),
            processes,
            network,
            steps: mount_steps(view, pseudo_fs)?,
        }),
        landlock,
        filter: cache.filter(FilterSpec {
            sockets,
            shares_host_files: false,
            shares_host_processes: !processes,
            brokered: !guards.is_empty(),
        }),
        guards,
    })
}

fn enforce_with_bubblewrap(
    request: &EnforcementRequest<'_>,
    view: FileView,
    abilities: &HostAbilities,
) -> Result<Enforcement, String> {
    let program = match (&abilities.bubblewrap, &abilities.bubblewrap_path) {
        (ability, Some(program)) if ability.works() => program.clone(),
        (ability, _) => return Err(ability.reason().unwrap_or("not tried").to_owned()),
    };
    if request.subject == SandboxSubject::FsWorker {
        return Err("it cannot run fs workers".to_owned());
    }
    if request.processes == ProcessIsolation::Inherited {
        return Err("without a PID namespace it lets commands signal other processes".to_owned());
    }
    if request.handoff.is_some() {
        return Err("it denies every socket, also on a private loopback".to_owned());
    }
    if let Some(forbidden) = view.forbidden.first() {
        let path = forbidden.directory.join(&forbidden.name);
        return Err(format!(
            "it would have to create `{}` to protect it",
            path.display()
        ));
    }
    let network = request.plan.network;
    let sockets = match network {
        NetworkScope::Host => SocketAccess::Host,
        NetworkScope::None => SocketAccess::Pairs,
    };
    Ok(Enforcement::Bubblewrap(Box::new(BubblewrapSpec {
        program,
        view,
        network,
        filter: request.cache.filter(FilterSpec {
            sockets,
            shares_host_files: false,
            shares_host_processes: false,
            brokered: false,
        }),
        processes: request.processes,
    })))
}

/// Returns a view that restricts no file.
fn unrestricted_view() -> FileView {
    FileView {
        base: PathAccess::Read,
        layers: vec![ViewLayer {
            path: PathBuf::from("/"),
            kind: PathKind::Directory,
            access: PathAccess::Write,
        }],
        forbidden: Vec::new(),
        links: Vec::new(),
    }
}

/// Groups the names that must not be created by directory.
fn broker_guards(view: &FileView) -> Result<Vec<NameGuard>, EnforcementError> {
    let mut guards: Vec<NameGuard> = Vec::new();
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| MountStepsError::Nul);
    if view.forbidden.len() > MAX_GUARDED_NAMES {
        return Err(EnforcementError::View(format!(
            "the policy protects more than {MAX_GUARDED_NAMES} names that do not exist"
        )));
    }
    for forbidden in &view.forbidden {
        let directory = text(forbidden.directory.as_os_str())?;
        let name = text(&forbidden.name)?;
        match guards.iter_mut().find(|guard| guard.directory == directory) {
            Some(guard) => guard.names.push(name),
            None => guards.push(NameGuard {
                directory,
                names: vec![name],
            }),
        }
    }
    if guards.len() > MAX_GUARDS {
        return Err(EnforcementError::View(format!(
            "the policy protects names that do not exist in more than {MAX_GUARDS} directories"
        )));
    }
    Ok(guards)
}

/// Capacity of the broker.
const MAX_GUARDS: usize = 64;
const MAX_GUARDED_NAMES: usize = 256;

/// Filters and rulesets by their parameters: about a dozen filters and six rulesets at most.
#[derive(Debug, Default)]
pub(crate) struct EnforcementCache {
    filters: Mutex<BTreeMap<FilterSpec, Vec<FilterInstruction>>>,
    domains: Mutex<BTreeMap<(DomainKind, AbstractSocketScope), OwnedFd>>,
}

/// Landlock domain that names no file of a policy.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum DomainKind {
    /// Only a few devices can be written.
    ReadOnly,
    /// Nothing can be created.
    NoCreation {
        /// Landlock ABI version.
        abi: u32,
    },
    /// No file is restricted.
    ScopedOnly,
}

impl EnforcementCache {
    /// Returns the BPF program of a filter.
    pub(crate) fn filter(&self, key: FilterSpec) -> Vec<FilterInstruction> {
        let mut filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        filters
            .entry(key)
            .or_insert_with(|| build_filter(key))
            .clone()
    }

    /// Returns a descriptor of the ruleset.
    pub(crate) fn domain(
        &self,
        key: DomainKind,
        socket_scope: AbstractSocketScope,
    ) -> Result<OwnedFd, LandlockError> {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = domains.get(&(key, socket_scope)) {
            return fd.try_clone().map_err(LandlockError::Copy);
        }
        let fd = match key {
            DomainKind::ReadOnly => landlock_domain::read_only_except(&[], socket_scope),
            DomainKind::NoCreation { abi } => landlock_domain::deny_creation(abi, socket_scope),
            DomainKind::ScopedOnly => landlock_domain::scoped_only(socket_scope),
        }?;
        let copy = fd.try_clone().map_err(LandlockError::Copy)?;
        domains.insert((key, socket_scope), fd);
        Ok(copy)
    }
}
