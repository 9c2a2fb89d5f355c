//! A child's environment: the host's through the policy, then the request's own.
//!
//! Invariant: a name of [`is_non_inheritable`] never reaches a child, whoever asks for it.
//! Not here: reading the host's environment; the names that Windows treats as core.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    str::Chars,
};

use exec_env::credential::{CredentialScope, CredentialVariable};
use exec_wire::process::{EnvInherit, EnvPolicy, Metadata};

/// Computes the whole environment of a child.
///
/// Without a policy nothing of the host enters. `overlay` wins over the policy and is not filtered
/// by its patterns; `metadata` wins over both.
pub fn child_environment(
    host: &BTreeMap<OsString, OsString>,
    policy: Option<&EnvPolicy>,
    overlay: &BTreeMap<String, String>,
    metadata: &Metadata,
) -> BTreeMap<OsString, OsString> {
    let base = match policy {
        None => BTreeMap::new(),
        Some(policy) => {
            let inherited = host
                .iter()
                .filter(|(name, _)| inherits(policy.inherit, name));
            apply_filters(policy, inherited)
        }
    };
    apply_overlay(base, overlay, metadata)
}

/// Tells whether `name` is a credential or a setting of the server itself, which no child may see.
pub fn is_non_inheritable(name: &OsStr) -> bool {
    name == SERVER_SETTING || scope(name) == Some(CredentialScope::Reserved)
}

/// Tells whether a policy begins with `name` of the host's environment. Credentials that the server uses
/// are not for commands, whatever the policy says; a request that wants one sets it.
pub(crate) fn inherits(inherit: EnvInherit, name: &OsStr) -> bool {
    if matches!(
        scope(name),
        Some(CredentialScope::Reserved | CredentialScope::Own)
    ) {
        return false;
    }
    match inherit {
        EnvInherit::All => true,
        EnvInherit::None => false,
        EnvInherit::Core => CORE_NAMES
            .iter()
            .any(|core| name.eq_ignore_ascii_case(core)),
    }
}

/// Applies everything of `policy` but its `inherit`: the patterns and the pairs to set.
pub(crate) fn apply_filters<'a>(
    policy: &EnvPolicy,
    base: impl Iterator<Item = (&'a OsString, &'a OsString)>,
) -> BTreeMap<OsString, OsString> {
    let defaults = if policy.ignore_default_excludes {
        &[][..]
    } else {
        DEFAULT_EXCLUDES
    };
    let is_excluded = |name: &OsStr| {
        matches_any(defaults.iter().copied(), name)
            || matches_any(policy.exclude.iter().map(String::as_str), name)
    };
    let mut environment: BTreeMap<_, _> = base
        .filter(|(name, _)| !is_excluded(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    environment.extend(
        policy
            .set
            .iter()
            .map(|(name, value)| (name.into(), value.into())),
    );
    if !policy.include_only.is_empty() {
        let included = || policy.include_only.iter().map(String::as_str);
        environment.retain(|name, _| matches_any(included(), name));
    }
    environment
}

/// Lays the request's own pairs over `base` and removes what no child may see.
pub(crate) fn apply_overlay(
    mut base: BTreeMap<OsString, OsString>,
    overlay: &BTreeMap<String, String>,
    metadata: &Metadata,
) -> BTreeMap<OsString, OsString> {
    base.extend(
        overlay
            .iter()
            .map(|(name, value)| (name.into(), value.into())),
    );
    let exports = [
        (THREAD_ID, &metadata.thread_id),
        (TOOL_CALL_ID, &metadata.tool_call_id),
    ];
    for (name, value) in exports {
        if let Some(value) = value {
            base.insert(name.into(), value.into());
        }
    }
    base.retain(|name, _| !is_non_inheritable(name));
    base
}

fn scope(name: &OsStr) -> Option<CredentialScope> {
    CredentialVariable::find(name).map(CredentialVariable::scope)
}

fn matches_any<'a>(mut patterns: impl Iterator<Item = &'a str>, name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    patterns.any(|pattern| matches(pattern, &name))
}

/// Matches the whole of `name`, whatever its case: `*` is any run, `?` is one character.
///
/// Only the last `*` is ever retried: an earlier one that took more could not match more. So the
/// work is at most the product of both lengths.
fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    let mut last_star: Option<(Chars<'_>, Chars<'_>)> = None;
    loop {
        let (mut next_pattern, mut next_name) = (pattern.clone(), name.clone());
        match (next_pattern.next(), next_name.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                last_star = Some((next_pattern.clone(), name.clone()));
                pattern = next_pattern;
            }
            (Some(wanted), Some(found)) if wanted == '?' || eq_ignore_case(wanted, found) => {
                (pattern, name) = (next_pattern, next_name);
            }
            _ => {
                let Some((after_star, taken)) = &mut last_star else {
                    return false;
                };
                if taken.next().is_none() {
                    return false;
                }
                (pattern, name) = (after_star.clone(), taken.clone());
            }
        }
    }
}

fn eq_ignore_case(a: char, b: char) -> bool {
    a == b || a.to_lowercase().eq(b.to_lowercase())
}

/// Where a child finds the thread that asked for it.
pub(crate) const THREAD_ID: &str = "CODEX_THREAD_ID";
/// Where a child finds the tool call that asked for it.
pub(crate) const TOOL_CALL_ID: &str = "CODEX_TOOL_CALL_ID";

const CORE_NAMES: [&str; 11] = [
    "PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME",
    "USER",
];

const DEFAULT_EXCLUDES: &[&str] = &["*KEY*", "*SECRET*", "*TOKEN*"];

const SERVER_SETTING: &str = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE";
