//! A plan becomes an enclosure, by the cheapest mechanism that expresses it whole.
//!
//! 1. Landlock and a filter, for plans that only allow.
//! 2. Namespaces and a view, for everything else.
//! 3. Bubblewrap, where namespaces are not ours to make.
//!
//! What none of them expresses here is refused.
//!
//! Filters and rulesets that are the same for many commands, made once.
//!
//! Only what names no file of a policy is kept: a ruleset names files by what they are, and those of
//! a policy may be others with the next command.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use exec_spawn::enclosure::{Enclosure, Guard, Instruction, Namespaces, NetworkNamespace};

use crate::{
    abilities::Abilities,
    landlock_domain::{self, Apart, DomainError},
    mount_steps::{Fittings, ViewError, steps},
    plan::{
        Access, Files, Kind, Layer, Network, Plan, View,
        missing_feature::{Lack, landlock_lacks},
    },
    syscall_filter::{Filter, Sockets, filter},
};

/// Who is enclosed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Who {
    /// A command.
    Command,
    /// A helper of ours, which runs nothing else.
    Helper,
}

/// Which mechanisms may be used.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mechanism {
    /// The cheapest that does it.
    #[default]
    Cheapest,
    /// Landlock only.
    Landlock,
    /// Namespaces only.
    Namespaces,
    /// Bubblewrap only.
    Bubblewrap,
}

/// Whether commands get a namespace of processes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Processes {
    /// They do, where that works.
    #[default]
    Isolated,
    /// They see the host's.
    Inherited,
}

/// A network of a command's own, from which some ports lead out.
#[derive(Debug)]
pub(crate) struct Managed {
    /// Ports of its loopback that are listened on for it.
    pub(crate) ports: Vec<u16>,
    /// Where the listening sockets are handed out.
    pub(crate) door: OwnedFd,
    /// Unix sockets of the host stay within reach.
    pub(crate) unix: bool,
}

/// What to enclose, and how.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) who: Who,
    pub(crate) mechanism: Mechanism,
    pub(crate) processes: Processes,
    pub(crate) managed: Option<Managed>,
    /// What was made before, for others.
    pub(crate) kept: &'a Kept,
}

/// What encloses a command.
#[derive(Debug)]
pub(crate) enum Rung {
    /// Nothing: the plan restricts nothing.
    Free,
    /// The kernel, by our own hand.
    Enclosed(Enclosure),
    /// Bubblewrap, which is given this view and filter.
    Bubblewrap(Box<BubblewrapOrder>),
}

/// What bubblewrap is told.
#[derive(Debug)]
pub(crate) struct BubblewrapOrder {
    pub(crate) program: PathBuf,
    pub(crate) view: View,
    pub(crate) network: Network,
    pub(crate) filter: Vec<exec_spawn::enclosure::Instruction>,
    pub(crate) processes: Processes,
}

/// Why a policy is not enforced, and so nothing runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Host: no mechanism of this machine expresses the policy.
    #[error(
        "this machine cannot enforce the policy: {0}; `exec-server doctor` says what would help"
    )]
    Unenforceable(String),
    /// Host: a mechanism that works failed all the same.
    #[error("{0}")]
    Domain(#[from] DomainError),
    /// Caller: the policy is too large.
    #[error("{0}")]
    View(String),
}

impl From<ViewError> for Refusal {
    fn from(error: ViewError) -> Self {
        Self::View(error.to_string())
    }
}

/// Finds the mechanism and prepares it.
pub(crate) fn enclose(order: Order<'_>, can: &Abilities) -> Result<Rung, Refusal> {
    let plan = order.plan;
    if plan.network == Network::Host && plan.files == Files::All && order.managed.is_none() {
        return Ok(Rung::Free);
    }
    if !can.seccomp.works() {
        let reason = can.seccomp.reason().unwrap_or("not tried");
        return Err(Refusal::Unenforceable(format!(
            "no seccomp filters: {reason}"
        )));
    }
    let view = match (&plan.files, &order.managed) {
        (Files::All, None) => return seccomp_alone(order.kept, can),
        (Files::All, Some(_)) => whole(),
        (Files::View(view), _) => view.clone(),
    };
    let has_namespaces = can.namespaces.works() || can.privileged_namespaces.works();
    let lacks = landlock_lacks(plan, can.landlock);
    let enough = match order.mechanism {
        // The filter alone keeps a command from the network, too; a namespace does it twice.
        Mechanism::Landlock => lacks.iter().all(|lack| *lack == Lack::NoNetwork),
        Mechanism::Cheapest if !has_namespaces => lacks.iter().all(|lack| *lack == Lack::NoNetwork),
        Mechanism::Cheapest => lacks.is_empty(),
        Mechanism::Namespaces | Mechanism::Bubblewrap => false,
    };
    if enough && order.managed.is_none() {
        return landlock_alone(order.kept, &view, plan.network).map(Rung::Enclosed);
    }
    let mut reasons = Vec::new();
    match order.mechanism {
        Mechanism::Cheapest | Mechanism::Namespaces if has_namespaces => {
            return namespaces(order, &view, can).map(Rung::Enclosed);
        }
        Mechanism::Cheapest | Mechanism::Namespaces => {
            let reason = can.namespaces.reason().unwrap_or("not tried");
            reasons.push(format!("no namespaces ({reason})"));
        }
        Mechanism::Landlock | Mechanism::Bubblewrap => {}
    }
    if matches!(order.mechanism, Mechanism::Cheapest | Mechanism::Landlock) {
        let lacks: Vec<&str> = lacks.iter().map(|lack| lack.reason()).collect();
        reasons.push(format!("Landlock does not do ({})", lacks.join("; ")));
    }
    if matches!(order.mechanism, Mechanism::Cheapest | Mechanism::Bubblewrap) {
        match bubblewrap(&order, view, can) {
            Ok(rung) => return Ok(rung),
            Err(reason) => reasons.push(format!("bubblewrap does not do ({reason})")),
        }
    }
    Err(Refusal::Unenforceable(reasons.join(", ")))
}

