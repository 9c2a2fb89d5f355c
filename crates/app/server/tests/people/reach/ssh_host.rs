//! A real `sshd` on loopback, and an account that has busybox only: no profile that works, no
//! Python, no compiler. As root the account is a temporary one without privileges; otherwise it is
//! the account of the tests with another home.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{self, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::test_user::{TIMEOUT, TestUser, keeper_of, product, within_timeout};

/// How often another port is tried, if some other program has taken it.
const PORT_ATTEMPTS: u32 = 8;

/// A host. Dropping it ends `sshd`, the servers of the account, and the account.
pub(super) struct SshHost {
    directory: tempfile::TempDir,
    account: Account,
    address: SocketAddr,
    sshd: Child,
}

impl SshHost {
    /// Starts a host whose account has busybox, and a profile that prints noise.
    pub(super) async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a host with more lines for the configuration of `sshd`.
    pub(super) async fn start_with(settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        let bin = root.join("bin");
        fs::create_dir(&bin).unwrap();
        let busybox = Path::new("/bin/busybox");
        for applet in APPLETS {
            symlink(busybox, bin.join(applet)).unwrap();
        }
        let home = root.join("home");
        fs::create_dir(&home).unwrap();
        let account = Account::create(&home, &bin.join("sh"));
        for key in ["host_key", "user_key"] {
            generate_key(&root.join(key));
        }
        // Like a login shell with a broken profile.
        let login = format!(
            "#!{bin}/sh\n\
             umask 027\n\
             export PATH={bin} HOME={home} EXEC_SERVER_IDLE_EXIT=60\n\
             unset XDG_RUNTIME_DIR SSH_CONNECTION\n\
             printf 'Welcome!\\nexec-server:nonsense run kept /bin/false\\nno newline at the end'\n\
             echo 'profile: cannot do anything' >&2\n\
             [ -z \"$(command -v python3)\" ] || exit 99\n\
             cd \"$HOME\"\n\
             exec {bin}/sh -c \"$SSH_ORIGINAL_COMMAND\"\n",
            bin = bin.display(),
            home = home.display(),
        );
        write_program(&root.join("login"), &login);
        fs::copy(root.join("user_key.pub"), root.join("authorized_keys")).unwrap();
        // Privilege separation needs it.
        drop(fs::create_dir_all("/run/sshd"));
        let mut attempt = 0;
        let (address, sshd) = loop {
            let address = free_address();
            let text = format!(
                "Port {port}\nListenAddress 127.0.0.1\nHostKey {root}/host_key\n\
                 AuthorizedKeysFile {root}/authorized_keys\nPidFile none\nUsePAM no\n\
                 PasswordAuthentication no\nKbdInteractiveAuthentication no\nStrictModes no\n\
                 PermitRootLogin yes\nMaxStartups 100\nForceCommand {root}/login\n{settings}\n",
                port = address.port(),
                root = root.display(),
            );
            fs::write(root.join("sshd_config"), text).unwrap();
            match start_sshd(root).await {
                Some(sshd) => break (address, sshd),
                None => attempt += 1,
            }
            assert!(attempt < PORT_ATTEMPTS, "sshd does not start");
        };
        let host = Self {
            directory,
            account,
            address,
            sshd,
        };
        host.write_client_config(address);
        host
    }

    /// Returns a user who reaches the host as `ssh:box`, with a program to push.
    pub(super) fn user(&self) -> TestUser {
        let config = self.root().join("ssh_config");
        let ssh = format!("ssh -F {}", config.display());
        TestUser::new()
            .with("EXEC_SERVER_SSH", &ssh)
            .with("EXEC_SERVER_DIST", dist_directory().to_str().unwrap())
    }

    /// Makes the user's `ssh` connect to another address.
    pub(super) fn reach_through(&self, address: SocketAddr) {
        self.write_client_config(address);
    }

