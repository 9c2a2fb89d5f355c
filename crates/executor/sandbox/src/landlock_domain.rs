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
const DEVICES: [&str; 7] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
];

/// Everything that changes files or devices, as far as the rung that uses it asks for.
const CHANGES: ABI = ABI::V5;

/// Makes a domain in which nothing can be written but these files and a few devices, and nothing
/// outside signalled or traced.
pub(crate) fn read_only_but(
    files: &[&Path],
    abstract_sockets: Apart,
) -> Result<OwnedFd, DomainError> {
    let changes = AccessFs::from_write(CHANGES);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(changes)?
        .scope(scopes(abstract_sockets))?
        .create()?;
    let to_device = AccessFs::WriteFile | AccessFs::IoctlDev;
    for device in DEVICES {
        if let Some(fd) = existing(Path::new(device))? {
            rules = rules.add_rule(PathBeneath::new(fd, to_device))?;
        }
    }
    for file in files {
        if let Some(fd) = existing(file)? {
            let access = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
            rules = rules.add_rule(PathBeneath::new(fd, access))?;
        }
    }
    owned(rules)
}

/// Makes a domain in which nothing can be made, moved or linked at all: a broker does it, and binds
/// sockets to paths.
pub(crate) fn nothing_new(abi: u32, abstract_sockets: Apart) -> Result<OwnedFd, DomainError> {
    let made = AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSym
        | AccessFs::MakeFifo
        | AccessFs::MakeSock
        | AccessFs::MakeChar
        | AccessFs::MakeBlock
        | AccessFs::Refer;
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(made)?;
    if abi >= SCOPES {
        ruleset = ruleset.scope(scopes(abstract_sockets))?;
    }
    owned(ruleset.create()?)
}

/// Makes a domain that restricts no file, for versions without scopes. Nothing outside of it can be
/// traced.
pub(crate) fn untraced() -> Result<OwnedFd, DomainError> {
    // Something must be handled. Moving between directories would be refused if it were not.
    let handled = AccessFs::MakeBlock | AccessFs::Refer;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(handled)?
        .create()?;
    let Some(root) = existing(Path::new("/"))? else {
        return Err(DomainError::Unsupported);
    };
    owned(ruleset.add_rule(PathBeneath::new(root, handled))?)
}

/// Makes a domain that restricts no file. Nothing outside of it can be signalled or traced.
pub(crate) fn apart(abstract_sockets: Apart) -> Result<OwnedFd, DomainError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(scopes(abstract_sockets))?;
    owned(ruleset.create()?)
}

/// From this version on, signals and abstract sockets can be scoped.
pub(crate) const SCOPES: u32 = 6;
/// From this version on, moving between directories can be handled.
pub(crate) const REFER: u32 = 2;

/// Whether abstract sockets of the host are out of reach.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Apart {
    /// They are.
    Yes,
    /// They belong to the host's network, which may be used.
    No,
}

fn scopes(abstract_sockets: Apart) -> BitFlags<Scope> {
    match abstract_sockets {
        Apart::Yes => Scope::Signal | Scope::AbstractUnixSocket,
        Apart::No => Scope::Signal.into(),
    }
}

/// Opens a path, if it is there.
fn existing(path: &Path) -> Result<Option<PathFd>, DomainError> {
    match PathFd::new(path) {
        Ok(fd) => Ok(Some(fd)),
        Err(PathFdError::OpenCall { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(source) => Err(DomainError::Path {
            path: path.to_owned(),
            source: source.into(),
        }),
    }
}

fn owned(ruleset: landlock::RulesetCreated) -> Result<OwnedFd, DomainError> {
    Option::<OwnedFd>::from(ruleset).ok_or(DomainError::Unsupported)
}

/// Why there is no domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
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
