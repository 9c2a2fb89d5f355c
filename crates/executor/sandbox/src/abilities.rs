//! What this machine can enforce, found by trying.
//!
//! Tries what the ladder is made of. Nothing is believed that was not tried.

mod host_info;
mod policy_support;

pub use self::{
    host_info::{Cgroups, Host},
    policy_support::{Outlook, outlook},
};

use std::{ffi::CString, io, path::PathBuf, time::Duration};

use exec_process::spawner::{SpawnError, Spawner, Spec, Stage};
use exec_spawn::enclosure::{Enclosure, Guard, Namespaces, NetworkNamespace};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use crate::{
    bubblewrap, landlock_domain,
    mount_steps::{Fittings, steps},
    plan::{Access, View},
    syscall_filter::{Filter, Sockets, filter},
};

/// How long one try may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long all of them may take.
const PATIENCE_IN_ALL: Duration = Duration::from_secs(15);
/// A program that is nowhere: whoever fails to find it has been enclosed first.
const NOWHERE: &str = "/proc/self/there-is-no-such-program";

/// What this machine can enforce.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Abilities {
    /// What the host says of itself.
    pub host: Host,
    /// Version of Landlock's interface; 0: there is none.
    pub landlock: u32,
    /// Filters of system calls.
    pub seccomp: Ability,
    /// Namespaces, with one of users.
    pub namespaces: Ability,
    /// Namespaces without one of users: with privileges only.
    pub privileged_namespaces: Ability,
    /// A namespace of processes with a `/proc` of its own.
    pub processes: Ability,
    /// Names that cannot be made although their directory can be written.
    pub guards: Ability,
    /// Bubblewrap.
    pub bubblewrap: Ability,
    /// Where it is.
    pub bubblewrap_path: Option<PathBuf>,
}

/// Whether something works.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "reason")]
pub enum Ability {
    /// It does.
    Works,
    /// It does not, and this is why.
    Fails(String),
    /// It was not tried, because it would not be used.
    Untried,
}

impl Ability {
    /// Tells whether it works.
    pub fn works(&self) -> bool {
        *self == Self::Works
    }

    /// Why it does not work.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Fails(reason) => Some(reason),
            Self::Works | Self::Untried => None,
        }
    }
}

/// How much is tried.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Thoroughness {
    /// Until something works.
    Enough,
    /// Everything.
    All,
}

/// Tries what this machine can enforce. Takes milliseconds, and never more than 15 seconds.
pub async fn probe(spawner: &Spawner, thoroughness: Thoroughness) -> Abilities {
    let host = Host::read();
    let all = thoroughness == Thoroughness::All;
    let landlock = landlock_domain::abi_version();
    let tries = Tries {
        spawner,
        until: Instant::now() + PATIENCE_IN_ALL,
    };
    let seccomp = tries.enclosed(Ok(filtered())).await;
    let namespaces = |user, processes| namespaces(user, processes, host.account);
    let mut processes = tries.enclosed(namespaces(User::New, Proc::New)).await;
    let with_users = match &processes {
        Ability::Works => Ability::Works,
        Ability::Fails(_) | Ability::Untried => {
            tries.enclosed(namespaces(User::New, Proc::Host)).await
        }
    };
    let mut privileged = Ability::Untried;
    if all || !with_users.works() {
        privileged = tries.enclosed(namespaces(User::Host, Proc::Host)).await;
        if privileged.works() && !with_users.works() {
            processes = tries.enclosed(namespaces(User::Host, Proc::New)).await;
        }
    }
    let has_namespaces = with_users.works() || privileged.works();
    let guards = if !has_namespaces {
        Ability::Fails("there are no namespaces to guard".to_owned())
    } else if landlock < landlock_domain::REFER {
        let least = landlock_domain::REFER;
        Ability::Fails(format!(
            "Landlock ABI {least} is needed, and there is {landlock}"
        ))
    } else {
        let user = if with_users.works() {
            User::New
        } else {
            User::Host
        };
        let guarded = namespaces(user, Proc::Host).and_then(|inner| guarded(inner, landlock));
        tries.enclosed(guarded).await
    };
    let bubblewrap_path = bubblewrap::find();
    let bubblewrap = match &bubblewrap_path {
        Some(path) if all || !has_namespaces => bubblewrap::attempt(path, tries.deadline()).await,
        Some(_) => Ability::Untried,
        None => Ability::Fails("bwrap is not installed".to_owned()),
    };
    Abilities {
        host,
        landlock,
        seccomp,
        namespaces: with_users,
        privileged_namespaces: privileged,
        processes,
        guards,
        bubblewrap,
        bubblewrap_path,
    }
}

