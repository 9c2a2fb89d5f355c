//! Shell snapshots: a login shell's state, captured once and replayed before each command.
//!
//! `ShellSnapshots` runs [`capture_argv`], parses the output with [`parse_capture`], caches the
//! result in a [`SnapshotCache`] and starts commands as [`rewrite_command`] rewrites them. If any
//! step fails, the command runs unchanged. Failures are cached like successes, so that a broken
//! profile costs its time once.
//!
//! Invariant: a replayed command sees the functions, aliases, options and exported variables that
//! it would see after the profiles ran. Aliases are active exactly if they would be active there.
//! Variables that the profiles do not export, traps and resource limits are not captured.

pub mod captured_state;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::Write,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart, RetentionLimits};
use exec_env::{
    environment::{Command, StartError},
    process::{ExecProcess, ExecProcessEvent},
};
use exec_process::{
    LaunchStdio, ProcessLaunch, launch,
    spawner::{CommandSpec, InheritedFd},
};
use exec_sandbox::PreparedSandbox;
use exec_wire::{
    id::OutputSeq,
    limits::MAX_SNAPSHOT_SCOPE_BYTES,
    process::{EnvPolicy, OutputStream, ProcessMetadata, ShellSnapshot},
    sandbox::SandboxPolicy,
};
use futures_util::StreamExt;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tokio::{sync::OnceCell, time::timeout};

use self::captured_state::{
    CAPTURE_TIMEOUT, CapturedState, MAX_CAPTURE_BYTES, capture_argv, parse_capture,
    replay_environment, rewrite_command,
};
use crate::{
    backend::{LocalBackend, apply_sandbox, prepare_sandbox},
    env_policy::child_environment,
    process_network::without_network,
};

/// A shell with a state that can be captured.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ShellKind {
    /// GNU bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// Any POSIX shell, mostly dash.
    Sh,
}

impl ShellKind {
    /// Parses `shell.name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "bash" => Some(Self::Bash),
            "zsh" => Some(Self::Zsh),
            "sh" => Some(Self::Sh),
            _ => None,
        }
    }
}

/// Returns the shell if the snapshot applies to `argv`.
///
/// It applies to `-lc` commands of its shell. A third argument that looks like a flag is a flag for
/// the shell, so such an `argv` is not rewritten.
///
/// # Errors
/// An invalid scope is always rejected, an unknown shell only if the snapshot applies.
pub fn applicable_shell(
    argv: &[String],
    snapshot: &ShellSnapshot,
) -> Result<Option<ShellKind>, SnapshotError> {
    let scope_bytes = snapshot.scope_id.len();
    if !(1..=MAX_SNAPSHOT_SCOPE_BYTES).contains(&scope_bytes) {
        return Err(SnapshotError::Scope(scope_bytes));
    }
    match argv {
        [program, flags, command, ..]
            if *program == snapshot.shell.path
                && flags == LOGIN_COMMAND
                && !command.starts_with(['-', '+']) =>
        {
            let name = &snapshot.shell.name;
            let kind = ShellKind::from_name(name);
            kind.map(Some)
                .ok_or_else(|| SnapshotError::UnknownShell(name.clone()))
        }
        _ => Ok(None),
    }
}

/// Why a snapshot request is rejected.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Caller: the scope is empty or too long.
    #[error("scopeId has {0} bytes: expected 1 to {MAX_SNAPSHOT_SCOPE_BYTES}")]
    Scope(usize),
    /// Caller: the state of this shell cannot be captured.
    #[error("shell `{0}` is not bash, zsh or sh")]
    UnknownShell(String),
}

/// Flags of a login command, the only form that is rewritten.
const LOGIN_COMMAND: &str = "-lc";

/// Descriptor from which the shell reads its state.
const STATE_FD: u8 = 9;

/// Captured shell states of one session. Concurrent first uses share one capture.
#[derive(Debug, Default)]
pub(crate) struct ShellSnapshots {
    cache: Mutex<SnapshotCache<OnceCell<Option<CachedState>>>>,
}

#[derive(Debug)]
struct CachedState {
    captured: CapturedState,
    memory: OwnedFd,
}

/// A command rewritten to start from a captured state.
#[derive(Debug)]
pub(crate) struct SnapshotReplay {
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<OsString, OsString>,
    pub(crate) state: InheritedFd,
}

