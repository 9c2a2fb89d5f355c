//! Symbolic links and times of what is copied.
//!
//! The protocol neither reads nor makes links and sets no times, so programs of a server do: `find` and
//! `readlink`, `ln`, `touch`.
//! Invariant: links are made when everything else is copied, so that nothing is written through them.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs, io,
    ops::Bound,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use exec_env::{
    command::{Command, Io, Stdin},
    process::{Communicate, Communicated},
};
use exec_wire::{
    id::ProcessId,
    path_uri::PathUri,
    process::{EnvInherit, EnvPolicy},
};

use crate::command::{
    connect::ConnectedEnv,
    cp::endpoint::CopyEndpoint,
    failure::{CommandFailure, FailureKind},
    files::{metadata_if_exists, path_bytes},
};

/// Links or times that are set by one program. Even, and far below what `xargs` passes on at once.
const BATCH: usize = 1024;

/// What to do with links in a tree.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LinkMode {
    /// They are copied as links, wherever they lead.
    Keep,
    /// What they lead to is copied.
    Follow,
}

/// The links below a directory that is copied.
#[derive(Debug)]
pub(super) enum SourceLinks {
    /// They are followed.
    Followed,
    /// The directory is on this machine: each is read when it is asked for.
    Here,
    /// The directory is on a server: all of them, and where they lead.
    Listed(BTreeMap<Vec<u8>, Vec<u8>>),
}

impl SourceLinks {
    /// Finds the links below `root`.
    pub(super) async fn find(
        from: &CopyEndpoint,
        root: &PathUri,
        mode: LinkMode,
    ) -> Result<Self, CommandFailure> {
        let env = match (mode, &from.env) {
            (LinkMode::Follow, _) => return Ok(Self::Followed),
            (LinkMode::Keep, None) => return Ok(Self::Here),
            (LinkMode::Keep, Some(env)) => env,
        };
        // With the slash, a root that is a link is looked through.
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
            CommandFailure::new(FailureKind::Failed, what).next("`cp -L` copies what they lead to")
        })?;
        let mut words = listed.split(|&byte| byte == 0);
        let mut links = BTreeMap::new();
        while let (Some(link), Some(target)) = (words.next(), words.next()) {
            links.insert(link.to_vec(), target.to_vec());
        }
        Ok(Self::Listed(links))
    }

    /// Returns where a link leads; `None` if it is not a link, or links are followed.
    pub(super) fn target(&self, path: &PathUri) -> Option<Vec<u8>> {
        match self {
            Self::Followed => None,
            Self::Here => {
                let target = fs::read_link(path.to_native().ok()?).ok()?;
                Some(target.into_os_string().into_vec())
            }
            Self::Listed(links) => links.get(&path_bytes(path)).cloned(),
        }
    }

    /// Returns the names of listed links in a directory. A server's own listing leaves out those that
    /// lead nowhere.
    pub(super) fn names_in(&self, directory: &PathUri) -> Vec<Vec<u8>> {
        let Self::Listed(links) = self else {
            return Vec::new();
        };
        let mut prefix = path_bytes(directory);
        if !prefix.ends_with(b"/") {
            prefix.push(b'/');
        }
        let child_path = links.range::<[u8], _>((Bound::Included(&prefix[..]), Bound::Unbounded));
        let names = child_path.map_while(|(path, _)| path.strip_prefix(&prefix[..]));
        let names = names.filter(|name| !name.contains(&b'/'));
        names.map(<[u8]>::to_vec).collect()
    }
}

/// Links that are to be made, and times that are to be set, when everything else is copied.
#[derive(Debug, Default)]
pub(super) struct DeferredMetadata {
    links: RefCell<Vec<(PathUri, Vec<u8>)>>,
    times: RefCell<Vec<(PathUri, i64)>>,
}

impl DeferredMetadata {
    /// Notes a link, and where it leads.
    pub(super) fn add_link(&self, path: PathUri, target: Vec<u8>) {
        self.links.borrow_mut().push((path, target));
    }

