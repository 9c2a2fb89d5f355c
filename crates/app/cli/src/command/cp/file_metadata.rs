//! Metadata of copied files: symbolic links, modification times and modes.
//!
//! The protocol neither reads nor creates links, and sets no times or modes of existing files, so
//! programs on the server do: `find`, `readlink`, `ln`, `touch` and `chmod`. `fs/writeFile` sets
//! the mode of a small file. Directories and files written in blocks are created with owner access
//! and receive their mode when complete.
//!
//! Invariants: links are created after everything else is copied, so nothing is written through
//! them; nothing is written into a directory that more users can access than its source.

use std::{
    cell::{Cell, RefCell},
    cmp::Reverse,
    collections::BTreeMap,
    fs, io,
    ops::Bound,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::PermissionsExt,
    },
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use exec_env::{
    environment::{Command, ProcessIo, StdinMode},
    process::{CommunicateOptions, CommunicateOutput},
};
use exec_wire::{
    id::ProcessId,
    path_uri::PathUri,
    process::{EnvInherit, EnvPolicy},
};

use crate::command::{
    connect::ConnectedEnv,
    cp::{endpoint::CopyEndpoint, staged_tree::TargetState},
    failure::{CommandFailure, FailureKind},
    files::{file_failure, metadata_if_exists, path_bytes},
};

/// Links, times or modes set by one command. Even, and far below the limit of `xargs`.
const BATCH: usize = 1024;

/// How links in a tree are treated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LinkMode {
    /// Copied as links.
    Keep,
    /// Replaced by what they point to.
    Follow,
}

/// Links below a source directory.
#[derive(Debug)]
pub(super) enum SourceLinks {
    /// Links are followed.
    Followed,
    /// Local directory: each link is read on demand.
    Local,
    /// Directory on a server: all links and their targets.
    Listed(BTreeMap<Vec<u8>, Vec<u8>>),
}

impl SourceLinks {
    /// Lists the links below `root`.
    pub(super) async fn find(
        from: &CopyEndpoint,
        root: &PathUri,
        mode: LinkMode,
    ) -> Result<Self, CommandFailure> {
        let env = match (mode, &from.env) {
            (LinkMode::Follow, _) => return Ok(Self::Followed),
            (LinkMode::Keep, None) => return Ok(Self::Local),
            (LinkMode::Keep, Some(env)) => env,
        };
        // The slash makes `find` follow a root that is a link.
        let input = [&path_bytes(root)[..], b"/\0"].concat();
        let script =
            "for link; do printf '%s\\0' \"$link\"; readlink -n -- \"$link\"; printf '\\0'; done";
        let words = [
            "-I", "@ROOT@", "find", "@ROOT@", "-type", "l", "-exec", "sh", "-c", script, "sh",
            "{}", "+",
        ];
        let listed = output_of(env, &words, input).await.map_err(|why| {
            let what = format!(
                "cannot list the links below `{}`: {why}",
                from.display(root)
            );
            CommandFailure::new(FailureKind::Failed, what)
                .next("`cp -L` copies the link targets instead")
        })?;
        let mut words = listed.split(|&byte| byte == 0);
        let mut links = BTreeMap::new();
        while let (Some(link), Some(target)) = (words.next(), words.next()) {
            links.insert(link.to_vec(), target.to_vec());
        }
        Ok(Self::Listed(links))
    }

    /// Returns the target of a link; `None` if it is not a link, or links are followed.
    pub(super) fn target(&self, path: &PathUri) -> Option<Vec<u8>> {
        match self {
            Self::Followed => None,
            Self::Local => {
                let target = fs::read_link(path.to_native().ok()?).ok()?;
                Some(target.into_os_string().into_vec())
            }
            Self::Listed(links) => links.get(&path_bytes(path)).cloned(),
        }
    }

    /// Returns the names of listed links in a directory. The server's own listing omits dangling
    /// links.
    pub(super) fn names_in(&self, directory: &PathUri) -> Vec<Vec<u8>> {
        let Self::Listed(links) = self else {
            return Vec::new();
        };
        let mut prefix = path_bytes(directory);
        if !prefix.ends_with(b"/") {
            prefix.push(b'/');
        }
        let below = links.range::<[u8], _>((Bound::Included(&prefix[..]), Bound::Unbounded));
        let names = below.map_while(|(path, _)| path.strip_prefix(&prefix[..]));
        let names = names.filter(|name| !name.contains(&b'/'));
        names.map(<[u8]>::to_vec).collect()
    }
}

/// Links to create and times to set after everything else is copied.
#[derive(Debug, Default)]
pub(super) struct DeferredMetadata {
    links: RefCell<Vec<(PathUri, Vec<u8>)>>,
    times: RefCell<Vec<(PathUri, i64)>>,
}