/// Every file as it is, and no network: only a filter.
fn seccomp_alone(kept: &Kept, can: &Abilities) -> Result<Rung, Refusal> {
    // Without it the memory of other processes of the account, which have a network, is open.
    let landlock = match can.landlock {
        landlock_domain::SCOPES.. => kept.domain(Domain::Apart, Apart::Yes)?,
        landlock_domain::REFER.. => landlock_domain::untraced()?,
        0..landlock_domain::REFER => {
            return Err(Refusal::Unenforceable(format!(
                "no network: other processes of the account have one, and Landlock {} is needed to keep \
                 away from them",
                landlock_domain::REFER
            )));
        }
    };
    let landlock = Some(landlock);
    Ok(Rung::Enclosed(Enclosure {
        landlock,
        filter: kept.filter(Filter {
            sockets: Sockets::Pairs,
            on_the_host: false,
            among_others: true,
            brokered: false,
        }),
        ..Enclosure::default()
    }))
}

fn landlock_alone(kept: &Kept, view: &View, network: Network) -> Result<Enclosure, Refusal> {
    let writable = view
        .layers
        .iter()
        .filter(|layer| layer.access == Access::Write);
    let files: Vec<&Path> = writable.map(|layer| layer.path.as_path()).collect();
    let (sockets, apart) = match network {
        Network::Host => (Sockets::Host, Apart::No),
        Network::None => (Sockets::Pairs, Apart::Yes),
    };
    let domain = if files.is_empty() {
        kept.domain(Domain::ReadOnly, apart)?
    } else {
        landlock_domain::read_only_but(&files, apart)?
    };
    Ok(Enclosure {
        landlock: Some(domain),
        filter: kept.filter(Filter {
            sockets,
            on_the_host: true,
            among_others: true,
            brokered: false,
        }),
        ..Enclosure::default()
    })
}

fn namespaces(order: Order<'_>, view: &View, can: &Abilities) -> Result<Enclosure, Refusal> {
    let kept = order.kept;
    let isolated = order.processes == Processes::Isolated && can.processes.works();
    let processes = order.who == Who::Command && isolated;
    let fittings = Fittings {
        // Where every file may be used, so may every device.
        devices: order.who == Who::Command && order.plan.files != Files::All,
        processes,
        account: can.host.account,
    };
    if !processes && order.who == Who::Command && can.landlock < landlock_domain::SCOPES {
        let reason = can.processes.reason().unwrap_or("set to inherit");
        return Err(Refusal::Unenforceable(format!(
            "signals to other processes: no namespace of processes ({reason}), and Landlock {} is needed",
            landlock_domain::SCOPES
        )));
    }
    let guards = guards(view)?;
    if !guards.is_empty()
        && let Some(reason) = can.guards.reason()
    {
        let Guard { directory, .. } = &guards[0];
        return Err(Refusal::Unenforceable(format!(
            "names that must not be created in {directory:?}: {reason}"
        )));
    }
    let apart = match (order.plan.network, &order.managed) {
        (Network::Host, None) => Apart::No,
        (Network::None, _) | (_, Some(_)) => Apart::Yes,
    };
    let landlock = match (guards.is_empty(), can.landlock) {
        (false, abi) => Some(kept.domain(Domain::NothingNew { abi }, apart)?),
        (true, landlock_domain::SCOPES..) => Some(kept.domain(Domain::Apart, apart)?),
        (true, _) => None,
    };
    let sockets = match (&order.managed, order.plan.network) {
        (Some(managed), _) => Sockets::Internet { unix: managed.unix },
        (None, Network::Host) => Sockets::Host,
        (None, Network::None) => Sockets::Pairs,
    };
    let network = match (order.managed, order.plan.network) {
        (Some(managed), _) => Some(NetworkNamespace {
            listen: managed.ports,
            door: Some(managed.door),
        }),
        (None, Network::None) => Some(NetworkNamespace::default()),
        (None, Network::Host) => None,
    };
    Ok(Enclosure {
        namespaces: Some(Namespaces {
            user: can.namespaces.works(),
            processes,
            network,
            steps: steps(view, fittings)?,
        }),
        landlock,
        filter: kept.filter(Filter {
            sockets,
            on_the_host: false,
            among_others: !processes,
            brokered: !guards.is_empty(),
        }),
        guards,
    })
}

