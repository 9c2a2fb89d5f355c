//! Runs commands through bubblewrap, on hosts where the server cannot create namespaces itself.
//!
//! Bubblewrap starts with an empty environment, so that no variable of the command affects it. The
//! command's environment and the view are passed through a descriptor, where other accounts cannot
//! read them.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::{Path, PathBuf},
    process::Stdio,
};

use exec_process::spawner::InheritedFd;
use exec_spawn::sandbox_setup::FilterInstruction;
use tokio::{
    io::AsyncReadExt,
    time::{Instant, timeout_at},
};

use crate::{
    abilities::ProbeOutcome,
    enforcement::{BubblewrapSpec, ProcessIsolation},
    mount_steps::{pinned_directories, writable_host_settings},
    plan::{FileView, NetworkScope, PathAccess, PathKind, ViewLayer},
};

/// Descriptors that bubblewrap reads its options and the seccomp filter from.
const ARGUMENTS_FD: u8 = 20;
const FILTER_FD: u8 = 21;

/// Command line that starts a command through bubblewrap.
#[derive(Debug)]
pub struct BubblewrapCommand {
    /// Path of bubblewrap.
    pub program: PathBuf,
    /// Arguments for bubblewrap; the command's arguments follow.
    pub arguments: Vec<OsString>,
    /// Descriptors that bubblewrap reads from.
    pub extra: Vec<InheritedFd>,
}

impl BubblewrapCommand {
    /// Prepares bubblewrap for a command with this environment.
    pub(crate) fn new(
        spec: BubblewrapSpec,
        env: &[(OsString, OsString)],
        cwd: &OsStr,
    ) -> io::Result<Self> {
        let mut arguments = options(&spec.view, spec.network, spec.processes);
        for (name, value) in env {
            arguments.extend([OsString::from("--setenv"), name.clone(), value.clone()]);
        }
        arguments.extend([OsString::from("--chdir"), cwd.to_owned()]);
        arguments.extend([OsString::from("--seccomp"), FILTER_FD.to_string().into()]);
        let mut text = Vec::new();
        for argument in arguments {
            text.extend_from_slice(&argument.into_vec());
            text.push(0);
        }
        let program = spec
            .filter
            .iter()
            .flat_map(encode_instruction)
            .collect::<Vec<u8>>();
        Ok(Self {
            program: spec.program,
            arguments: [
                "--args".into(),
                ARGUMENTS_FD.to_string().into(),
                "--".into(),
            ]
            .to_vec(),
            extra: vec![
                InheritedFd {
                    fd: memory_file(&text)?,
                    target: ARGUMENTS_FD,
                },
                InheritedFd {
                    fd: memory_file(&program)?,
                    target: FILTER_FD,
                },
            ],
        })
    }
}

/// Returns the options that build a view.
fn options(view: &FileView, network: NetworkScope, processes: ProcessIsolation) -> Vec<OsString> {
    let mut options = ArgumentList(Vec::new());
    options.push_words(["--unshare-user", "--unshare-ipc", "--die-with-parent"]);
    options.push_words(["--cap-drop", "ALL"]);
    if processes == ProcessIsolation::Isolated {
        options.push_words(["--unshare-pid"]);
    }
    if network == NetworkScope::None {
        options.push_words(["--unshare-net"]);
    }
    let all_writable = view
        .layers
        .first()
        .is_some_and(|layer| layer.path == OsStr::new("/") && layer.access == PathAccess::Write);
    match (view.base, all_writable) {
        (_, true) => options.push_words(["--bind", "/", "/"]),
        (PathAccess::Hidden, false) => {}
        (PathAccess::Read | PathAccess::Write, false) => {
            options.push_words(["--ro-bind", "/", "/"])
        }
    }
    options.push_words(["--dev", "/dev"]);
    if processes == ProcessIsolation::Isolated {
        options.push_words(["--proc", "/proc"]);
        options.0.extend(protect_host_settings());
    }
    // Layers below these paths would expose the host's devices and processes again.
    let is_pseudo = |path: &Path| {
        let devices = path.starts_with("/dev") && !path.starts_with("/dev/shm");
        devices || (processes == ProcessIsolation::Isolated && path.starts_with("/proc"))
    };
    let layers = view.layers.iter().filter(|layer| !is_pseudo(&layer.path));
    let mut layers: Vec<ViewLayer> = layers.cloned().collect();
    layers.extend(pinned_directories(view).into_iter().map(|path| ViewLayer {
        path,
        kind: PathKind::Directory,
        access: PathAccess::Write,
    }));
    layers.sort_by_key(|layer| layer.path.components().count());
    for layer in &layers {
        options.push_layer(layer);
    }
    for (link, target) in &view.links {
        options.push_words(["--symlink"]);
        options.0.extend([target.into(), link.into()]);
    }
    options.0
}

