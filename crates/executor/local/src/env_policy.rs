//! Environment of a child process: the host's variables filtered by the policy, then the request's
//! variables.
//!
//! Invariant: a name for which [`is_non_inheritable`] holds never reaches a child. Elsewhere:
//! reading the host's environment. Windows core names are not supported.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    str::Chars,
};

use exec_env::credential::{CredentialScope, CredentialVariable};
use exec_wire::process::{EnvInherit, EnvPolicy, ProcessMetadata};

/// Computes the environment of a child process.
///
/// Without a policy no host variable is inherited. `overlay` overrides the policy and is not
/// filtered by its patterns; `metadata` overrides both.
pub fn child_environment(
    host: &BTreeMap<OsString, OsString>,
    policy: Option<&EnvPolicy>,
    overlay: &BTreeMap<String, String>,
    metadata: &ProcessMetadata,
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

/// Returns whether `name` is a credential or a setting of the server that no child may see.
pub fn is_non_inheritable(name: &OsStr) -> bool {
    name == SERVER_SETTING || scope(name) == Some(CredentialScope::Reserved)
}

/// Returns whether a policy inherits `name` from the host. Credentials of the server are never
/// inherited; a request may set them itself.
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

/// Applies the patterns and `set` pairs of `policy`, but not its `inherit`.
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

/// Adds the request's variables and metadata to `base`, and removes non-inheritable names.
pub(crate) fn apply_overlay(
    mut base: BTreeMap<OsString, OsString>,
    overlay: &BTreeMap<String, String>,
    metadata: &ProcessMetadata,
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

/// Matches the whole `name` case-insensitively: `*` is any sequence, `?` one character.
///
/// Only the last `*` is retried, because an earlier one that matched more could not help. The work
/// is at most the product of both lengths.
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
            (Some(expected), Some(found)) if expected == '?' || eq_ignore_case(expected, found) => {
                (pattern, name) = (next_pattern, next_name);
            }
            _ => {
                let Some((after_star, rest_of_name)) = &mut last_star else {
                    return false;
                };
                if rest_of_name.next().is_none() {
                    return false;
                }
                (pattern, name) = (after_star.clone(), rest_of_name.clone());
            }
        }
    }
}

fn eq_ignore_case(a: char, b: char) -> bool {
    a == b || a.to_lowercase().eq(b.to_lowercase())
}

/// Variable with the id of the requesting thread.
pub(crate) const THREAD_ID: &str = "CODEX_THREAD_ID";
/// Variable with the id of the requesting tool call.
pub(crate) const TOOL_CALL_ID: &str = "CODEX_TOOL_CALL_ID";

const CORE_NAMES: [&str; 11] = [
    "PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME",
    "USER",
];

const DEFAULT_EXCLUDES: &[&str] = &["*KEY*", "*SECRET*", "*TOKEN*"];

const SERVER_SETTING: &str = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE";