impl DeferredMetadata {
    /// Adds a link.
    pub(super) fn add_link(&self, path: PathUri, target: Vec<u8>) {
        self.links.borrow_mut().push((path, target));
    }

    /// Adds a modification time, in milliseconds since the Unix epoch.
    pub(super) fn add_time(&self, path: &PathUri, modified_at_ms: i64) {
        self.times.borrow_mut().push((path.clone(), modified_at_ms));
    }

    /// Creates the links. Returns their number, and failures.
    pub(super) async fn make_links(&self, to: &CopyEndpoint) -> (usize, Vec<CommandFailure>) {
        let mut failures = Vec::new();
        let mut links = Vec::new();
        for (path, target) in self.links.take() {
            match metadata_if_exists(&*to.files, &path).await {
                Ok(Some(found)) if found.is_directory && !found.is_symlink => {
                    let displayed = to.display(&path);
                    let what = format!("`{displayed}` is a directory; a link does not replace it");
                    failures.push(CommandFailure::new(FailureKind::Failed, what));
                }
                _ => links.push((path, target)),
            }
        }
        let mut created = 0;
        for batch in links.chunks(BATCH / 2) {
            let outcome = match &to.env {
                Some(env) => {
                    let words = batch.iter().flat_map(|(path, target)| {
                        [&target[..], b"\0", &path_bytes(path), b"\0"].concat()
                    });
                    let line = ["-n", "2", "ln", "-sfn", "--"];
                    run_with_input(env, &line, words.collect::<Vec<u8>>()).await
                }
                None => batch.iter().try_for_each(|(path, target)| {
                    let path = path.to_native().map_err(|error| error.to_string())?;
                    link_here(&path, target).map_err(|error| error.to_string())
                }),
            };
            match outcome {
                Ok(()) => created += batch.len(),
                Err(why) => {
                    let displayed = to.display(&batch[0].0);
                    let what = format!("cannot create links such as `{displayed}`: {why}");
                    let failure = CommandFailure::new(FailureKind::Failed, what);
                    failures.push(failure.next("`cp -L` copies the link targets instead"));
                }
            }
        }
        (created, failures)
    }

    /// Sets the times, children before their directories.
    pub(super) async fn set_times(&self, to: &CopyEndpoint) -> Result<(), CommandFailure> {
        let mut times = self.times.take();
        times.sort_by_key(|(path, _)| std::cmp::Reverse(path.as_str().matches('/').count()));
        for batch in times.chunks(BATCH / 2) {
            let outcome = match &to.env {
                Some(env) => {
                    let words = batch.iter().flat_map(|(path, time)| {
                        let time =
                            format!("{}.{:03}", time.div_euclid(1000), time.rem_euclid(1000));
                        [time.as_bytes(), b"\0", &path_bytes(path), b"\0"].concat()
                    });
                    // Some implementations of `touch` accept whole seconds only.
                    let script = "while [ $# -gt 1 ]; do touch -c -d \"@$1\" -- \"$2\" 2>/dev/null || \
                                  touch -c -d \"@${1%.*}\" -- \"$2\" || exit 1; shift 2; done";
                    let line = ["-n", "256", "sh", "-c", script, "sh"];
                    run_with_input(env, &line, words.collect::<Vec<u8>>()).await
                }
                None => batch.iter().try_for_each(|(path, time)| {
                    let path = path.to_native().map_err(|error| error.to_string())?;
                    set_time_here(&path, *time).map_err(|error| error.to_string())
                }),
            };
            outcome.map_err(|why| {
                let displayed = to.display(&batch[0].0);
                let what = format!("cannot set the times of files such as `{displayed}`: {why}");
                CommandFailure::new(FailureKind::Failed, what)
            })?;
        }
        Ok(())
    }
}

/// Creates a local link, replacing a file or a link.
fn link_here(path: &Path, target: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), path)
}

fn set_time_here(path: &Path, modified_at_ms: i64) -> io::Result<()> {
    let since = Duration::from_millis(modified_at_ms.unsigned_abs());
    let time = match modified_at_ms < 0 {
        true => UNIX_EPOCH - since,
        false => UNIX_EPOCH + since,
    };
    fs::File::open(path)?.set_modified(time)
}

/// All permission bits.
const PERMISSION_BITS: u32 = 0o777;
/// Mode bits the owner needs to fill a directory.
const OWNER_BITS: u32 = 0o700;
/// Mode bits others need to traverse a directory.
const TRAVERSE_BITS: u32 = 0o011;

/// Whether other users can reach a directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Traversal {
    /// As far as is known.
    Open,
    /// A parent directory prevents it.
    Closed,
}

