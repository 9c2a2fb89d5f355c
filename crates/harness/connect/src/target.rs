//! The grammar of targets: `ssh:[user@]host[:port]`, `docker:NAME`, `podman:NAME`,
//! `k8s:[context/]namespace/pod[/container]`, `exec:CMD`, and several of them with `/` between.

use std::{fmt, num::NonZeroU16, str::FromStr};

/// Maximum hops of a target. Every byte passes through a process per hop.
const MAX_HOPS: usize = 8;

/// A place with a shell, and the hops that lead to it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Target {
    text: String,
    hops: Vec<Hop>,
}

impl Target {
    /// Returns whether a text has the form of a target, valid or not.
    pub fn is_target(text: &str) -> bool {
        HopKind::of(text).is_some()
    }

    /// Splits `TARGET:PATH`. The path starts at the first colon after the target that cannot belong
    /// to the target. Returns `None` if the text does not start like a target.
    pub fn split_path(text: &str) -> Option<(&str, &str)> {
        HopKind::of(text)?;
        let (start, last) = split_hops(text).last()?;
        let (kind, rest) = HopKind::of(last)?;
        let rest_start = start + last.len() - rest.len();
        let colons = rest.match_indices(':').map(|(at, _)| at);
        let mut colons = colons.filter(|at| !is_within(rest, *at));
        let colon = match kind {
            HopKind::Ssh => colons.find(|at| {
                let after = &rest[at + 1..];
                let word = after.split(':').next().unwrap_or_default();
                // `ssh:box:22:/x` has a port; `ssh:box:22` and `ssh:box:/x` do not.
                word.parse::<u16>().is_err() || word.len() == after.len()
            }),
            HopKind::Docker | HopKind::Podman | HopKind::Kubernetes => colons.next(),
            // A command may contain colons.
            HopKind::Exec => colons.next_back(),
        }?;
        let at = rest_start + colon;
        Some((&text[..at], &text[at + 1..]))
    }

    /// Returns the hops, starting at this machine.
    pub(crate) fn hops(&self) -> &[Hop] {
        &self.hops
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Target {
    type Err = TargetParseError;

    fn from_str(text: &str) -> Result<Self, TargetParseError> {
        let hops = split_hops(text).map(|(_, hop)| Hop::parse(hop));
        let hops = hops.take(MAX_HOPS + 1).collect::<Result<Vec<_>, _>>()?;
        if hops.len() > MAX_HOPS {
            return Err(TargetParseError::TooManyHops);
        }
        let text = text.to_owned();
        Ok(Self { text, hops })
    }
}

/// One step on the way to a target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Hop {
    /// Another machine.
    Ssh {
        /// User and host, or only the host.
        destination: String,
        port: Option<NonZeroU16>,
    },
    /// A container of docker or podman.
    Container { engine: Engine, name: String },
    /// A pod.
    Pod(PodName),
    /// A place that a command enters: the command runs the words that are appended to it.
    Exec { command: String },
}

/// Program that manages containers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Engine {
    Docker,
    Podman,
}

/// How a pod was named.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum PodName {
    /// Unambiguously.
    Exact {
        context: Option<String>,
        namespace: String,
        pod: String,
        container: Option<String>,
    },
    /// `A/B/C`: pod C of context A if that context exists, else container C of pod B.
    ContextOrContainer([String; 3]),
}