/// Returns options that make host settings in a new `/proc` read-only. Uid 0 could write them
/// without any capability. Bubblewrap fails if it cannot bind them, so no command runs unprotected.
pub(crate) fn protect_host_settings() -> Vec<OsString> {
    let bind = |path: PathBuf| {
        [
            OsString::from("--ro-bind"),
            path.clone().into(),
            path.into(),
        ]
    };
    writable_host_settings().flat_map(bind).collect()
}

struct ArgumentList(Vec<OsString>);

impl ArgumentList {
    fn push_words<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.map(OsString::from));
    }

    fn push_layer(&mut self, layer: &ViewLayer) {
        let path = || layer.path.clone().into_os_string();
        if layer.path == OsStr::new("/") {
            return;
        }
        match (layer.access, layer.kind) {
            (PathAccess::Write, _) => {
                self.push_words(["--bind-try"]);
                self.0.extend([path(), path()]);
            }
            (PathAccess::Read, _) => {
                self.push_words(["--ro-bind"]);
                self.0.extend([path(), path()]);
            }
            (PathAccess::Hidden, PathKind::Directory) => {
                self.push_words(["--perms", "0111", "--tmpfs"]);
                self.0.push(path());
                self.push_words(["--remount-ro"]);
                self.0.push(path());
            }
            (PathAccess::Hidden, PathKind::File) => {
                // A device node on a `nodev` mount: it exists, but cannot be opened.
                self.push_words(["--ro-bind", "/dev/null"]);
                self.0.push(path());
            }
        }
    }
}

fn encode_instruction(instruction: &FilterInstruction) -> [u8; 8] {
    let [a, b] = instruction.code.to_ne_bytes();
    let [c, d, e, f] = instruction.k.to_ne_bytes();
    [a, b, instruction.if_true, instruction.if_false, c, d, e, f]
}

