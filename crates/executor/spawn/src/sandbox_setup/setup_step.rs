//! The steps of a sandbox set-up, as named in errors.

use std::fmt;

use super::{MountStep, NameGuard, SandboxSetup};
use crate::raw::Errno;

/// A step of a sandbox set-up, as an error names it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum SetupStep {
    /// Creating namespaces.
    Namespaces,
    /// Mapping the account into its user namespace.
    Account,
    /// Setting up the network namespace.
    Network,
    /// A step of the mount view.
    Step(MountStep),
    /// A guard, or the broker of all guards.
    Guard(Option<NameGuard>),
    /// Dropping privileges.
    Privileges,
    /// Entering the Landlock domain.
    Landlock,
    /// Installing the seccomp filter.
    Filter,
}

impl SetupStep {
    /// Resolves the step code of a report.
    pub fn new(code: StepCode, steps: &[MountStep], guards: &[NameGuard]) -> Self {
        match code {
            StepCode::Namespaces => Self::Namespaces,
            StepCode::Account => Self::Account,
            StepCode::Network => Self::Network,
            StepCode::Step(index) => steps
                .get(index as usize)
                .map_or(Self::Namespaces, |step| Self::Step(step.clone())),
            StepCode::Guard(index) => Self::Guard(guards.get(index as usize).cloned()),
            StepCode::Privileges => Self::Privileges,
            StepCode::Landlock => Self::Landlock,
            StepCode::Filter => Self::Filter,
        }
    }

    /// Takes the paths from a set-up that name its steps in errors.
    pub fn take_names(enclosure: &mut SandboxSetup) -> (Vec<MountStep>, Vec<NameGuard>) {
        let namespaces = enclosure.namespaces.as_mut();
        let steps = namespaces.map(|namespaces| std::mem::take(&mut namespaces.steps));
        (
            steps.unwrap_or_default(),
            std::mem::take(&mut enclosure.guards),
        )
    }
}

/// Formats the step so that it follows "cannot".
impl fmt::Display for SetupStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, path) = match self {
            Self::Namespaces => return f.write_str("make namespaces"),
            Self::Account => return f.write_str("map the account"),
            Self::Network => return f.write_str("make a network"),
            Self::Guard(None) => return f.write_str("guard names"),
            Self::Privileges => return f.write_str("give up privileges"),
            Self::Landlock => return f.write_str("enforce a Landlock ruleset"),
            Self::Filter => return f.write_str("install a filter of system calls"),
            Self::Guard(Some(guard)) => ("guard names in", &guard.directory),
            Self::Step(step) => match step {
                MountStep::ReadOnly { .. } => return f.write_str("make a copy read-only"),
                MountStep::ReadOnlyView => return f.write_str("make the file system read-only"),
                MountStep::Memory { .. } => return f.write_str("make a file system in memory"),
                MountStep::Processes { .. } => return f.write_str("make a view of processes"),
                MountStep::Terminals { .. } => return f.write_str("make a set of terminals"),
                MountStep::Root { .. } => return f.write_str("change the root"),
                MountStep::Copy { path, .. } => ("copy", path),
                MountStep::Directory { path, .. } => ("make directory", path),
                MountStep::File { path, .. } => ("make file", path),
                MountStep::Link { path, .. } => ("make link", path),
                MountStep::Attach { path, .. } => ("attach", path),
                MountStep::Cover { path, .. } => ("cover", path),
                MountStep::Protect { path } => ("protect", path),
                MountStep::Pin { path } => ("pin", path),
            },
        };
        write!(f, "{verb} `{}`", path.to_string_lossy())
    }
}

/// A step of a sandbox set-up as plain numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StepCode {
    /// Creating namespaces.
    Namespaces,
    /// Mapping the account into its user namespace.
    Account,
    /// Setting up the network namespace.
    Network,
    /// A step of the mount view, by index.
    Step(u32),
    /// A guard, by index.
    Guard(u32),
    /// Dropping privileges.
    Privileges,
    /// Entering the Landlock domain.
    Landlock,
    /// Installing the seccomp filter.
    Filter,
}

impl StepCode {
    pub(crate) fn numbers(self) -> (u32, u32) {
        match self {
            Self::Namespaces => (0, 0),
            Self::Account => (1, 0),
            Self::Network => (2, 0),
            Self::Step(index) => (3, index),
            Self::Guard(index) => (4, index),
            Self::Privileges => (5, 0),
            Self::Landlock => (6, 0),
            Self::Filter => (7, 0),
        }
    }

    /// Decodes the numbers of a report.
    pub fn from_numbers(kind: u32, index: u32) -> Self {
        match kind {
            1 => Self::Account,
            2 => Self::Network,
            3 => Self::Step(index),
            4 => Self::Guard(index),
            5 => Self::Privileges,
            6 => Self::Landlock,
            7 => Self::Filter,
            _ => Self::Namespaces,
        }
    }

    /// Returns a function that turns an error number into a failure of this step.
    pub(crate) fn failure(self) -> impl Fn(Errno) -> SetupFailure {
        move |errno| SetupFailure { step: self, errno }
    }
}

/// A failed step and its error number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SetupFailure {
    pub(crate) step: StepCode,
    pub(crate) errno: Errno,
}