fn bubblewrap(order: &Order<'_>, view: View, can: &Abilities) -> Result<Rung, String> {
    let program = match (&can.bubblewrap, &can.bubblewrap_path) {
        (ability, Some(program)) if ability.works() => program.clone(),
        (ability, _) => return Err(ability.reason().unwrap_or("not tried").to_owned()),
    };
    if order.who == Who::Helper {
        return Err("it starts no helpers for files".to_owned());
    }
    if order.processes == Processes::Inherited {
        return Err("without a namespace of processes it lets commands signal others".to_owned());
    }
    if order.managed.is_some() {
        return Err("it hands out no listening sockets".to_owned());
    }
    if let Some(forbidden) = view.forbidden.first() {
        let path = forbidden.directory.join(&forbidden.name);
        return Err(format!(
            "it would have to create `{}` to protect it",
            path.display()
        ));
    }
    let network = order.plan.network;
    let sockets = match network {
        Network::Host => Sockets::Host,
        Network::None => Sockets::Pairs,
    };
    Ok(Rung::Bubblewrap(Box::new(BubblewrapOrder {
        program,
        view,
        network,
        filter: order.kept.filter(Filter {
            sockets,
            on_the_host: false,
            among_others: false,
            brokered: false,
        }),
        processes: order.processes,
    })))
}

/// A view in which everything is as it is.
fn whole() -> View {
    View {
        base: Access::Read,
        layers: vec![Layer {
            path: PathBuf::from("/"),
            kind: Kind::Directory,
            access: Access::Write,
        }],
        forbidden: Vec::new(),
        links: Vec::new(),
    }
}

/// Names that must not come to be, by directory.
fn guards(view: &View) -> Result<Vec<Guard>, Refusal> {
    let mut guards: Vec<Guard> = Vec::new();
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| ViewError::Nul);
    if view.forbidden.len() > MAX_GUARDED_NAMES {
        return Err(Refusal::View(format!(
            "the policy protects more than {MAX_GUARDED_NAMES} names that do not exist"
        )));
    }
    for forbidden in &view.forbidden {
        let directory = text(forbidden.directory.as_os_str())?;
        let name = text(&forbidden.name)?;
        match guards.iter_mut().find(|guard| guard.directory == directory) {
            Some(guard) => guard.names.push(name),
            None => guards.push(Guard {
                directory,
                names: vec![name],
            }),
        }
    }
    if guards.len() > MAX_GUARDS {
        return Err(Refusal::View(format!(
            "the policy protects names that do not exist in more than {MAX_GUARDS} directories"
        )));
    }
    Ok(guards)
}

/// What a broker has places for.
const MAX_GUARDS: usize = 64;
const MAX_GUARDED_NAMES: usize = 256;

/// What is kept. There are a dozen filters and six rulesets at most.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    filters: Mutex<BTreeMap<Filter, Vec<Instruction>>>,
    domains: Mutex<BTreeMap<(Domain, Apart), OwnedFd>>,
}

/// A domain that names no file of a policy.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Domain {
    /// Nothing can be written but a few devices.
    ReadOnly,
    /// Nothing can be made.
    NothingNew {
        /// Version of Landlock's interface.
        abi: u32,
    },
    /// No file is restricted.
    Apart,
}

impl Kept {
    /// Returns the program of a filter.
    pub(crate) fn filter(&self, wanted: Filter) -> Vec<Instruction> {
        let mut filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        filters
            .entry(wanted)
            .or_insert_with(|| filter(wanted))
            .clone()
    }

    /// Returns a ruleset.
    pub(crate) fn domain(&self, wanted: Domain, apart: Apart) -> Result<OwnedFd, DomainError> {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = domains.get(&(wanted, apart)) {
            return made.try_clone().map_err(DomainError::Copy);
        }
        let made = match wanted {
            Domain::ReadOnly => landlock_domain::read_only_but(&[], apart),
            Domain::NothingNew { abi } => landlock_domain::nothing_new(abi, apart),
            Domain::Apart => landlock_domain::apart(apart),
        }?;
        let copy = made.try_clone().map_err(DomainError::Copy)?;
        domains.insert((wanted, apart), made);
        Ok(copy)
    }
}