    /// Notes a time, in milliseconds since the Unix epoch.
    pub(super) fn add_time(&self, path: &PathUri, modified_at_ms: i64) {
        self.times.borrow_mut().push((path.clone(), modified_at_ms));
    }

    /// Makes the links. Returns how many, and what could not be made.
    pub(super) async fn make_links(&self, to: &CopyEndpoint) -> (usize, Vec<CommandFailure>) {
        let mut failures = Vec::new();
        let mut links = Vec::new();
        for (path, target) in self.links.take() {
            match metadata_if_exists(&*to.files, &path).await {
                Ok(Some(found)) if found.is_directory && !found.is_symlink => {
                    let display_path = to.display(&path);
                    let what =
                        format!("`{display_path}` is a directory, and a link cannot replace it");
                    failures.push(CommandFailure::new(FailureKind::Failed, what));
                }
                _ => links.push((path, target)),
            }
        }
        let mut made = 0;
        for some in links.chunks(BATCH / 2) {
            let outcome = match &to.env {
                Some(env) => {
                    let words = some.iter().flat_map(|(path, target)| {
                        [&target[..], b"\0", &path_bytes(path), b"\0"].concat()
                    });
                    let line = ["-n", "2", "ln", "-sfn", "--"];
                    run_with_input(env, &line, words.collect::<Vec<u8>>()).await
                }
                None => some.iter().try_for_each(|(path, target)| {
                    let path = path.to_native().map_err(|error| error.to_string())?;
                    link_here(&path, target).map_err(|error| error.to_string())
                }),
            };
            match outcome {
                Ok(()) => made += some.len(),
                Err(why) => {
                    let display_path = to.display(&some[0].0);
                    let what = format!("cannot make links such as `{display_path}`: {why}");
                    let failure = CommandFailure::new(FailureKind::Failed, what);
                    failures.push(failure.next("`cp -L` copies what they lead to"));
                }
            }
        }
        (made, failures)
    }

    /// Sets the times, those of directories after those of what is in them.
    pub(super) async fn set_times(&self, to: &CopyEndpoint) -> Result<(), CommandFailure> {
        let mut times = self.times.take();
        times.sort_by_key(|(path, _)| std::cmp::Reverse(path.as_str().matches('/').count()));
        for some in times.chunks(BATCH / 2) {
            let outcome = match &to.env {
                Some(env) => {
                    let words = some.iter().flat_map(|(path, time)| {
                        let time =
                            format!("{}.{:03}", time.div_euclid(1000), time.rem_euclid(1000));
                        [time.as_bytes(), b"\0", &path_bytes(path), b"\0"].concat()
                    });
                    // Some know whole seconds only.
                    let script = "while [ $# -gt 1 ]; do touch -c -d \"@$1\" -- \"$2\" 2>/dev/null || \
                                  touch -c -d \"@${1%.*}\" -- \"$2\" || exit 1; shift 2; done";
                    let line = ["-n", "256", "sh", "-c", script, "sh"];
                    run_with_input(env, &line, words.collect::<Vec<u8>>()).await
                }
                None => some.iter().try_for_each(|(path, time)| {
                    let path = path.to_native().map_err(|error| error.to_string())?;
                    set_time_here(&path, *time).map_err(|error| error.to_string())
                }),
            };
            outcome.map_err(|why| {
                let display_path = to.display(&some[0].0);
                let what = format!("cannot set times such as that of `{display_path}`: {why}");
                CommandFailure::new(FailureKind::Failed, what)
            })?;
        }
        Ok(())
    }
}

/// Makes a link on this machine, in the place of a file or a link.
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

/// How long one may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often one is started: a connection may be cut meanwhile.
const ATTEMPTS: usize = 3;
/// What is kept of what it says: links of large trees among it.
const KEPT_BYTES: usize = 16 << 20;

