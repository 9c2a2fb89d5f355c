//! LRU cache of the shell snapshots of one session.
//!
//! Failures are cached like successes, so that a broken profile costs its time once.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use exec_wire::process::{EnvPolicy, ShellSnapshot};

/// Cache key: all inputs of a capture.
///
/// It includes the request's variables, because they reach the profiles, and exports derived from
/// them must not appear in commands with other variables.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SnapshotKey {
    /// Snapshot request.
    pub request: ShellSnapshot,
    /// Working directory.
    pub cwd: PathBuf,
    /// Policy for inheriting the host's environment.
    pub env_policy: Option<EnvPolicy>,
    /// Variables of the request.
    pub env: BTreeMap<String, String>,
    /// Sandbox policy of the shell as JSON, because it limits which files the shell can read.
    pub sandbox: Option<String>,
}

/// Values by key, at most [`MAX_SNAPSHOTS`].
///
/// To share a running capture, let `V` be a cell that the first command fills.
#[derive(Debug)]
pub struct SnapshotCache<V> {
    entries: BTreeMap<SnapshotKey, SnapshotEntry<V>>,
    uses: u64,
}

impl<V> SnapshotCache<V> {
    /// Creates an empty cache.
    pub fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Returns the value of `key`. Calls `make` on first use.
    ///
    /// A new value may evict the least recently used one. Existing references to it stay valid.
    pub fn get_or_insert_with(&mut self, key: SnapshotKey, make: impl FnOnce() -> V) -> Arc<V> {
        self.uses += 1;
        let used = self.uses;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.used = used;
            return Arc::clone(&entry.value);
        }
        if self.entries.len() >= MAX_SNAPSHOTS {
            self.remove_oldest();
        }
        let value = Arc::new(make());
        self.entries.insert(
            key,
            SnapshotEntry {
                used,
                value: Arc::clone(&value),
            },
        );
        value
    }

    fn remove_oldest(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.entries.remove(&key);
        }
    }
}

impl<V> Default for SnapshotCache<V> {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug)]
struct SnapshotEntry<V> {
    used: u64,
    value: Arc<V>,
}

/// Maximum snapshots of one session. Each holds up to 512 KiB.
pub const MAX_SNAPSHOTS: usize = 16;

#[cfg(test)]
mod tests {
    use exec_wire::environment::ShellProgram;

    use super::*;

    #[test]
    fn value_is_created_once() {
        let mut cache = SnapshotCache::new();
        let first = cache.get_or_insert_with(key(1), || Err::<u8, _>("broken profile"));
        let again = cache.get_or_insert_with(key(1), || Ok(1));
        assert!(Arc::ptr_eq(&first, &again), "failures are cached, too");
    }

    #[test]
    fn least_recently_used_entry_is_evicted() {
        let mut cache = SnapshotCache::new();
        for number in 0..MAX_SNAPSHOTS {
            cache.get_or_insert_with(key(number), || number);
        }
        cache.get_or_insert_with(key(0), || unreachable!("already cached"));
        cache.get_or_insert_with(key(MAX_SNAPSHOTS), || MAX_SNAPSHOTS);
        assert_eq!(cache.entries.len(), MAX_SNAPSHOTS);
        assert!(cache.entries.contains_key(&key(0)));
        assert!(!cache.entries.contains_key(&key(1)));
    }

    #[test]
    fn every_key_field_distinguishes_entries() {
        let base = key(0);
        let mut other_env = base.clone();
        other_env.env.insert("A".to_owned(), "1".to_owned());
        let mut other_scope = base.clone();
        other_scope.request.scope_id.push('2');
        let mut cache = SnapshotCache::new();
        for key in [base, key(1), other_env, other_scope] {
            cache.get_or_insert_with(key, || ());
        }
        assert_eq!(cache.entries.len(), 4);
    }

    fn key(number: usize) -> SnapshotKey {
        let shell = ShellProgram {
            name: "bash".to_owned(),
            path: "/bin/bash".to_owned(),
        };
        SnapshotKey {
            request: ShellSnapshot {
                scope_id: "scope".to_owned(),
                shell,
            },
            cwd: PathBuf::from(format!("/{number}")),
            env_policy: None,
            env: BTreeMap::new(),
            sandbox: None,
        }
    }
}