impl ShellSnapshots {
    /// Rewrites a command to start from its login shell's state. Returns `None` if the command runs
    /// unchanged: no snapshot was requested, it does not apply, or the capture failed.
    pub(crate) async fn replay(
        &self,
        backend: &LocalBackend,
        command: &Command,
        cwd: &Path,
    ) -> Result<Option<SnapshotReplay>, StartError> {
        let Some(request) = &command.shell_snapshot else {
            return Ok(None);
        };
        let applied =
            applicable_shell(&command.argv, request).map_err(|error| StartError::Refused {
                field: "shellSnapshot",
                reason: error.to_string(),
            })?;
        // A custom `arg0` would become `$0` of the rewritten command.
        let (Some(kind), None) = (applied, &command.arg0) else {
            return Ok(None);
        };
        let sandbox = sandbox_of(command);
        let key = SnapshotKey {
            request: request.clone(),
            cwd: cwd.to_owned(),
            env_policy: command.env_policy.clone(),
            env: command.env.clone(),
            sandbox: sandbox
                .as_ref()
                .and_then(|sandbox| serde_json::to_string(sandbox).ok()),
        };
        let entry = {
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.get_or_insert_with(key, OnceCell::new)
        };
        let state = entry
            .get_or_init(|| capture_state(backend, command, request, kind, cwd))
            .await;
        let Some(state) = state else { return Ok(None) };
        let Ok(fd) = state.memory.try_clone() else {
            return Ok(None);
        };
        Ok(Some(SnapshotReplay {
            argv: rewrite_command(kind, &command.argv, i32::from(STATE_FD)),
            env: replay_environment(
                kind,
                &state.captured,
                command.env_policy.as_ref(),
                &backend.config.env,
                &command.env,
                &command.metadata,
            ),
            state: InheritedFd {
                fd,
                target: STATE_FD,
            },
        }))
    }
}

/// Returns the sandbox policy for running profiles: that of the command, without a managed network,
/// which does not exist yet.
fn sandbox_of(command: &Command) -> Option<SandboxPolicy> {
    let sandbox = command.sandbox.as_deref()?;
    Some(
        if command.network.enforced || command.network.proxy.is_some() {
            without_network(sandbox)
        } else {
            sandbox.clone()
        },
    )
}

async fn capture_state(
    backend: &LocalBackend,
    command: &Command,
    request: &ShellSnapshot,
    kind: ShellKind,
    cwd: &Path,
) -> Option<CachedState> {
    let argv = capture_argv(kind, &request.shell.path);
    let host = &backend.config.env;
    let policy = command.env_policy.as_ref();
    let env = child_environment(host, policy, &command.env, &ProcessMetadata::default());
    let env: Vec<(OsString, OsString)> = env.into_iter().collect();
    // Run the profiles under the command's policy.
    let prepared = match sandbox_of(command) {
        Some(sandbox) => {
            let prepared = prepare_sandbox(&backend.sandboxes, &sandbox, cwd, &env, None);
            prepared.await.ok()?
        }
        None => PreparedSandbox::default(),
    };
    let capture = CommandSpec {
        program: request.shell.path.clone().into(),
        argv: argv.into_iter().map(OsString::from).collect(),
        env,
        cwd: cwd.to_owned(),
        ..CommandSpec::default()
    };
    let launched = launch(
        &backend.spawner,
        ProcessLaunch::new(
            command.process_id.clone(),
            apply_sandbox(prepared, capture),
            LaunchStdio::Pipes,
            command.limits,
        ),
        RetentionLimits::default(),
    );
    let process: Arc<dyn ExecProcess> = launched.await.ok()?;
    let output = timeout(CAPTURE_TIMEOUT, collect(&*process)).await;
    let captured = output
        .ok()
        .flatten()
        .and_then(|output| parse_capture(&output));
    if captured.is_none() {
        tracing::debug!(
            shell = request.shell.path,
            "failed to capture the shell state"
        );
    }
    let captured = captured?;
    let memory = sealed_memfd(&captured.restore)
        .inspect_err(
            |error| tracing::debug!(%error, "failed to create the memfd for the shell state"),
        )
        .ok()?;
    Some(CachedState { captured, memory })
}

/// Collects standard output. Returns `None` beyond the size limit.
async fn collect(process: &dyn ExecProcess) -> Option<Vec<u8>> {
    let follow = FollowOptions {
        start: FollowStart::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    };
    let mut events = process.follow(follow);
    let mut output = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(chunk) if chunk.stream == OutputStream::Stdout => {
                output.extend_from_slice(&chunk.data);
                if output.len() > MAX_CAPTURE_BYTES {
                    return None;
                }
            }
            // Descendants of a profile may keep the output open after the shell exited.
            ExecProcessEvent::Exited(..) => return Some(output),
            ExecProcessEvent::Output(_)
            | ExecProcessEvent::Closed(_)
            | ExecProcessEvent::Failed(_) => {}
        }
    }
    None
}

/// Returns a sealed memfd with this content.
fn sealed_memfd(content: &[u8]) -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(memfd_create("shell-state", flags)?);
    file.write_all(content)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

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
mod cache_tests {
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
