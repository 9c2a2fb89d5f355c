//! Bubblewrap: what it is told, for machines where namespaces are not ours to make.
//!
//! It runs with an empty environment, so that nothing of the command's reaches it; the environment and
//! the view travel through a descriptor, where other accounts do not see them.
//!
//! Tries bubblewrap as it would be used.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::{Path, PathBuf},
    process::Stdio,
};

use exec_process::spawner::Extra;
use exec_spawn::enclosure::Instruction;
use tokio::{
    io::AsyncReadExt,
    time::{Instant, timeout_at},
};

use crate::{
    abilities::Ability,
    enforcement::{BubblewrapOrder, Processes},
    mount_steps::{host_settings, pins},
    plan::{Access, Kind, Layer, Network, View},
};

/// The descriptors that bubblewrap reads from.
const ARGUMENTS_FD: u8 = 20;
const FILTER_FD: u8 = 21;

/// How a command is started through bubblewrap.
#[derive(Debug)]
pub struct Wrapper {
    /// Where bubblewrap is.
    pub program: PathBuf,
    /// Its own arguments; the command's follow.
    pub arguments: Vec<OsString>,
    /// What it reads from.
    pub extra: Vec<Extra>,
}

impl Wrapper {
    /// Prepares bubblewrap for a command with this environment.
    pub(crate) fn new(
        order: BubblewrapOrder,
        env: &[(OsString, OsString)],
        cwd: &OsStr,
    ) -> io::Result<Self> {
        let mut arguments = options(&order.view, order.network, order.processes);
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
        let program = order.filter.iter().flat_map(encoded).collect::<Vec<u8>>();
        Ok(Self {
            program: order.program,
            arguments: [
                "--args".into(),
                ARGUMENTS_FD.to_string().into(),
                "--".into(),
            ]
            .to_vec(),
            extra: vec![
                Extra {
                    fd: in_memory(&text)?,
                    target: ARGUMENTS_FD,
                },
                Extra {
                    fd: in_memory(&program)?,
                    target: FILTER_FD,
                },
            ],
        })
    }
}

/// The options of a view.
fn options(view: &View, network: Network, processes: Processes) -> Vec<OsString> {
    let mut options = Options(Vec::new());
    options.words(["--unshare-user", "--unshare-ipc", "--die-with-parent"]);
    options.words(["--cap-drop", "ALL"]);
    if processes == Processes::Isolated {
        options.words(["--unshare-pid"]);
    }
    if network == Network::None {
        options.words(["--unshare-net"]);
    }
    let all_writable = view
        .layers
        .first()
        .is_some_and(|layer| layer.path == OsStr::new("/") && layer.access == Access::Write);
    match (view.base, all_writable) {
        (_, true) => options.words(["--bind", "/", "/"]),
        (Access::Hidden, false) => {}
        (Access::Read | Access::Write, false) => options.words(["--ro-bind", "/", "/"]),
    }
    options.words(["--dev", "/dev"]);
    if processes == Processes::Isolated {
        options.words(["--proc", "/proc"]);
        options.0.extend(settings_protection());
    }
    // Layers in these would bring the host's devices and processes back.
    let fitted = |path: &Path| {
        let devices = path.starts_with("/dev") && !path.starts_with("/dev/shm");
        devices || (processes == Processes::Isolated && path.starts_with("/proc"))
    };
    let layers = view.layers.iter().filter(|layer| !fitted(&layer.path));
    let mut layers: Vec<Layer> = layers.cloned().collect();
    layers.extend(pins(view).into_iter().map(|path| Layer {
        path,
        kind: Kind::Directory,
        access: Access::Write,
    }));
    layers.sort_by_key(|layer| layer.path.components().count());
    for layer in &layers {
        options.layer(layer);
    }
    for (link, target) in &view.links {
        options.words(["--symlink"]);
        options.0.extend([target.into(), link.into()]);
    }
    options.0
}

/// Options that make settings of the host read-only in a new `/proc`, where uid 0 may write them
/// without any capability. Bubblewrap fails if it cannot, so that nothing runs without.
pub(crate) fn settings_protection() -> Vec<OsString> {
    let bind = |path: PathBuf| {
        [
            OsString::from("--ro-bind"),
            path.clone().into(),
            path.into(),
        ]
    };
    host_settings().flat_map(bind).collect()
}

struct Options(Vec<OsString>);

impl Options {
    fn words<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.map(OsString::from));
    }

    fn layer(&mut self, layer: &Layer) {
        let path = || layer.path.clone().into_os_string();
        if layer.path == OsStr::new("/") {
            return;
        }
        match (layer.access, layer.kind) {
            (Access::Write, _) => {
                self.words(["--bind-try"]);
                self.0.extend([path(), path()]);
            }
            (Access::Read, _) => {
                self.words(["--ro-bind"]);
                self.0.extend([path(), path()]);
            }
            (Access::Hidden, Kind::Directory) => {
                self.words(["--perms", "0111", "--tmpfs"]);
                self.0.push(path());
                self.words(["--remount-ro"]);
                self.0.push(path());
            }
            (Access::Hidden, Kind::File) => {
                // A device on a mount without devices: it is there, and cannot be opened.
                self.words(["--ro-bind", "/dev/null"]);
                self.0.push(path());
            }
        }
    }
}