    /// Returns the address of `sshd`.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the directory of everything.
    pub(super) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the home of the account.
    pub(super) fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    /// Returns the directory of its programs, the only one on its PATH.
    pub(super) fn bin(&self) -> PathBuf {
        self.root().join("bin")
    }

    /// Puts the program on the PATH of the account.
    pub(super) fn install(&self) {
        let program = dist_directory().join(dist_name());
        let there = self.bin().join("exec-server");
        if fs::hard_link(&program, &there).is_err() {
            fs::copy(&program, &there).unwrap();
        }
    }

    /// Returns the programs that were pushed.
    pub(super) fn pushed(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.home().join(".cache/exec-server"));
        let entries = entries.into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns what the account has in the temporary directories of the machine.
    pub(super) fn temporary_files(&self) -> Vec<PathBuf> {
        let uid = fs::metadata(self.home()).unwrap().uid();
        let prefix = format!("exec-server-{uid}");
        let directories = ["/tmp", "/var/tmp", "/dev/shm"].map(fs::read_dir);
        let entries = directories.into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_own = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            let rest = name.and_then(|name| name.strip_prefix(&prefix));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut own: Vec<_> = paths.filter(is_own).collect();
        own.sort();
        own
    }

    /// Protects the user's key with a passphrase.
    pub(super) fn encrypt_user_key(&self, passphrase: &str) {
        let mut keygen = process::Command::new("ssh-keygen");
        let keygen = keygen.args(["-q", "-p", "-P", "", "-N", passphrase, "-f"]);
        let status = keygen.arg(self.root().join("user_key")).status();
        assert!(status.unwrap().success());
    }

    /// Gives a file to the account.
    pub(super) fn give(&self, path: &Path) {
        let home = fs::metadata(self.home()).unwrap();
        std::os::unix::fs::chown(path, Some(home.uid()), Some(home.gid())).unwrap();
    }

    /// Returns the process of the account's background server.
    pub(super) fn server(&self) -> Option<Pid> {
        let socket = self.home().join(".local/state/exec-server/run/server.sock");
        let stream = std::os::unix::net::UnixStream::connect(socket).ok()?;
        let listener = rustix::net::sockopt::socket_peercred(&stream).unwrap();
        Some(listener.pid)
    }

    /// Replaces the host key.
    pub(super) async fn replace_host_key(&mut self) {
        let key = self.root().join("host_key");
        fs::remove_file(&key).unwrap();
        generate_key(&key);
        within_timeout(self.sshd.kill()).await.unwrap();
        self.sshd = start_sshd(self.root()).await.unwrap();
    }

    fn write_client_config(&self, address: SocketAddr) {
        let root = self.root().display();
        let key = fs::read_to_string(self.root().join("host_key.pub")).unwrap();
        let hosts = self.root().join("known_hosts");
        if !hosts.exists() {
            fs::write(&hosts, format!("box {key}")).unwrap();
        }
        let text = format!(
            "Host box\nHostName {}\nPort {}\nUser {}\nHostKeyAlias box\n\
             IdentityFile {root}/user_key\nIdentitiesOnly yes\nIdentityAgent none\n\
             UserKnownHostsFile {root}/known_hosts\nGlobalKnownHostsFile /dev/null\n\
             StrictHostKeyChecking yes\nKexAlgorithms curve25519-sha256\n",
            address.ip(),
            address.port(),
            self.account.name,
        );
        fs::write(self.root().join("ssh_config"), text).unwrap();
    }
}

impl Drop for SshHost {
    fn drop(&mut self) {
        let keeper = keeper_of(&self.home().join(".local/state/exec-server/durable"));
        for process in self.server().into_iter().chain(keeper) {
            // It may have exited meanwhile.
            let _gone = kill_process(process, Signal::KILL);
        }
        // `Child` kills it; the account can only be removed without it.
        let _gone = self.sshd.start_kill();
    }
}

