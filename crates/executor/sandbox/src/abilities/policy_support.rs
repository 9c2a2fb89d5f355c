//! Reports which mechanism would enforce each kind of policy.
//!
//! Runs the real selection code with an example plan for each kind of policy.

use std::fs::File;

use serde::Serialize;

use super::HostAbilities;
use crate::{
    enforcement::{
        Enforcement, EnforcementCache, EnforcementError, EnforcementRequest, ListenerHandoff,
        MechanismChoice, ProcessIsolation, SandboxSubject, select_enforcement,
    },
    plan::{
        FileAccess, FileView, ForbiddenName, NetworkScope, PathAccess, PathKind, SandboxPlan,
        ViewLayer,
    },
};

/// Mechanism that would enforce one kind of policy.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicySupport {
    /// Kind of policy.
    pub policy: &'static str,
    /// Mechanism that would enforce it: `landlock`, `namespaces` or `bubblewrap`. Absent if the
    /// policy would be refused.
    pub mechanism: Option<&'static str>,
    /// Reason for the refusal.
    pub reason: Option<String>,
}

/// Returns which mechanism would enforce each kind of policy on a host with these abilities.
///
/// Starts no process and reads no files. Landlock rulesets are created and dropped.
pub fn policy_support(
    abilities: &HostAbilities,
    mechanism: MechanismChoice,
    processes: ProcessIsolation,
) -> Vec<PolicySupport> {
    EXAMPLES
        .iter()
        .map(|example| {
            let result = example.mechanism_for(abilities, mechanism, processes);
            PolicySupport {
                policy: example.name,
                mechanism: result.as_ref().ok().copied(),
                reason: result.err(),
            }
        })
        .collect()
}

/// Example plan for one kind of policy.
struct ExamplePolicy {
    name: &'static str,
    view: fn() -> FileView,
    network: NetworkScope,
    subject: SandboxSubject,
    /// Ports of the managed network. Empty if the network is not managed.
    ports: &'static [u16],
}

const EXAMPLES: [ExamplePolicy; 7] = [
    ExamplePolicy {
        network: NetworkScope::Host,
        ..command("read-only, with network", read_only)
    },
    command("read-only, without network", read_only),
    command("workspace-write, .git protected", workspace_write),
    command("only some paths can be read", readable_list),
    command("some paths cannot be read", unreadable_path),
    ExamplePolicy {
        ports: &[3128],
        ..command("managed network", read_only)
    },
    ExamplePolicy {
        subject: SandboxSubject::FsWorker,
        ..command("file operations (fs/*)", workspace_write)
    },
];

const fn command(name: &'static str, view: fn() -> FileView) -> ExamplePolicy {
    ExamplePolicy {
        name,
        view,
        network: NetworkScope::None,
        subject: SandboxSubject::Command,
        ports: &[],
    }
}

impl ExamplePolicy {
    fn mechanism_for(
        &self,
        abilities: &HostAbilities,
        mechanism: MechanismChoice,
        processes: ProcessIsolation,
    ) -> Result<&'static str, String> {
        let mechanism = match (mechanism, self.subject) {
            // Bubblewrap cannot run fs workers, so they use the other mechanisms.
            (MechanismChoice::Bubblewrap, SandboxSubject::FsWorker) => MechanismChoice::Cheapest,
            (mechanism, _) => mechanism,
        };
        let handoff = match self.ports {
            [] => None,
            ports => Some(ListenerHandoff {
                ports: ports.to_vec(),
                // Placeholder: no process is started, so the socket is never used.
                socket: Some(
                    File::open("/dev/null")
                        .map_err(|error| format!("cannot open /dev/null: {error}"))?
                        .into(),
                ),
                unix: false,
            }),
        };
        let plan = SandboxPlan {
            files: FileAccess::View((self.view)()),
            network: self.network,
        };
        let request = EnforcementRequest {
            plan: &plan,
            subject: self.subject,
            mechanism,
            processes,
            handoff,
            cache: &EnforcementCache::default(),
        };
        match select_enforcement(request, abilities) {
            Ok(Enforcement::Kernel(setup)) if setup.namespaces.is_some() => Ok("namespaces"),
            Ok(Enforcement::Kernel(_)) => Ok("landlock"),
            Ok(Enforcement::Bubblewrap(_)) => Ok("bubblewrap"),
            Ok(Enforcement::Unrestricted) => {
                Err("the plan of this kind restricts nothing".to_owned())
            }
            Err(EnforcementError::Unenforceable(reason)) => Err(reason),
            Err(error @ (EnforcementError::Domain(_) | EnforcementError::View(_))) => {
                Err(error.to_string())
            }
        }
    }
}

fn view(base: PathAccess, layers: &[(&str, PathAccess)]) -> FileView {
    let layer = |(path, access): &(&str, PathAccess)| ViewLayer {
        path: path.into(),
        kind: PathKind::Directory,
        access: *access,
    };
    FileView {
        base,
        layers: layers.iter().map(layer).collect(),
        forbidden: Vec::new(),
        links: Vec::new(),
    }
}

