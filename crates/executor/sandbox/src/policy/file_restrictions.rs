//! Properties of a policy that do not depend on the host.

use exec_wire::sandbox::{
    EntryAccess, EntryPath, FileSystemPolicy, NetworkAccess, SandboxEntry, SandboxPermissions,
    SandboxPolicy, SpecialPath, WindowsSandboxLevel,
};

use super::{MAX_ENTRIES, error::PolicyError};
use crate::plan::NetworkScope;

/// Returns whether the policy allows reading every file.
pub fn reads_everything(sandbox: &SandboxPolicy) -> bool {
    restrictions(sandbox).is_none_or(|restrictions| {
        let entries = restrictions.entries;
        let root = |entry: &SandboxEntry| is_root(&entry.path) && entry.access != EntryAccess::Deny;
        entries.iter().any(root)
            && entries
                .iter()
                .all(|entry| entry.access != EntryAccess::Deny)
    })
}

/// Returns whether the policy allows writing every file. Always false for too many entries.
pub fn writes_everything(sandbox: &SandboxPolicy) -> bool {
    restrictions(sandbox).is_none_or(|restrictions| {
        let entries = restrictions.entries;
        if entries.len() > MAX_ENTRIES {
            return false;
        }
        let written = |path: &EntryPath| {
            let same =
                |entry: &SandboxEntry| entry.access == EntryAccess::Write && entry.path == *path;
            entries.iter().any(same)
        };
        let root =
            |entry: &SandboxEntry| is_root(&entry.path) && entry.access == EntryAccess::Write;
        entries.iter().any(root)
            && entries.iter().all(|entry| match entry.access {
                EntryAccess::Deny => false,
                EntryAccess::Read => written(&entry.path),
                EntryAccess::Write => true,
            })
    })
}

/// Restrictions on files.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileRestrictions<'a> {
    pub(super) entries: &'a [SandboxEntry],
    /// Maximum depth of a glob scan. Absent: unlimited.
    pub(super) depth: Option<usize>,
}

/// Returns the restrictions on files. `None` if all files are accessible.
pub(super) fn restrictions(sandbox: &SandboxPolicy) -> Option<FileRestrictions<'_>> {
    match &sandbox.permissions {
        SandboxPermissions::Managed {
            file_system:
                FileSystemPolicy::Restricted {
                    entries,
                    glob_scan_max_depth: depth,
                },
            ..
        } => Some(FileRestrictions {
            entries,
            depth: depth.map(usize::from),
        }),
        SandboxPermissions::Managed {
            file_system: FileSystemPolicy::Unrestricted,
            ..
        }
        | SandboxPermissions::Disabled
        | SandboxPermissions::External { .. } => None,
    }
}

/// Returns the network that a command may use.
pub(super) fn network(sandbox: &SandboxPolicy) -> NetworkScope {
    match &sandbox.permissions {
        SandboxPermissions::Managed { network, .. } | SandboxPermissions::External { network } => {
            match network {
                NetworkAccess::Restricted => NetworkScope::None,
                NetworkAccess::Enabled => NetworkScope::Host,
            }
        }
        SandboxPermissions::Disabled => NetworkScope::Host,
    }
}

/// Refuses what this platform does not support.
pub(super) fn check_platform(sandbox: &SandboxPolicy) -> Result<(), PolicyError> {
    match sandbox.windows_sandbox_level {
        WindowsSandboxLevel::Mxc => return Err(PolicyError::WindowsOnly),
        WindowsSandboxLevel::Disabled
        | WindowsSandboxLevel::RestrictedToken
        | WindowsSandboxLevel::Elevated => {}
    }
    // As the stock server, which does not use the flag otherwise.
    if sandbox.use_legacy_landlock && !writes_everything(sandbox) {
        return Err(PolicyError::LegacyLandlock);
    }
    Ok(())
}

fn is_root(path: &EntryPath) -> bool {
    matches!(
        path,
        EntryPath::Special {
            value: SpecialPath::Root
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(entries: &str) -> SandboxPolicy {
        let text = format!(
            r#"{{"permissions":{{"type":"managed","file_system":{{"type":"restricted","entries":[{entries}]}},
            "network":"restricted"}},"windowsSandboxLevel":"disabled"}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const ROOT_READ: &str =
        r#"{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}"#;
    const ROOT_WRITE: &str =
        r#"{"path":{"type":"special","value":{"kind":"root"}},"access":"write"}"#;

    #[test]
    fn policy_without_restrictions_allows_everything() {
        for permissions in [
            r#"{"type":"disabled"}"#,
            r#"{"type":"external","network":"restricted"}"#,
            r#"{"type":"managed","file_system":{"type":"unrestricted"},"network":"enabled"}"#,
        ] {
            let text =
                format!(r#"{{"permissions":{permissions},"windowsSandboxLevel":"disabled"}}"#);
            let sandbox: SandboxPolicy = serde_json::from_str(&text).unwrap();
            assert!(
                reads_everything(&sandbox) && writes_everything(&sandbox),
                "{permissions}"
            );
        }
    }

    #[test]
    fn everything_is_readable_below_a_readable_root_without_denials() {
        let deny = r#"{"path":{"type":"glob_pattern","pattern":"**/.env"},"access":"none"}"#;
        assert!(reads_everything(&sandbox(ROOT_READ)));
        assert!(reads_everything(&sandbox(ROOT_WRITE)));
        assert!(!reads_everything(&sandbox(&format!("{ROOT_READ},{deny}"))));
        assert!(!reads_everything(&sandbox("")));
    }

    #[test]
    fn everything_is_writable_below_an_unrestricted_root() {
        let path = |access: &str| {
            format!(r#"{{"path":{{"type":"path","path":"file:///a"}},"access":"{access}"}}"#)
        };
        assert!(writes_everything(&sandbox(ROOT_WRITE)));
        assert!(!writes_everything(&sandbox(ROOT_READ)));
        let with = |entry: &str| sandbox(&format!("{ROOT_WRITE},{entry}"));
        assert!(!writes_everything(&with(&path("read"))));
        assert!(!writes_everything(&with(&path("deny"))));
        let both = format!("{},{}", path("read"), path("write"));
        assert!(writes_everything(&with(&both)));
    }
}