/// What a small image has.
const APPLETS: [&str; 32] = [
    "sh",
    "cat",
    "chmod",
    "cp",
    "dd",
    "df",
    "echo",
    "env",
    "false",
    "find",
    "grep",
    "gzip",
    "head",
    "id",
    "ls",
    "mkdir",
    "mv",
    "printf",
    "ps",
    "pwd",
    "rm",
    "rmdir",
    "seq",
    "sha256sum",
    "sleep",
    "tail",
    "touch",
    "tr",
    "true",
    "uname",
    "wc",
    "yes",
];

/// Writes an executable script.
pub(super) fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns a directory with the program to push: the one under test without debug information, so
/// that it is small. It is made once for all tests.
pub(super) fn dist_directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
    let program = directory.join(dist_name());
    let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified());
    if modified(&program).is_ok_and(|made| made > modified(product()).unwrap()) {
        return directory;
    }
    fs::create_dir_all(&directory).unwrap();
    let draft = directory.join(format!("draft.{}", process::id()));
    let mut strip = process::Command::new("strip");
    let stripped = strip.arg("-o").arg(&draft).arg(product()).status();
    assert!(stripped.unwrap().success());
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&draft, &program).unwrap();
    directory
}

fn dist_name() -> String {
    format!("exec-server-{}", std::env::consts::ARCH)
}

fn generate_key(path: &Path) {
    let mut keygen = process::Command::new("ssh-keygen");
    let keygen = keygen
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path);
    assert!(keygen.stdin(Stdio::null()).status().unwrap().success());
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

/// Starts `sshd` and waits until it listens. Returns `None` if another program has its port.
async fn start_sshd(root: &Path) -> Option<Child> {
    let mut sshd = Command::new("/usr/sbin/sshd");
    let sshd = sshd.args(["-D", "-e", "-f"]).arg(root.join("sshd_config"));
    let sshd = sshd.stderr(Stdio::piped()).kill_on_drop(true);
    let mut sshd = sshd.spawn().unwrap();
    let mut lines = BufReader::new(sshd.stderr.take().unwrap()).lines();
    while let Some(line) = within_timeout(lines.next_line()).await.unwrap() {
        if line.contains("Server listening on") {
            // What it says later is not read; it must not block.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Some(sshd);
        }
    }
    None
}

/// Account of the host. Dropping it removes a temporary one.
struct Account {
    name: String,
    is_temporary: bool,
}

impl Account {
    fn create(home: &Path, shell: &Path) -> Self {
        if !rustix::process::geteuid().is_root() {
            let id = process::Command::new("id").arg("-un").output().unwrap();
            return Self {
                name: String::from_utf8(id.stdout).unwrap().trim().to_owned(),
                is_temporary: false,
            };
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("xs{}-{number}", process::id());
        let mut add = process::Command::new("useradd");
        add.args(["--no-create-home", "--no-log-init", "--home-dir"])
            .arg(home)
            .arg("--shell")
            .arg(shell)
            // Without a password, but not locked.
            .args(["--password", "*"])
            .arg(&name);
        run_exclusively(&mut add);
        let chown = process::Command::new("chown").arg(&name).arg(home).status();
        assert!(chown.unwrap().success());
        Self {
            name,
            is_temporary: true,
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.is_temporary {
            let mut delete = process::Command::new("userdel");
            run_exclusively(delete.args(["--force", &self.name]));
        }
    }
}

/// Runs a program that changes the accounts. It refuses while another one does.
fn run_exclusively(command: &mut process::Command) {
    const LOCKED: [i32; 2] = [1, 10];
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let output = command.output().unwrap();
        let code = output.status.code().unwrap_or_default();
        if output.status.success() {
            return;
        }
        // In a drop during a panic, a second panic would hide the first.
        if std::thread::panicking() {
            return;
        }
        assert!(
            LOCKED.contains(&code) && Instant::now() < deadline,
            "{output:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