fn encoded(instruction: &Instruction) -> [u8; 8] {
    let [a, b] = instruction.code.to_ne_bytes();
    let [c, d, e, f] = instruction.k.to_ne_bytes();
    [a, b, instruction.if_true, instruction.if_false, c, d, e, f]
}

fn in_memory(content: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create(c"exec-server", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory);
    file.write_all(content)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

/// Where distributions put it. Not `PATH`, which may be anybody's.
const PLACES: [&str; 3] = ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"];
/// How much of what it says is read.
const WORDS: u64 = 4096;
/// How much of it is shown.
const SHOWN: usize = 200;
/// What a sandbox of ours asks of it at most.
const ARGUMENTS: [&str; 14] = [
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

/// Returns where it is.
pub(crate) fn find() -> Option<PathBuf> {
    let found = PLACES.iter().map(Path::new).find(|path| path.is_file());
    found.map(Path::to_owned)
}

/// Makes it enclose itself: a program that is surely there, and surely ends.
pub(crate) async fn attempt(path: &Path, until: Instant) -> Ability {
    let child = tokio::process::Command::new(path)
        .args(ARGUMENTS)
        .args(settings_protection())
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
        Err(error) => return Ability::Fails(format!("cannot run bwrap: {error}")),
    };
    let mut words = Vec::new();
    let ended = async {
        if let Some(stderr) = child.stderr.take() {
            stderr.take(WORDS).read_to_end(&mut words).await?;
        }
        child.wait().await
    };
    match timeout_at(until, ended).await {
        Ok(Ok(status)) if status.success() => Ability::Works,
        Ok(Ok(status)) => {
            let words = String::from_utf8_lossy(&words);
            match words.lines().find(|line| !line.trim().is_empty()) {
                Some(line) => Ability::Fails(line.trim().chars().take(SHOWN).collect()),
                None => Ability::Fails(format!("bwrap ended without a word, with {status}")),
            }
        }
        Ok(Err(error)) => Ability::Fails(format!("cannot run bwrap: {error}")),
        Err(_) => Ability::Fails("bwrap did not end in time".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(view: &View, network: Network) -> String {
        let options = options(view, network, Processes::Isolated);
        let joined = |words: &[OsString]| {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        let protection = joined(&settings_protection());
        assert!(
            protection.contains("--ro-bind /proc/sys /proc/sys"),
            "{protection}"
        );
        joined(&options).replace(&protection, "PROTECTION")
    }

    fn layer(path: &str, kind: Kind, access: Access) -> Layer {
        Layer {
            path: path.into(),
            kind,
            access,
        }
    }

    #[test]
    fn a_view_is_told_from_the_root_down() {
        let view = View {
            base: Access::Read,
            layers: vec![
                layer("/w", Kind::Directory, Access::Write),
                layer("/w/.git", Kind::Directory, Access::Read),
                layer("/w/secret", Kind::File, Access::Hidden),
            ],
            forbidden: Vec::new(),
            links: Vec::new(),
        };
        assert_eq!(
            words(&view, Network::None),
            "--unshare-user --unshare-ipc --die-with-parent --cap-drop ALL --unshare-pid --unshare-net \
             --ro-bind / / --dev /dev --proc /proc PROTECTION --bind-try /w /w --ro-bind /w/.git /w/.git \
             --ro-bind /dev/null /w/secret"
        );
    }

    #[test]
    fn devices_and_processes_of_the_host_do_not_come_back_with_a_layer() {
        let view = View {
            base: Access::Read,
            layers: vec![
                layer("/", Kind::Directory, Access::Write),
                layer("/dev", Kind::Directory, Access::Write),
                layer("/dev/shm", Kind::Directory, Access::Write),
                layer("/proc/sys", Kind::Directory, Access::Write),
            ],
            forbidden: Vec::new(),
            links: Vec::new(),
        };
        let words = words(&view, Network::Host);
        assert!(
            words.ends_with(
                "--bind / / --dev /dev --proc /proc PROTECTION --bind-try /dev/shm /dev/shm"
            ),
            "{words}"
        );
    }

    #[test]
    fn a_view_from_nothing_has_only_its_layers_and_links() {
        let view = View {
            base: Access::Hidden,
            layers: vec![layer("/usr", Kind::Directory, Access::Read)],
            forbidden: Vec::new(),
            links: vec![("/bin".into(), "usr/bin".into())],
        };
        let words = words(&view, Network::Host);
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
    fn instructions_are_laid_out_as_the_kernel_reads_them() {
        let instruction = Instruction {
            code: 0x15,
            if_true: 1,
            if_false: 2,
            k: 0xc000_003e,
        };
        assert_eq!(encoded(&instruction)[..4], [0x15, 0, 1, 2]);
        assert_eq!(encoded(&instruction)[4..], 0xc000_003e_u32.to_ne_bytes());
    }
}
