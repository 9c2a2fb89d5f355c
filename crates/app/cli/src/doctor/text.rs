//! The report as text, at most 100 columns wide.

use std::fmt;

use exec_sandbox::abilities::{CgroupSupport, HostAbilities, PolicySupport, ProbeOutcome};

use crate::doctor::{DoctorReport, advice::DoctorAdvice};

const WIDTH: usize = 100;
/// Width of the name column.
const NAME: usize = 33;
/// Width of the verdict column.
const VERDICT: usize = 5;
/// Maximum length of a refusal reason; the beginning matters most.
const REASON: usize = 120;

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.abilities.host;
        let (version, kernel, account) = (&self.version, &host.kernel, host.account);
        write!(
            f,
            "exec-server {version} on Linux {kernel}, account {account}"
        )?;
        if let Some(container) = &host.container {
            write!(f, ", in a container ({container})")?;
        }
        writeln!(f, "\n\nWhat works")?;
        for (name, verdict, detail) in table(&self.abilities) {
            let verdict = format!("  {name:NAME$}{verdict:VERDICT$}");
            paragraph(f, &verdict, &detail)?;
        }
        writeln!(f, "\nWhat enforces each kind of policy")?;
        for PolicySupport {
            policy,
            mechanism,
            reason,
        } in &self.outlook
        {
            let name = format!("  {policy:NAME$}");
            match (mechanism, reason) {
                (Some(mechanism), _) => paragraph(f, &name, mechanism)?,
                (None, reason) => {
                    let reason = reason.as_deref().unwrap_or("no mechanism");
                    paragraph(f, &name, &format!("refused: {}", beginning(reason)))?;
                }
            }
        }
        let is_long = |outlook: &PolicySupport| outlook.reason.as_deref().is_some_and(is_long);
        if self.outlook.iter().any(is_long) {
            writeln!(f, "  (`exec-server doctor --json` has the reasons in full)")?;
        }
        if !self.advice.is_empty() {
            writeln!(f, "\nWhat would help")?;
        }
        for DoctorAdvice {
            about,
            problem,
            remedies,
        } in &self.advice
        {
            paragraph(f, "  ", &format!("{about}: {problem}"))?;
            for remedy in remedies {
                paragraph(f, "    - ", remedy)?;
            }
        }
        if let Some(server) = &self.local_server {
            writeln!(f, "\nCommands for people")?;
            paragraph(f, "  ", &server.to_string())?;
        }
        let conclusion = if self.enforceable {
            "Every kind of policy can be enforced here."
        } else {
            "Not every kind of policy can be enforced here; what cannot is refused, never weakened."
        };
        writeln!(f, "\n{conclusion}")
    }
}

fn table(can: &HostAbilities) -> Vec<(&'static str, &'static str, String)> {
    let mut rows = vec![
        (
            "Landlock",
            if can.landlock > 0 { "yes" } else { "no" },
            landlock(can.landlock),
        ),
        row("seccomp filters", &can.seccomp, ""),
        row(
            "user namespaces",
            &can.namespaces,
            "with mounts, ipc and network",
        ),
    ];
    // For ordinary accounts this never works, and that is fine.
    if can.privileged_namespaces.works() || can.host.account == 0 {
        let (name, detail) = ("privileged namespaces", "the same without a user namespace");
        rows.push(row(name, &can.privileged_namespaces, detail));
    }
    let path = can.bubblewrap_path.as_ref();
    let path = path.map_or(String::new(), |path| path.display().to_string());
    let (cgroups, groups) = cgroups(can.host.cgroups);
    rows.extend([
        row("pid namespace", &can.processes, "with a private /proc"),
        row(
            "guarded names",
            &can.guards,
            "missing names stay missing in writable directories",
        ),
        row("bubblewrap", &can.bubblewrap, &path),
        ("control groups", cgroups, groups.to_owned()),
    ]);
    rows
}

fn row(
    name: &'static str,
    ability: &ProbeOutcome,
    detail: &str,
) -> (&'static str, &'static str, String) {
    match ability {
        ProbeOutcome::Works => (name, "yes", detail.to_owned()),
        ProbeOutcome::Fails(reason) => (name, "no", reason.clone()),
        ProbeOutcome::Untried => (name, "-", "not probed".to_owned()),
    }
}

/// Explains what a Landlock ABI means for policies.
fn landlock(abi: u32) -> String {
    let meaning = match abi {
        0 => return "the kernel does not offer it".to_owned(),
        1 => "too old for policies, and for missing names",
        2..=5 => "protects missing names; too old for policies",
        _ => "enforces read-only policies, protects missing names",
    };
    format!("ABI {abi}: {meaning}")
}

fn cgroups(found: CgroupSupport) -> (&'static str, &'static str) {
    match found {
        CgroupSupport::None => ("no", "none are mounted; no policy needs them"),
        CgroupSupport::First => ("v1", "no policy needs them"),
        CgroupSupport::Unified => ("v2", "not writable for this account; no policy needs them"),
        CgroupSupport::Writable => ("v2", "writable for this account; no policy needs them"),
    }
}

fn is_long(reason: &str) -> bool {
    reason.chars().count() > REASON
}

/// Truncates a reason.
fn beginning(reason: &str) -> String {
    if !is_long(reason) {
        return reason.to_owned();
    }
    let mut cut: String = reason.chars().take(REASON).collect();
    cut.truncate(cut.rfind(' ').unwrap_or(cut.len()));
    format!("{cut}…")
}

/// Writes an indented paragraph after a prefix.
fn paragraph(f: &mut fmt::Formatter<'_>, start: &str, words: &str) -> fmt::Result {
    let indent = start.chars().count();
    let mut line = start.to_owned();
    let mut empty = true;
    for word in words.split_whitespace() {
        let length = line.chars().count() + usize::from(!empty) + word.chars().count();
        if length > WIDTH && !empty {
            writeln!(f, "{line}")?;
            line = " ".repeat(indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    writeln!(f, "{}", line.trim_end())
}