/// Sets modes on one endpoint.
#[derive(Debug)]
pub(super) struct FileModes<'a> {
    to: &'a CopyEndpoint,
    /// Default mode of new directories there.
    default_mode: Cell<Option<u32>>,
    /// Modes to set after everything is copied.
    deferred: RefCell<Vec<(PathUri, u32)>>,
}

impl<'a> FileModes<'a> {
    pub(super) fn new(to: &'a CopyEndpoint) -> Self {
        Self {
            to,
            default_mode: Cell::default(),
            deferred: RefCell::default(),
        }
    }

    /// Restricts a new directory to what its source allows others. The owner keeps write access
    /// until [`apply_deferred`](Self::apply_deferred). Returns whether others can reach its
    /// contents.
    pub(super) async fn restrict_directory(
        &self,
        directory: &PathUri,
        source_mode: Option<u32>,
        target_state: TargetState,
        above: Traversal,
    ) -> Result<Traversal, CommandFailure> {
        let Some(source_mode) = source_mode.map(|mode| mode & PERMISSION_BITS) else {
            return Ok(above);
        };
        let needed = source_mode | OWNER_BITS;
        let Some(current) = self.current_mode(directory, target_state).await? else {
            return Ok(above);
        };
        let is_too_open = current & !needed != 0;
        let new_mode = if current != needed
            && (self.to.env.is_none() || is_too_open && above == Traversal::Open)
        {
            self.set(needed, &[directory]).await?;
            needed
        } else {
            current
        };
        if new_mode != source_mode {
            self.deferred
                .borrow_mut()
                .push((directory.clone(), source_mode));
            if self.deferred.borrow().len() >= BATCH {
                self.set_deferred(|mode| mode & OWNER_BITS == OWNER_BITS)
                    .await?;
            }
        }
        Ok(match new_mode & TRAVERSE_BITS {
            0 => Traversal::Closed,
            _ => above,
        })
    }

    /// Sets the final modes of complete directories.
    pub(super) async fn apply_deferred(&self) -> Result<(), CommandFailure> {
        self.set_deferred(|_| true).await
    }

    /// Sets the mode of a file that was written in blocks.
    pub(super) async fn apply_modes(
        &self,
        file: &PathUri,
        mode: u32,
    ) -> Result<(), CommandFailure> {
        self.set(mode & PERMISSION_BITS, &[file]).await
    }

    /// Returns the mode of a directory; `None` if the server does not report it.
    async fn current_mode(
        &self,
        directory: &PathUri,
        target_state: TargetState,
    ) -> Result<Option<u32>, CommandFailure> {
        if let (TargetState::New, Some(default_mode)) = (target_state, self.default_mode.get()) {
            return Ok(Some(default_mode));
        }
        let found = metadata_if_exists(&*self.to.files, directory).await;
        let found = found.map_err(|error| file_failure(&error))?;
        let mode = found
            .and_then(|found| found.mode)
            .map(|mode| mode & PERMISSION_BITS);
        if target_state == TargetState::New {
            self.default_mode.set(mode);
        }
        Ok(mode)
    }

    async fn set_deferred(&self, which: impl Fn(u32) -> bool) -> Result<(), CommandFailure> {
        let all = self.deferred.take();
        let (mut due, remaining): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, mode)| which(*mode));
        *self.deferred.borrow_mut() = remaining;
        // Deepest first: a parent may lose owner access.
        due.sort_by_key(|(path, mode)| (Reverse(path.as_str().matches('/').count()), *mode));
        for group in due.chunk_by(|(_, one), (_, other)| one == other) {
            let paths: Vec<_> = group.iter().map(|(path, _)| path).collect();
            self.set(group[0].1, &paths).await?;
        }
        Ok(())
    }

    async fn set(&self, mode: u32, paths: &[&PathUri]) -> Result<(), CommandFailure> {
        let failed = |why: &dyn std::fmt::Display| {
            let displayed = self.to.display(paths[0]);
            let what = format!("cannot set mode {mode:03o} of `{displayed}`: {why}");
            CommandFailure::new(FailureKind::Failed, what)
        };
        if let Some(env) = &self.to.env {
            let mode = format!("{mode:04o}");
            let set = run_with_paths(env, &["chmod", &mode, "--"], paths).await;
            return set.map_err(|error| failed(&error));
        }
        for path in paths {
            let native = path.to_native().map_err(|error| failed(&error))?;
            let set = fs::set_permissions(native, fs::Permissions::from_mode(mode));
            set.map_err(|error| failed(&error))?;
        }
        Ok(())
    }
}

