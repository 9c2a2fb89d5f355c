//! Landlock domains: rulesets that a command, or a helper, is put under.
//!
//! A ruleset names files by what they are, not by their paths, so it is made anew for each command.
//!
//! Asks the kernel for Landlock.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};

/// Devices that every command may write to, whatever it may write otherwise. Not terminals by their
/// names: those of other commands are there, too. Its own it has open, and finds as `/dev/tty`.
const WRITABLE_DEVICES: [&str; 7] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
];

/// Everything that changes files or devices, as far as the rung that uses it asks for.
const WRITE_ABI: ABI = ABI::V5;

/// Makes a domain in which nothing can be written but these files and a few devices, and nothing
/// outside signalled or traced.
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

/// Makes a domain in which nothing can be made, moved or linked at all: a broker does it, and binds
/// sockets to paths.
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

/// Makes a domain that restricts no file, for versions without scopes. Nothing outside of it can be
/// traced.
pub(crate) fn deny_tracing() -> Result<OwnedFd, LandlockError> {
    // Something must be handled. Moving between directories would be refused if it were not.
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

/// Makes a domain that restricts no file. Nothing outside of it can be signalled or traced.
pub(crate) fn scoped_only(abstract_sockets: AbstractSocketScope) -> Result<OwnedFd, LandlockError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(scopes(abstract_sockets))?;
    into_fd(ruleset.create()?)
}

/// From this version on, signals and abstract sockets can be scoped.
pub(crate) const MIN_ABI_SCOPES: u32 = 6;
/// From this version on, moving between directories can be handled.
pub(crate) const MIN_ABI_REFER: u32 = 2;

/// Whether abstract sockets of the host are out of reach.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum AbstractSocketScope {
    /// They are.
    Isolated,
    /// They belong to the host's network, which may be used.
    Shared,
}

fn scopes(abstract_sockets: AbstractSocketScope) -> BitFlags<Scope> {
    match abstract_sockets {
        AbstractSocketScope::Isolated => Scope::Signal | Scope::AbstractUnixSocket,
        AbstractSocketScope::Shared => Scope::Signal.into(),
    }
}

/// Opens a path, if it is there.
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

/// Why there is no domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LandlockError {
    /// Host: the kernel refuses the ruleset.
    #[error("Landlock ruleset cannot be made: {0}")]
    Ruleset(#[from] RulesetError),
    /// Host: a path cannot be opened.
    #[error("`{}` cannot be opened for a Landlock rule", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<PathFdError>,
    },
    /// Host: there are no descriptors left.
    #[error("Landlock ruleset cannot be copied: {0}")]
    Copy(#[source] io::Error),
    /// Host: there is no Landlock.
    #[error("this kernel has no Landlock")]
    Unsupported,
}

/// Returns the version of Landlock's interface; 0 if there is none, or if a filter hides it.
#[expect(unsafe_code, reason = "the call has no safe wrapper that only asks")]
pub(crate) fn abi_version() -> u32 {
    const VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call takes no attributes and only returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) };
    u32::try_from(version).unwrap_or(0)
}
