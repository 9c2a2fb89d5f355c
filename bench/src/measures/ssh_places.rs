//! `run --env ssh:…` compared with `ssh` itself: the first command on a clean account, which copies
//! the program, and later ones.
//!
//! The host is an `sshd` on loopback whose forced command gives the account another home. The
//! servers that the commands start there exit by themselves when they are idle.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::bench_dir::BenchDir;
use crate::bench_plan::BenchPlan;
use crate::bench_target::BenchTarget;
use crate::contender::{Contender, interleave, p50};
use crate::measures::{difference, measure_ours};
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};

/// OpenSSH's server, which must be started by its absolute path.
const SSHD: &str = "/usr/sbin/sshd";

/// Measures commands on an ssh host.
pub(crate) fn measure_ssh(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let measure = |program: PathBuf| {
        if !Path::new(SSHD).exists() {
            return Ok(vec![ReportCell::Skipped(format!("there is no {SSHD}")); 3]);
        }
        let host = SshHost::start()?;
        let mut contenders = [
            command_contender(plan, || Ok(host.ssh())),
            command_contender(plan, || {
                host.replace_home()?;
                Ok(host.exec_server(&program))
            }),
            // In the home of the last first command.
            command_contender(plan, || Ok(host.exec_server(&program))),
        ];
        interleave(plan.rate_blocks, &mut contenders);
        Ok(contenders.map(|contender| contender.cell(p50)).to_vec())
    };
    let columns = measure_ours(targets, measure, Vec::clone, 3);
    let [plain, first, later] = &columns[..] else {
        return Vec::new();
    };
    let more: Vec<_> = later.iter().zip(plain).map(difference).collect();
    let row = |id, title| ReportRow::new(id, title, ValueUnit::Seconds);
    vec![
        row("ssh-first", "first run --env ssh:…, copies the program")
            .goal(RowGoal::AtMost(3.0))
            .cells(first),
        row("ssh-later", "later ones: more than ssh itself")
            .goal(RowGoal::AtMost(0.4))
            .cells(&more),
        row("ssh-later-all", "  in all").cells(later),
        row("ssh-plain", "  in all: ssh itself").cells(plain),
    ]
}

/// Times commands that must succeed. Preparing them is not measured.
fn command_contender<'a>(
    plan: &BenchPlan,
    prepare: impl Fn() -> Result<Command> + 'a,
) -> Contender<'a, f64> {
    let budget = plan.startups;
    Contender::new(move |samples: &mut Vec<f64>| {
        for _ in budget.iterations() {
            let mut command = prepare()?;
            let command = command.stdin(Stdio::null()).stdout(Stdio::null());
            let started_at = Instant::now();
            let output = command.output()?;
            samples.push(started_at.elapsed().as_secs_f64());
            let stderr = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{}: {stderr}", output.status);
        }
        Ok(())
    })
}

/// An `sshd` on loopback. Dropping it kills the server.
struct SshHost {
    dir: BenchDir,
    sshd: Child,
}

impl SshHost {
    fn start() -> Result<Self> {
        let dir = BenchDir::new()?;
        let root = dir.path();
        // `sshd` refuses keys below a directory that others can write.
        fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
        dir.directory("client")?;
        for key in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            let status = keygen.arg(root.join(key)).stdin(Stdio::null()).status()?;
            ensure!(status.success(), "ssh-keygen failed");
        }
        fs::copy(root.join("user_key.pub"), root.join("authorized_keys"))?;
        let login = root.join("login");
        let root_text = root.display();
        fs::write(
            &login,
            format!(
                "#!/bin/sh\nunset XDG_RUNTIME_DIR XDG_CACHE_HOME XDG_STATE_HOME\n\
                 export HOME={root_text}/home EXEC_SERVER_IDLE_EXIT=5\ncd \"$HOME\"\n\
                 exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n"
            ),
        )?;
        fs::set_permissions(&login, fs::Permissions::from_mode(0o755))?;
        // Another program may take the port in between; then `sshd` fails, and so does the measure.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let port = address.port();
        fs::write(
            root.join("sshd_config"),
            format!(
                "Port {port}\nListenAddress 127.0.0.1\nHostKey {root_text}/host_key\n\
                 AuthorizedKeysFile {root_text}/authorized_keys\nPidFile none\nUsePAM no\n\
                 PasswordAuthentication no\nKbdInteractiveAuthentication no\nStrictModes no\n\
                 PermitRootLogin yes\nForceCommand {root_text}/login\n"
            ),
        )?;
        let key = fs::read_to_string(root.join("host_key.pub"))?;
        fs::write(root.join("known_hosts"), format!("box {key}"))?;
        let user = Command::new("id").arg("-un").output()?.stdout;
        fs::write(
            root.join("ssh_config"),
            format!(
                "Host box\nHostName 127.0.0.1\nPort {port}\nUser {user}\nHostKeyAlias box\n\
                 IdentityFile {root_text}/user_key\nIdentitiesOnly yes\nIdentityAgent none\n\
                 UserKnownHostsFile {root_text}/known_hosts\nGlobalKnownHostsFile /dev/null\n\
                 StrictHostKeyChecking yes\n",
                user = String::from_utf8(user)?.trim(),
            ),
        )?;
        let sshd = start_sshd(&root.join("sshd_config"))?;
        let host = Self { dir, sshd };
        host.replace_home()?;
        Ok(host)
    }

    /// Gives the account a new, empty home.
    fn replace_home(&self) -> Result<()> {
        let root = self.dir.path();
        let homes = fs::read_dir(root)?.count();
        let home = self.dir.directory(&format!("home-{homes}"))?;
        let link = root.join("home");
        if link.is_symlink() {
            fs::remove_file(&link)?;
        }
        symlink(home, link)?;
        Ok(())
    }

    /// Returns the command that runs `true` with `ssh`.
    fn ssh(&self) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-F").arg(self.dir.path().join("ssh_config"));
        command.args(["box", "true"]);
        command
    }

    /// Returns the command that runs `true` with our program.
    fn exec_server(&self, program: &Path) -> Command {
        let root = self.dir.path();
        let mut command = Command::new(program);
        let ssh = format!("ssh -F {}/ssh_config", root.display());
        command
            .args(["run", "--env", "ssh:box", "--", "true"])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", root.join("client"))
            .env("EXEC_SERVER_SSH", ssh);
        command
    }
}

impl Drop for SshHost {
    fn drop(&mut self) {
        // The process may already have exited.
        drop(self.sshd.kill());
        drop(self.sshd.wait());
    }
}

/// Starts `sshd` and waits until it listens.
fn start_sshd(config: &Path) -> Result<Child> {
    if rustix::process::geteuid().is_root() {
        fs::create_dir_all("/run/sshd").context("cannot create the directory of sshd")?;
    }
    let mut command = Command::new(SSHD);
    let command = command.args(["-D", "-e", "-f"]).arg(config);
    let mut sshd = command.stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(sshd.stderr.take().context("no stderr")?).lines();
    while let Some(Ok(line)) = lines.next() {
        if line.contains("Server listening on") {
            // Later lines are not needed, but a full pipe would block `sshd`.
            thread::spawn(move || lines.for_each(drop));
            return Ok(sshd);
        }
    }
    let status = sshd.wait()?;
    anyhow::bail!("sshd ended with {status}");
}