fn read_only() -> FileView {
    view(PathAccess::Read, &[])
}

/// One protected name exists and one does not.
fn workspace_write() -> FileView {
    let layers = [
        ("/tmp", PathAccess::Write),
        ("/workspace", PathAccess::Write),
        ("/workspace/.git", PathAccess::Read),
    ];
    let mut view = view(PathAccess::Read, &layers);
    view.forbidden.push(ForbiddenName {
        directory: "/workspace".into(),
        name: ".codex".into(),
    });
    view
}

fn readable_list() -> FileView {
    let layers = [("/usr", PathAccess::Read), ("/workspace", PathAccess::Read)];
    view(PathAccess::Hidden, &layers)
}

fn unreadable_path() -> FileView {
    view(
        PathAccess::Read,
        &[("/workspace/secrets", PathAccess::Hidden)],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abilities::{CgroupSupport, HostInfo, ProbeOutcome};

    /// Without Landlock, because selection would ask the kernel for a ruleset of the made-up
    /// version.
    fn machine() -> HostAbilities {
        let none = || ProbeOutcome::Fails("made up".to_owned());
        HostAbilities {
            host: HostInfo {
                kernel: "5.10.0".to_owned(),
                account: 1000,
                max_user_namespaces: None,
                unprivileged_userns_clone: None,
                apparmor_restrict_unprivileged_userns: None,
                security_modules: Vec::new(),
                seccomp_actions: Vec::new(),
                under_a_filter: false,
                container: None,
                cgroups: CgroupSupport::None,
            },
            landlock: 0,
            seccomp: ProbeOutcome::Works,
            namespaces: none(),
            privileged_namespaces: none(),
            processes: none(),
            guards: none(),
            bubblewrap: none(),
            bubblewrap_path: None,
        }
    }

    fn mechanisms(abilities: &HostAbilities) -> Vec<Option<&'static str>> {
        let support = policy_support(
            abilities,
            MechanismChoice::Cheapest,
            ProcessIsolation::Isolated,
        );
        for PolicySupport {
            policy,
            mechanism,
            reason,
        } in &support
        {
            assert_ne!(mechanism.is_some(), reason.is_some(), "{policy}");
        }
        support.iter().map(|support| support.mechanism).collect()
    }

    #[test]
    fn every_policy_is_refused_where_nothing_works() {
        let bare = HostAbilities {
            seccomp: ProbeOutcome::Fails("made up".to_owned()),
            ..machine()
        };
        assert_eq!(mechanisms(&bare), [None; 7]);
        assert_eq!(mechanisms(&machine()), [None; 7]);
    }

    #[test]
    fn bubblewrap_supports_no_missing_names_managed_networks_or_fs_workers() {
        let wrapped = HostAbilities {
            bubblewrap: ProbeOutcome::Works,
            bubblewrap_path: Some("/usr/bin/bwrap".into()),
            ..machine()
        };
        let bwrap = Some("bubblewrap");
        let expected = [bwrap, bwrap, None, bwrap, bwrap, None, None];
        assert_eq!(mechanisms(&wrapped), expected);
    }

    #[test]
    fn namespaces_without_guards_cannot_protect_missing_names() {
        let spaced = HostAbilities {
            namespaces: ProbeOutcome::Works,
            processes: ProbeOutcome::Works,
            ..machine()
        };
        let space = Some("namespaces");
        let expected = [space, space, None, space, space, space, None];
        assert_eq!(mechanisms(&spaced), expected);
    }

    #[test]
    fn commands_without_a_pid_namespace_need_landlock() {
        let spaced = HostAbilities {
            privileged_namespaces: ProbeOutcome::Works,
            ..machine()
        };
        assert_eq!(mechanisms(&spaced), [None; 7]);
        let reasons = policy_support(
            &spaced,
            MechanismChoice::Cheapest,
            ProcessIsolation::Isolated,
        );
        let reason = reasons[0].reason.clone().unwrap_or_default();
        assert!(reason.contains("made up"), "{reason}");
    }

    #[test]
    fn excluded_mechanism_is_not_used() {
        let spaced = HostAbilities {
            namespaces: ProbeOutcome::Works,
            processes: ProbeOutcome::Works,
            ..machine()
        };
        for mechanism in [MechanismChoice::Landlock, MechanismChoice::Bubblewrap] {
            let support = policy_support(&spaced, mechanism, ProcessIsolation::Isolated);
            assert_eq!(support[1].mechanism, None, "{mechanism:?}");
        }
    }

    #[test]
    fn policy_support_json_is_stable() {
        let support = policy_support(
            &machine(),
            MechanismChoice::Namespaces,
            ProcessIsolation::Inherited,
        );
        let json = serde_json::to_value(&support[0]).unwrap();
        let expected = serde_json::json!({
            "policy": "read-only, with network",
            "mechanism": null,
            "reason": "no namespaces (made up)",
        });
        assert_eq!(json, expected);
    }
}