/// Whose users there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum User {
    New,
    Host,
}

/// Whose processes there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Proc {
    New,
    Host,
}

fn filtered() -> Enclosure {
    Enclosure {
        filter: filter(Filter {
            sockets: Sockets::Pairs,
            on_the_host: true,
            among_others: true,
            brokered: false,
        }),
        ..Enclosure::default()
    }
}

fn namespaces(user: User, processes: Proc, account: u32) -> Result<Enclosure, String> {
    let view = View {
        base: Access::Read,
        layers: Vec::new(),
        forbidden: Vec::new(),
        links: Vec::new(),
    };
    let fittings = Fittings {
        devices: true,
        processes: processes == Proc::New,
        account,
    };
    Ok(Enclosure {
        namespaces: Some(Namespaces {
            user: user == User::New,
            processes: processes == Proc::New,
            network: Some(NetworkNamespace::default()),
            steps: steps(&view, fittings).map_err(|error| error.to_string())?,
        }),
        ..Enclosure::default()
    })
}

fn guarded(mut enclosure: Enclosure, landlock: u32) -> Result<Enclosure, String> {
    let domain = landlock_domain::nothing_new(landlock, landlock_domain::Apart::Yes);
    enclosure.landlock = Some(domain.map_err(|error| error.to_string())?);
    enclosure.filter = filter(Filter {
        sockets: Sockets::Pairs,
        on_the_host: false,
        among_others: false,
        brokered: true,
    });
    enclosure.guards = vec![Guard {
        directory: c"/".to_owned(),
        names: vec![c".git".to_owned()],
    }];
    Ok(enclosure)
}

/// Tries, until there is no more time.
struct Tries<'a> {
    spawner: &'a Spawner,
    until: Instant,
}

impl Tries<'_> {
    fn deadline(&self) -> Instant {
        self.until.min(Instant::now() + PATIENCE)
    }

    /// Tries to enclose a program that cannot be run: that it was not found means that it would have
    /// been enclosed.
    async fn enclosed(&self, enclosure: Result<Enclosure, String>) -> Ability {
        let spec = enclosure.and_then(|inner| spec(inner).map_err(|error| error.to_string()));
        let spec = match spec {
            Ok(spec) => spec,
            Err(reason) => return Ability::Fails(reason),
        };
        match timeout_at(self.deadline(), self.spawner.spawn(spec)).await {
            Ok(Err(SpawnError::Host {
                stage: Stage::Exec,
                source,
            })) if source.kind() == io::ErrorKind::NotFound => Ability::Works,
            Ok(Ok(_)) => Ability::Fails("a program that is nowhere was run".to_owned()),
            Ok(Err(error)) => Ability::Fails(error.explained()),
            Err(_) => Ability::Fails("no answer in time".to_owned()),
        }
    }
}

fn spec(enclosure: Enclosure) -> io::Result<Spec> {
    let null = || {
        let mut options = std::fs::File::options();
        options.read(true).write(true).open("/dev/null")
    };
    let nowhere = CString::new(NOWHERE)?;
    Ok(Spec {
        candidates: vec![nowhere.clone()],
        argv: vec![nowhere],
        env: Vec::new(),
        cwd: c"/".to_owned(),
        stdin: null()?.into(),
        stdout: null()?.into(),
        stderr: null()?.into(),
        terminal: false,
        extra: Vec::new(),
        limits: Vec::new(),
        enclosure: Some(enclosure),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_found_here_is_believable() {
        let spawner = Spawner::default();
        let abilities = probe(&spawner, Thoroughness::All).await;
        assert!(abilities.seccomp.works(), "{abilities:#?}");
        // Namespaces may be forbidden here, but then there is a reason.
        let namespaces = abilities.namespaces;
        assert!(namespaces.works() || namespaces.reason().is_some_and(|reason| !reason.is_empty()));
    }
}
