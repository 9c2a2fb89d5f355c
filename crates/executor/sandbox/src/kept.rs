//! Filters and rulesets that are the same for many commands, made once.
//!
//! Only what names no file of a policy is kept: a ruleset names files by what they are, and those of
//! a policy may be others with the next command.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
};

use exec_process::enclosure::Instruction;

use crate::{
    domain::{self, Apart, DomainError},
    filter::{Filter, filter},
};

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
            Domain::ReadOnly => domain::read_only_but(&[], apart),
            Domain::NothingNew { abi } => domain::nothing_new(abi, apart),
            Domain::Apart => domain::apart(apart),
        }?;
        let copy = made.try_clone().map_err(DomainError::Copy)?;
        domains.insert((wanted, apart), made);
        Ok(copy)
    }
}