/// Runs a program with paths behind its other words; doing it twice must be as good as once. Paths are
/// bytes, and words are text: so they go through `xargs`. Fails with one line.
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

/// Runs a program by `xargs` with words of any bytes, each followed by a NUL; doing it twice must be as
/// good as once. Fails with one line.
pub(super) async fn run_with_input(
    env: &ConnectedEnv,
    words: &[&str],
    input: Vec<u8>,
) -> Result<(), String> {
    let input = Bytes::from(input);
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        outcome = match run_once(env, words, input.clone()).await {
            Ok(said) if said.exit.as_ref().is_some_and(|exit| exit.code == 0) => return Ok(()),
            Ok(said) => Err(why(words, &said)),
            Err(error) => Err(error),
        };
    }
    outcome
}

/// Runs a program in the same way, and returns everything that it prints.
pub(super) async fn output_of(
    env: &ConnectedEnv,
    words: &[&str],
    input: Vec<u8>,
) -> Result<Vec<u8>, String> {
    let said = run_once(env, words, Bytes::from(input)).await?;
    if said.truncated() {
        return Err("there are too many".to_owned());
    }
    match said.exit.as_ref().is_some_and(|exit| exit.code == 0) {
        true => Ok(said.stdout.data.to_vec()),
        false => Err(why(words, &said)),
    }
}

/// Finds the links below a directory that lead nowhere, which no method lists. Directories behind links are
/// not entered, and what cannot be read is left out.
pub(super) async fn dangling_links(
    env: &ConnectedEnv,
    root: &PathUri,
) -> Result<Vec<Vec<u8>>, String> {
    let native = root.to_native().map_err(|error| error.to_string())?;
    // With the slash, a root that is a link is looked through.
    let input = [native.as_os_str().as_bytes(), b"/\0"].concat();
    let words = [
        "-I", "@ROOT@", "find", "@ROOT@", "-type", "l", "!", "-exec", "test", "-e", "{}", ";",
        "-print0",
    ];
    let said = run_once(env, &words, Bytes::from(input)).await?;
    let paths = said.stdout.data.split(|&byte| byte == 0);
    let paths = paths.filter(|path| !path.is_empty());
    Ok(paths.map(<[u8]>::to_vec).collect())
}

async fn run_once(
    env: &ConnectedEnv,
    words: &[&str],
    input: Bytes,
) -> Result<Communicated, String> {
    let id = format!("cp-{}", uuid::Uuid::new_v4().simple());
    let id = ProcessId::new(&id).map_err(|error| error.to_string())?;
    let mut argv = vec!["xargs", "-0"];
    argv.extend(words);
    let root = PathUri::parse("file:///").map_err(|error| error.to_string())?;
    let argv = argv.into_iter().map(str::to_owned).collect();
    let command = Command {
        io: Io::Pipes {
            stdin: Stdin::Piped,
        },
        env_policy: Some(EVERYTHING),
        ..Command::new(id, argv, root)
    };
    let started = env.environment().backend.start(command).await;
    let started = started.map_err(|error| error.to_string())?;
    let communicate = Communicate {
        max_bytes: KEPT_BYTES,
        time_limit: Some(TIMEOUT),
    };
    let said = started.process.communicate(input, communicate).await;
    said.map_err(|error| error.to_string())
}

/// Says in one line why a program failed.
fn why(words: &[&str], said: &Communicated) -> String {
    let Some(exit) = &said.exit else {
        return format!("`{}` did not end in time", words[0]);
    };
    let text = String::from_utf8_lossy(&said.stderr.data);
    match text.lines().next() {
        Some(line) => line.to_owned(),
        None => format!("`{}` ended with {}", words[0], exit.code),
    }
}

/// Where programs are is known to the server's environment.
const EVERYTHING: EnvPolicy = EnvPolicy {
    inherit: EnvInherit::All,
    ignore_default_excludes: true,
    exclude: Vec::new(),
    set: BTreeMap::new(),
    include_only: Vec::new(),
};