impl Hop {
    fn parse(text: &str) -> Result<Self, TargetParseError> {
        let Some((kind, rest)) = HopKind::of(text) else {
            return Err(TargetParseError::Kind(text.to_owned()));
        };
        let invalid = |expected| TargetParseError::Invalid {
            hop: text.to_owned(),
            expected,
        };
        match kind {
            HopKind::Ssh => ssh(rest).ok_or_else(|| invalid("ssh:[user@]host[:port]")),
            HopKind::Docker => {
                container(Engine::Docker, rest).ok_or_else(|| invalid("docker:NAME"))
            }
            HopKind::Podman => {
                container(Engine::Podman, rest).ok_or_else(|| invalid("podman:NAME"))
            }
            HopKind::Kubernetes => pod(rest)
                .map(Self::Pod)
                .ok_or_else(|| invalid("k8s:[context/]namespace/pod[/container]")),
            HopKind::Exec => {
                let command = unquoted(rest.trim()).to_owned();
                match command.is_empty() || command.contains('\0') {
                    true => Err(invalid("exec:'COMMAND'")),
                    false => Ok(Self::Exec { command }),
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum HopKind {
    Ssh,
    Docker,
    Podman,
    Kubernetes,
    Exec,
}

impl HopKind {
    /// Returns the kind of a hop, and the rest of the text.
    fn of(text: &str) -> Option<(Self, &str)> {
        [
            ("ssh:", Self::Ssh),
            ("docker:", Self::Docker),
            ("podman:", Self::Podman),
            ("k8s:", Self::Kubernetes),
            ("exec:", Self::Exec),
        ]
        .into_iter()
        .find_map(|(prefix, kind)| {
            let rest = text.strip_prefix(prefix)?;
            // `ssh://host` is a URL. URLs are not targets.
            (!rest.starts_with("//")).then_some((kind, rest))
        })
    }
}

/// Splits a target at each slash that is followed by the kind of a hop, outside of quotes. Yields
/// the hops with their positions.
fn split_hops(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = Some(0);
    std::iter::from_fn(move || {
        let begin = start?;
        let rest = &text[begin..];
        let slash = rest
            .match_indices('/')
            .map(|(at, _)| at)
            .find(|at| HopKind::of(&rest[at + 1..]).is_some() && !is_quoted(rest, *at));
        start = slash.map(|at| begin + at + 1);
        Some((begin, slash.map_or(rest, |at| &rest[..at])))
    })
}

/// Returns whether a position is within quotes.
fn is_quoted(text: &str, at: usize) -> bool {
    let mut quote = None;
    for sign in text[..at].chars() {
        match (quote, sign) {
            (None, '\'' | '"') => quote = Some(sign),
            (Some(open), sign) if open == sign => quote = None,
            _ => {}
        }
    }
    quote.is_some()
}

/// Returns whether a position is within quotes or within the brackets of an IPv6 address.
fn is_within(text: &str, at: usize) -> bool {
    let (before, after) = text.split_at(at);
    let is_bracketed = before.rfind('[') > before.rfind(']') && after.contains(']');
    is_bracketed || is_quoted(text, at)
}

/// Removes quotes around a whole command, as a shell would.
fn unquoted(text: &str) -> &str {
    for quote in ['\'', '"'] {
        let inner = text
            .strip_prefix(quote)
            .and_then(|it| it.strip_suffix(quote));
        if let Some(inner) = inner.filter(|inner| !inner.contains(quote)) {
            return inner;
        }
    }
    text
}

fn ssh(text: &str) -> Option<Hop> {
    let (user, address) = match text.rsplit_once('@') {
        Some((user, address)) => (Some(user), address),
        None => (None, text),
    };
    let (host, port) = match address.strip_prefix('[') {
        Some(bracketed) => {
            let (host, rest) = bracketed.split_once(']')?;
            match rest {
                "" => (host, None),
                rest => (host, Some(rest.strip_prefix(':')?)),
            }
        }
        None => match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    let port = port.map(str::parse).transpose().ok()?;
    // A leading dash would be an option of ssh.
    let is_word = |word: &str| {
        let is_plain = |sign: char| !sign.is_whitespace() && !sign.is_control() && sign != '/';
        !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain)
    };
    if !is_word(host) || !user.is_none_or(is_word) {
        return None;
    }
    let destination = match user {
        Some(user) => format!("{user}@{host}"),
        None => host.to_owned(),
    };
    Some(Hop::Ssh { destination, port })
}

fn container(engine: Engine, name: &str) -> Option<Hop> {
    let mut signs = name.chars();
    let is_name = signs.next()?.is_ascii_alphanumeric()
        && signs.all(|sign| sign.is_ascii_alphanumeric() || "_.-".contains(sign));
    let name = name.to_owned();
    is_name.then_some(Hop::Container { engine, name })
}

/// Parses the name of a pod. The last three parts are namespace, pod and container; the container
/// may be empty. The text before them is the context, which may contain slashes.
fn pod(text: &str) -> Option<PodName> {
    let is_name = |name: &str| {
        let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-._".contains(sign);
        !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
    };
    let is_context = |name: &str| {
        let is_plain = |sign: char| !sign.is_control() && !sign.is_whitespace();
        !name.starts_with('-') && name.chars().all(is_plain)
    };
    let some = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
    let parts: Vec<&str> = text.split('/').collect();
    let (context, [namespace, pod, container]) = match parts[..] {
        [namespace, pod] => (None, [namespace, pod, ""]),
        [first, second, third] if !third.is_empty() => {
            let parts = [first, second, third];
            let is_valid = is_context(first) && !first.is_empty() && is_name(second);
            return (is_valid && is_name(third))
                .then(|| PodName::ContextOrContainer(parts.map(str::to_owned)));
        }
        [_, _, _] => return None,
        [.., namespace, pod, container] => {
            let length = namespace.len() + pod.len() + container.len() + 3;
            (
                some(&text[..text.len() - length]),
                [namespace, pod, container],
            )
        }
        _ => return None,
    };
    let is_valid = is_name(namespace)
        && is_name(pod)
        && (container.is_empty() || is_name(container))
        && context.as_deref().is_none_or(is_context);
    is_valid.then(|| PodName::Exact {
        context,
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        container: some(container),
    })
}

/// Caller: a text is not a target.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TargetParseError {
    /// It does not start with the kind of a target.
    #[error("invalid target `{0}`: expected ssh:, docker:, podman:, k8s: or exec:")]
    Kind(String),
    /// A hop does not follow its grammar.
    #[error("invalid target `{hop}`: expected {expected}")]
    Invalid {
        /// The hop.
        hop: String,
        /// Its grammar.
        expected: &'static str,
    },
    /// It has too many hops.
    #[error("invalid target: more than {MAX_HOPS} hops")]
    TooManyHops,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(text: &str) -> Vec<Hop> {
        text.parse::<Target>()
            .map(|target| target.hops)
            .unwrap_or_default()
    }

    fn ssh_hop(destination: &str, port: Option<u16>) -> Hop {
        Hop::Ssh {
            destination: destination.to_owned(),
            port: port.and_then(NonZeroU16::new),
        }
    }

    fn exact(context: &str, namespace: &str, pod: &str, container: &str) -> Hop {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Hop::Pod(PodName::Exact {
            context: some(context),
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: some(container),
        })
    }

    #[test]
    fn ssh_targets_have_user_host_and_port() {
        assert_eq!(hops("ssh:box"), [ssh_hop("box", None)]);
        assert_eq!(hops("ssh:me@box:2222"), [ssh_hop("me@box", Some(2222))]);
        assert_eq!(hops("ssh:a@b@box"), [ssh_hop("a@b@box", None)]);
        assert_eq!(hops("ssh:[::1]:22"), [ssh_hop("::1", Some(22))]);
        assert_eq!(
            hops("ssh:me@[fe80::1%lo]"),
            [ssh_hop("me@fe80::1%lo", None)]
        );
    }

    #[test]
    fn pods_have_a_namespace_and_optionally_context_and_container() {
        assert_eq!(hops("k8s:ns/pod"), [exact("", "ns", "pod", "")]);
        assert_eq!(hops("k8s:c/ns/pod/web"), [exact("c", "ns", "pod", "web")]);
        assert_eq!(hops("k8s:c/ns/pod/"), [exact("c", "ns", "pod", "")]);
        assert_eq!(hops("k8s:/ns/pod/web"), [exact("", "ns", "pod", "web")]);
        let arn = "arn:aws:eks:x:1:cluster/prod";
        assert_eq!(
            hops(&format!("k8s:{arn}/ns/pod/")),
            [exact(arn, "ns", "pod", "")]
        );
        let doubtful = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(
            hops("k8s:a/b/c"),
            [Hop::Pod(PodName::ContextOrContainer(doubtful))]
        );
    }

    #[test]
    fn hops_are_separated_by_a_slash_before_a_kind() {
        let web = Hop::Container {
            engine: Engine::Docker,
            name: "web".to_owned(),
        };
        assert_eq!(
            hops("ssh:box/docker:web"),
            [ssh_hop("box", None), web.clone()]
        );
        let exec = |command: &str| Hop::Exec {
            command: command.to_owned(),
        };
        assert_eq!(
            hops("exec:/usr/bin/wsl -d x/docker:web"),
            [exec("/usr/bin/wsl -d x"), web]
        );
        assert_eq!(hops("exec:env A='/ssh:x' b"), [exec("env A='/ssh:x' b")]);
        assert_eq!(hops("exec:'wsl -d Debian'"), [exec("wsl -d Debian")]);
        assert_eq!(
            hops("k8s:ns/pod/ssh:box"),
            [exact("", "ns", "pod", ""), ssh_hop("box", None)]
        );
    }

    #[test]
    fn invalid_targets_are_rejected_with_the_grammar() {
        for (text, expected) in [
            ("ssh:", "ssh:[user@]host[:port]"),
            ("ssh:-oProxyCommand=x", "ssh:[user@]host[:port]"),
            ("ssh:me@-x", "ssh:[user@]host[:port]"),
            ("ssh:box:0", "ssh:[user@]host[:port]"),
            ("ssh:box:99999", "ssh:[user@]host[:port]"),
            ("ssh:a b", "ssh:[user@]host[:port]"),
            ("ssh:@box", "ssh:[user@]host[:port]"),
            ("docker:", "docker:NAME"),
            ("podman:-x", "podman:NAME"),
            ("docker:a;b", "docker:NAME"),
            ("k8s:pod", "k8s:[context/]namespace/pod[/container]"),
            ("k8s:a//b", "k8s:[context/]namespace/pod[/container]"),
            ("k8s:ns/--x", "k8s:[context/]namespace/pod[/container]"),
            ("exec: ", "exec:'COMMAND'"),
            ("ssh:box/docker:", "docker:NAME"),
            ("box", "ssh:, docker:, podman:, k8s: or exec:"),
            ("ssh://box", "ssh:, docker:, podman:, k8s: or exec:"),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.ends_with(expected), "{text}: {error}");
        }
        let many = ["docker:x"; MAX_HOPS + 1].join("/");
        assert_eq!(many.parse::<Target>(), Err(TargetParseError::TooManyHops));
        assert!(["docker:x"; MAX_HOPS].join("/").parse::<Target>().is_ok());
    }

    #[test]
    fn path_starts_after_the_target() {
        for (text, target, path) in [
            ("ssh:box:/var/log", "ssh:box", "/var/log"),
            ("ssh:me@box:22:/x", "ssh:me@box:22", "/x"),
            ("ssh:box:22", "ssh:box", "22"),
            ("ssh:box:", "ssh:box", ""),
            ("ssh:[::1]:22:a:b", "ssh:[::1]:22", "a:b"),
            ("docker:web:logs/a:b", "docker:web", "logs/a:b"),
            ("ssh:box:22/docker:web:/x", "ssh:box:22/docker:web", "/x"),
            ("k8s:ns/pod:/x", "k8s:ns/pod", "/x"),
            ("exec:'a b:c':/x", "exec:'a b:c'", "/x"),
        ] {
            assert_eq!(Target::split_path(text), Some((target, path)), "{text}");
        }
        for text in ["box:/x", "docker:web", "ssh:box", "./ssh:x:y"] {
            assert_eq!(Target::split_path(text), None, "{text}");
        }
    }
}
