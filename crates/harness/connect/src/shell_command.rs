//! The command that runs `sh` at a target: the user's configured programs, one nested in the other.

use std::{collections::BTreeMap, ffi::OsString};

use exec_transport::connect::ServerProgram;

use crate::target::{Engine, Hop, PodName, Target};

/// Programs to use instead of `ssh`, `docker`, `podman` and `kubectl`, with options: text for a
/// shell, like `GIT_SSH_COMMAND`. They apply to the first hop, which runs on this machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TargetPrograms {
    /// Instead of `ssh`.
    pub ssh: Option<OsString>,
    /// Instead of `docker`.
    pub docker: Option<OsString>,
    /// Instead of `podman`.
    pub podman: Option<OsString>,
    /// Instead of `kubectl`.
    pub kubectl: Option<OsString>,
}

/// How a program may ask the user for a password.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PromptMode {
    /// On the terminal of this process.
    Terminal,
    /// With the program that `SSH_ASKPASS` names, and not on the terminal. Only `ssh` knows it.
    Askpass,
    /// Not at all: without a terminal, or while a command uses it.
    #[default]
    Never,
}

impl PromptMode {
    /// Returns the variables that keep `ssh` from the terminal. They also reach the `ssh` that it
    /// starts for `ProxyJump`, which does not get its options.
    fn variables(self) -> BTreeMap<OsString, OsString> {
        let variables: &[(&str, &str)] = match self {
            Self::Terminal => &[],
            Self::Askpass => &[("SSH_ASKPASS_REQUIRE", "force")],
            Self::Never => &[("SSH_ASKPASS_REQUIRE", "force"), ("SSH_ASKPASS", "false")],
        };
        let variables = variables.iter().copied();
        variables
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }
}

impl TargetPrograms {
    /// Returns the command that runs `sh` at a target.
    pub(crate) fn shell_at(&self, target: &Target, prompt: PromptMode) -> ServerProgram {
        let mut words = vec![OsString::from("sh")];
        for (index, hop) in target.hops().iter().enumerate().rev() {
            words = match index {
                0 => hop.wrap(words, self.of(hop), prompt),
                _ => hop.wrap(words, None, PromptMode::Never),
            };
        }
        let mut words = words.into_iter();
        ServerProgram {
            program: words.next().unwrap_or_default(),
            args: words.collect(),
            env: prompt.variables(),
            ..ServerProgram::default()
        }
    }

    fn of(&self, hop: &Hop) -> Option<&OsString> {
        match hop {
            Hop::Ssh { .. } => self.ssh.as_ref(),
            Hop::Container { engine, .. } => match engine {
                Engine::Docker => self.docker.as_ref(),
                Engine::Podman => self.podman.as_ref(),
            },
            Hop::Pod(_) => self.kubectl.as_ref(),
            Hop::Exec { .. } => None,
        }
    }
}

impl Hop {
    /// Returns the name of its program and the variable that names another one.
    pub(crate) fn program(&self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Ssh { .. } => ("ssh", Some("EXEC_SERVER_SSH")),
            Self::Container { engine, .. } => match engine {
                Engine::Docker => ("docker", Some("EXEC_SERVER_DOCKER")),
                Engine::Podman => ("podman", Some("EXEC_SERVER_PODMAN")),
            },
            Self::Pod(_) => ("kubectl", Some("EXEC_SERVER_KUBECTL")),
            Self::Exec { .. } => ("sh", None),
        }
    }

    /// Returns the command that runs `words` at the other end of this hop.
    fn wrap(
        &self,
        words: Vec<OsString>,
        instead: Option<&OsString>,
        prompt: PromptMode,
    ) -> Vec<OsString> {
        let (name, _) = self.program();
        match self {
            Self::Ssh { destination, port } => {
                let mut own: Vec<OsString> = SSH_OPTIONS.iter().map(OsString::from).collect();
                if prompt == PromptMode::Never {
                    own.extend(["-o", "BatchMode=yes"].map(OsString::from));
                }
                if let Some(port) = port {
                    own.extend(["-p".into(), port.to_string().into()]);
                }
                own.extend(["--".into(), destination.into(), shell_line(&words)]);
                run(name, instead, own)
            }
            Self::Container {
                name: container, ..
            } => {
                let own = ["exec", "-i", container].map(OsString::from);
                run(name, instead, own.into_iter().chain(words).collect())
            }
            Self::Pod(PodName::Exact {
                context,
                namespace,
                pod,
                container,
            }) => {
                let mut own: Vec<OsString> = Vec::new();
                if let Some(context) = context {
                    own.extend(["--context".into(), context.into()]);
                }
                own.extend(["-n", namespace, "exec", "-i", pod].map(OsString::from));
                if let Some(container) = container {
                    own.extend(["-c".into(), container.into()]);
                }
                own.push("--".into());
                run(name, instead, own.into_iter().chain(words).collect())
            }
            Self::Pod(PodName::ContextOrContainer(parts)) => {
                let mut script = OsString::new();
                for part in POD_SCRIPT.split_inclusive('%') {
                    match part.strip_suffix('%') {
                        Some(text) => {
                            script.push(text);
                            script.push(instead.map_or("kubectl".as_ref(), OsString::as_os_str));
                        }
                        None => script.push(part),
                    }
                }
                let head = ["sh".into(), "-c".into(), script, "kubectl".into()];
                let parts = parts.iter().map(OsString::from);
                head.into_iter().chain(parts).chain(words).collect()
            }
            Self::Exec { command } => run("", Some(&command.into()), words),
        }
    }
}