fn memory_file(content: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create(c"exec-server", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory);
    file.write_all(content)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

/// Install locations of distributions. `PATH` is not searched: it may contain directories of
/// others.
const INSTALL_PATHS: [&str; 3] = ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"];
/// Limit for the part of stderr that is read.
const MAX_STDERR_BYTES: u64 = 4096;
/// Limit for the part of stderr that is shown.
const MAX_SHOWN_CHARS: usize = 200;
/// Options that a sandbox uses at most.
const PROBE_ARGUMENTS: [&str; 14] = [
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-net",
    "--die-with-parent",
    "--cap-drop",
    "ALL",
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
];

/// Returns the path of the installed program.
pub(crate) fn find_program() -> Option<PathBuf> {
    let installed = INSTALL_PATHS
        .iter()
        .map(Path::new)
        .find(|path| path.is_file());
    installed.map(Path::to_owned)
}

/// Makes bubblewrap sandbox `bwrap --version`: the program surely exists and ends.
pub(crate) async fn probe_bubblewrap(path: &Path, deadline: Instant) -> ProbeOutcome {
    let child = tokio::process::Command::new(path)
        .args(PROBE_ARGUMENTS)
        .args(protect_host_settings())
        .arg("--")
        .arg(path)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return ProbeOutcome::Fails(format!("cannot run bwrap: {error}")),
    };
    let mut words = Vec::new();
    let exit = async {
        if let Some(stderr) = child.stderr.take() {
            stderr
                .take(MAX_STDERR_BYTES)
                .read_to_end(&mut words)
                .await?;
        }
        child.wait().await
    };
    match timeout_at(deadline, exit).await {
        Ok(Ok(status)) if status.success() => ProbeOutcome::Works,
        Ok(Ok(status)) => {
            let words = String::from_utf8_lossy(&words);
            match words.lines().find(|line| !line.trim().is_empty()) {
                Some(line) => {
                    ProbeOutcome::Fails(line.trim().chars().take(MAX_SHOWN_CHARS).collect())
                }
                None => ProbeOutcome::Fails(format!("bwrap failed without a message ({status})")),
            }
        }
        Ok(Err(error)) => ProbeOutcome::Fails(format!("cannot run bwrap: {error}")),
        Err(_) => ProbeOutcome::Fails("bwrap timed out".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(view: &FileView, network: NetworkScope) -> String {
        let options = options(view, network, ProcessIsolation::Isolated);
        let joined = |words: &[OsString]| {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        let protection = joined(&protect_host_settings());
        assert!(
            protection.contains("--ro-bind /proc/sys /proc/sys"),
            "{protection}"
        );
        joined(&options).replace(&protection, "PROTECTION")
    }

    fn layer(path: &str, kind: PathKind, access: PathAccess) -> ViewLayer {
        ViewLayer {
            path: path.into(),
            kind,
            access,
        }
    }

    #[test]
    fn arguments_bind_layers_from_the_root_down() {
        let view = FileView {
            base: PathAccess::Read,
            layers: vec![
                layer("/w", PathKind::Directory, PathAccess::Write),
                layer("/w/.git", PathKind::Directory, PathAccess::Read),
                layer("/w/secret", PathKind::File, PathAccess::Hidden),
            ],
            forbidden: Vec::new(),
            links: Vec::new(),
        };
        assert_eq!(
            words(&view, NetworkScope::None),
            "--unshare-user --unshare-ipc --die-with-parent --cap-drop ALL --unshare-pid --unshare-net \
             --ro-bind / / --dev /dev --proc /proc PROTECTION --bind-try /w /w --ro-bind /w/.git /w/.git \
             --ro-bind /dev/null /w/secret"
        );
    }

    #[test]
    fn layers_do_not_expose_host_devices_or_processes() {
        let view = FileView {
            base: PathAccess::Read,
            layers: vec![
                layer("/", PathKind::Directory, PathAccess::Write),
                layer("/dev", PathKind::Directory, PathAccess::Write),
                layer("/dev/shm", PathKind::Directory, PathAccess::Write),
                layer("/proc/sys", PathKind::Directory, PathAccess::Write),
            ],
            forbidden: Vec::new(),
            links: Vec::new(),
        };
        let words = words(&view, NetworkScope::Host);
        assert!(
            words.ends_with(
                "--bind / / --dev /dev --proc /proc PROTECTION --bind-try /dev/shm /dev/shm"
            ),
            "{words}"
        );
    }

    #[test]
    fn hidden_base_has_only_layers_and_links() {
        let view = FileView {
            base: PathAccess::Hidden,
            layers: vec![layer("/usr", PathKind::Directory, PathAccess::Read)],
            forbidden: Vec::new(),
            links: vec![("/bin".into(), "usr/bin".into())],
        };
        let words = words(&view, NetworkScope::Host);
        assert!(
            !words.contains("--unshare-net") && !words.contains("--ro-bind / /"),
            "{words}"
        );
        assert!(
            words.ends_with("--ro-bind /usr /usr --symlink usr/bin /bin"),
            "{words}"
        );
    }

    #[test]
    fn instructions_have_the_kernel_layout() {
        let instruction = FilterInstruction {
            code: 0x15,
            if_true: 1,
            if_false: 2,
            k: 0xc000_003e,
        };
        assert_eq!(encode_instruction(&instruction)[..4], [0x15, 0, 1, 2]);
        assert_eq!(
            encode_instruction(&instruction)[4..],
            0xc000_003e_u32.to_ne_bytes()
        );
    }
}
