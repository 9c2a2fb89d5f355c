//! Creates Landlock rulesets for commands and fs workers.
//!
//! Landlock rules refer to inodes, not to paths, so a ruleset that names files is created anew for
//! each command.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};

/// Devices that every command may write to. Terminals are not listed by name, because those of
/// other commands exist as well. A command has its own terminal open and reaches it as `/dev/tty`.
const WRITABLE_DEVICES: [&str; 7] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
];

/// ABI that defines the restricted write rights.
const WRITE_ABI: ABI = ABI::V5;

/// Creates a domain in which only these files and a few devices can be written, and no process
/// outside can be signalled or traced.
pub(crate) fn read_only_except(
    files: &[&Path],
    abstract_sockets: AbstractSocketScope,
) -> Result<OwnedFd, LandlockError> {
    let write_rights = AccessFs::from_write(WRITE_ABI);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(write_rights)?
        .scope(scopes(abstract_sockets))?
        .create()?;
    let device_rights = AccessFs::WriteFile | AccessFs::IoctlDev;
    for device in WRITABLE_DEVICES {
        if let Some(fd) = open_if_exists(Path::new(device))? {
            rules = rules.add_rule(PathBeneath::new(fd, device_rights))?;
        }
    }
    for file in files {
        if let Some(fd) = open_if_exists(file)? {
            let access = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
            rules = rules.add_rule(PathBeneath::new(fd, access))?;
        }
    }
    into_fd(rules)
}

/// Creates a domain in which no file can be created, moved or linked, and no socket bound to a
/// path. A broker does this on behalf of the command.
pub(crate) fn deny_creation(
    abi: u32,
    abstract_sockets: AbstractSocketScope,
) -> Result<OwnedFd, LandlockError> {
    let creation_rights = AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSym
        | AccessFs::MakeFifo
        | AccessFs::MakeSock
        | AccessFs::MakeChar
        | AccessFs::MakeBlock
        | AccessFs::Refer;
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(creation_rights)?;
    if abi >= MIN_ABI_SCOPES {
        ruleset = ruleset.scope(scopes(abstract_sockets))?;
    }
    into_fd(ruleset.create()?)
}

/// Creates a domain that restricts no file, for ABI versions without scopes. It prevents tracing of
/// processes outside the domain.
pub(crate) fn deny_tracing() -> Result<OwnedFd, LandlockError> {
    // A ruleset must handle at least one right. `Refer` is handled and granted, because it is
    // denied by default.
    let handled = AccessFs::MakeBlock | AccessFs::Refer;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(handled)?
        .create()?;
    let Some(root) = open_if_exists(Path::new("/"))? else {
        return Err(LandlockError::Unsupported);
    };
    into_fd(ruleset.add_rule(PathBeneath::new(root, handled))?)
}

/// Creates a domain that restricts no file. It prevents signals to and tracing of processes outside
/// the domain.
pub(crate) fn scoped_only(abstract_sockets: AbstractSocketScope) -> Result<OwnedFd, LandlockError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(scopes(abstract_sockets))?;
    into_fd(ruleset.create()?)
}

/// First ABI version with scopes for signals and abstract unix sockets.
pub(crate) const MIN_ABI_SCOPES: u32 = 6;
/// First ABI version that can allow moving files between directories.
pub(crate) const MIN_ABI_REFER: u32 = 2;

/// Whether the host's abstract unix sockets are reachable.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum AbstractSocketScope {
    /// They are not reachable.
    Isolated,
    /// They are reachable, as part of the host's network.
    Shared,
}

fn scopes(abstract_sockets: AbstractSocketScope) -> BitFlags<Scope> {
    match abstract_sockets {
        AbstractSocketScope::Isolated => Scope::Signal | Scope::AbstractUnixSocket,
        AbstractSocketScope::Shared => Scope::Signal.into(),
    }
}

/// Opens a path, or returns `None` if it does not exist.
fn open_if_exists(path: &Path) -> Result<Option<PathFd>, LandlockError> {
    match PathFd::new(path) {
        Ok(fd) => Ok(Some(fd)),
        Err(PathFdError::OpenCall { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(source) => Err(LandlockError::Path {
            path: path.to_owned(),
            source: source.into(),
        }),
    }
}

fn into_fd(ruleset: landlock::RulesetCreated) -> Result<OwnedFd, LandlockError> {
    Option::<OwnedFd>::from(ruleset).ok_or(LandlockError::Unsupported)
}

/// Why a ruleset could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LandlockError {
    /// Host: the kernel rejected the ruleset.
    #[error("cannot create Landlock ruleset: {0}")]
    Ruleset(#[from] RulesetError),
    /// Host: a path cannot be opened.
    #[error("cannot open `{}` for a Landlock rule", path.display())]
    Path {
        /// Path of the rule.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Box<PathFdError>,
    },
    /// Host: no file descriptors left.
    #[error("cannot duplicate Landlock ruleset: {0}")]
    Copy(#[source] io::Error),
    /// Host: Landlock is not available.
    #[error("this kernel has no Landlock")]
    Unsupported,
}

/// Returns the Landlock ABI version, or 0 if Landlock is not available or a filter hides it.
#[expect(unsafe_code, reason = "the version query has no safe wrapper")]
pub(crate) fn abi_version() -> u32 {
    const VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call takes no attributes and only returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) };
    u32::try_from(version).unwrap_or(0)
}