/// Options of every ssh: a clean stream without terminal, forwarding or X11, and keepalives that
/// detect a dead peer. Everything else is the user's configuration.
const SSH_OPTIONS: [&str; 12] = [
    "-T",
    "-x",
    "-o",
    "ClearAllForwardings=yes",
    "-o",
    "RemoteCommand=none",
    "-o",
    "ConnectTimeout=15",
    "-o",
    "ServerAliveInterval=10",
    "-o",
    "ServerAliveCountMax=3",
];

/// Shell text that enters a pod; `%` stands for kubectl.
const POD_SCRIPT: &str = "a=$1 b=$2 c=$3; shift 3; \
    if % config get-contexts \"$a\" >/dev/null 2>&1 </dev/null; \
    then % --context \"$a\" -n \"$b\" exec -i \"$c\" -- \"$@\"; \
    else % -n \"$a\" exec -i \"$b\" -c \"$c\" -- \"$@\"; fi";

/// Returns the command for a program, or for the shell text that replaces it.
fn run(name: &str, instead: Option<&OsString>, arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(text) = instead else {
        return std::iter::once(name.into()).chain(arguments).collect();
    };
    let mut line = text.clone();
    line.push(" \"$@\"");
    let head = ["sh".into(), "-c".into(), line, "exec-server".into()];
    head.into_iter().chain(arguments).collect()
}

/// Joins words to a line for the login shell of another machine.
fn shell_line(words: &[OsString]) -> OsString {
    let words = words
        .iter()
        .map(|word| shell_quoted(&word.to_string_lossy()));
    words.collect::<Vec<_>>().join(" ").into()
}

/// Quotes a word for a shell.
pub fn shell_quoted(word: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_./:=@%+,".contains(sign);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(target: &str, programs: &TargetPrograms, prompt: PromptMode) -> Vec<String> {
        let target: Target = target.parse().unwrap();
        let program = programs.shell_at(&target, prompt);
        let words = std::iter::once(program.program).chain(program.args);
        words.map(|word| word.into_string().unwrap()).collect()
    }

    fn plain(target: &str) -> String {
        let options = SSH_OPTIONS.join(" ");
        let line = line(target, &TargetPrograms::default(), PromptMode::Never).join(" ");
        line.replace(&format!("{options} -o BatchMode=yes"), "OPTIONS")
    }

    #[test]
    fn each_kind_runs_a_shell_at_its_end() {
        for (target, line) in [
            ("ssh:me@box:22", "ssh OPTIONS -p 22 -- me@box sh"),
            ("docker:web", "docker exec -i web sh"),
            ("podman:web", "podman exec -i web sh"),
            ("k8s:ns/pod", "kubectl -n ns exec -i pod -- sh"),
            (
                "k8s:c/ns/pod/web",
                "kubectl --context c -n ns exec -i pod -c web -- sh",
            ),
            (
                "k8s:a/b/c",
                "sh -c a=$1 b=$2 c=$3; shift 3; \
                 if kubectl config get-contexts \"$a\" >/dev/null 2>&1 </dev/null; \
                 then kubectl --context \"$a\" -n \"$b\" exec -i \"$c\" -- \"$@\"; \
                 else kubectl -n \"$a\" exec -i \"$b\" -c \"$c\" -- \"$@\"; fi kubectl a b c sh",
            ),
            ("exec:wsl -d x", "sh -c wsl -d x \"$@\" exec-server sh"),
            (
                "ssh:box/docker:web",
                "ssh OPTIONS -- box docker exec -i web sh",
            ),
            (
                "docker:dind/docker:web",
                "docker exec -i dind docker exec -i web sh",
            ),
            (
                "ssh:a/ssh:b/exec:sudo -u x",
                r#"ssh OPTIONS -- a ssh OPTIONS -- b 'sh -c '\''sudo -u x "$@"'\'' exec-server sh'"#,
            ),
        ] {
            assert_eq!(plain(target), line, "{target}");
        }
    }

    #[test]
    fn other_programs_replace_those_of_the_first_hop() {
        let programs = TargetPrograms {
            ssh: Some("ssh -F conf".into()),
            docker: Some("sudo docker".into()),
            ..TargetPrograms::default()
        };
        let words = line("ssh:box/docker:web", &programs, PromptMode::Terminal);
        assert_eq!(
            words[..4],
            ["sh", "-c", "ssh -F conf \"$@\"", "exec-server"]
        );
        assert_eq!(words[words.len() - 2..], ["box", "docker exec -i web sh"]);
        assert!(!words.contains(&"BatchMode=yes".to_owned()), "{words:?}");
        let words = line("docker:web", &programs, PromptMode::Never);
        assert_eq!(
            words[2..],
            [
                "sudo docker \"$@\"",
                "exec-server",
                "exec",
                "-i",
                "web",
                "sh"
            ]
        );
    }
}