/// Limit for one command.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum starts of a command: the connection may be lost meanwhile.
const MAX_RETRIES: usize = 3;
/// Maximum retained output, which includes the link list of large trees.
const MAX_OUTPUT_BYTES: usize = 16 << 20;

/// Runs an idempotent command with paths as its last arguments. Passes them through `xargs`,
/// because arguments are text and paths are bytes. Errors are one line.
pub(super) async fn run_with_paths(
    env: &ConnectedEnv,
    words: &[&str],
    paths: &[&PathUri],
) -> Result<(), String> {
    let mut input = Vec::new();
    for path in paths {
        let native = path.to_native().map_err(|error| error.to_string())?;
        input.extend_from_slice(native.as_os_str().as_bytes());
        input.push(0);
    }
    run_with_input(env, words, input).await
}

/// Runs an idempotent command through `xargs` with NUL-terminated arguments of arbitrary bytes.
/// Errors are one line.
pub(super) async fn run_with_input(
    env: &ConnectedEnv,
    words: &[&str],
    input: Vec<u8>,
) -> Result<(), String> {
    let input = Bytes::from(input);
    let mut outcome = Ok(());
    for _ in 0..MAX_RETRIES {
        outcome = match run_once(env, words, input.clone()).await {
            Ok(output) if output.exit.as_ref().is_some_and(|exit| exit.code == 0) => return Ok(()),
            Ok(output) => Err(failure_reason(words, &output)),
            Err(error) => Err(error),
        };
    }
    outcome
}

/// Runs a command in the same way and returns its output.
pub(super) async fn output_of(
    env: &ConnectedEnv,
    words: &[&str],
    input: Vec<u8>,
) -> Result<Vec<u8>, String> {
    let output = run_once(env, words, Bytes::from(input)).await?;
    if output.truncated() {
        return Err("there are too many links".to_owned());
    }
    match output.exit.as_ref().is_some_and(|exit| exit.code == 0) {
        true => Ok(output.stdout.data.to_vec()),
        false => Err(failure_reason(words, &output)),
    }
}

/// Finds dangling links below a directory, which no method lists. Does not follow links to
/// directories; skips what cannot be read.
pub(super) async fn dangling_links(
    env: &ConnectedEnv,
    root: &PathUri,
) -> Result<Vec<Vec<u8>>, String> {
    let native = root.to_native().map_err(|error| error.to_string())?;
    // The slash makes `find` follow a root that is a link.
    let input = [native.as_os_str().as_bytes(), b"/\0"].concat();
    let words = [
        "-I", "@ROOT@", "find", "@ROOT@", "-type", "l", "!", "-exec", "test", "-e", "{}", ";",
        "-print0",
    ];
    let output = run_once(env, &words, Bytes::from(input)).await?;
    let paths = output.stdout.data.split(|&byte| byte == 0);
    let paths = paths.filter(|path| !path.is_empty());
    Ok(paths.map(<[u8]>::to_vec).collect())
}

async fn run_once(
    env: &ConnectedEnv,
    words: &[&str],
    input: Bytes,
) -> Result<CommunicateOutput, String> {
    let id = format!("cp-{}", uuid::Uuid::new_v4().simple());
    let id = ProcessId::new(&id).map_err(|error| error.to_string())?;
    let mut argv = vec!["xargs", "-0"];
    argv.extend(words);
    let root = PathUri::parse("file:///").map_err(|error| error.to_string())?;
    let argv = argv.into_iter().map(str::to_owned).collect();
    let command = Command {
        io: ProcessIo::Pipes {
            stdin: StdinMode::Piped,
        },
        env_policy: Some(INHERIT_ALL),
        ..Command::new(id, argv, root)
    };
    let started = env.environment().backend.start(command).await;
    let started = started.map_err(|error| error.to_string())?;
    let communicate = CommunicateOptions {
        max_bytes: MAX_OUTPUT_BYTES,
        time_limit: Some(TIMEOUT),
    };
    let output = started.process.communicate(input, communicate).await;
    output.map_err(|error| error.to_string())
}

/// Explains in one line why a command failed.
fn failure_reason(words: &[&str], output: &CommunicateOutput) -> String {
    let Some(exit) = &output.exit else {
        return format!("`{}` did not exit in time", words[0]);
    };
    let text = String::from_utf8_lossy(&output.stderr.data);
    match text.lines().next() {
        Some(line) => line.to_owned(),
        None => format!("`{}` exited with {}", words[0], exit.code),
    }
}

/// The server's environment has the right `PATH`.
const INHERIT_ALL: EnvPolicy = EnvPolicy {
    inherit: EnvInherit::All,
    ignore_default_excludes: true,
    exclude: Vec::new(),
    set: BTreeMap::new(),
    include_only: Vec::new(),
};
