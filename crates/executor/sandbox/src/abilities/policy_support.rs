//! What would enforce each kind of policy: asked of the code that does it, with plans like those that
//! policies come to.

use std::fs::File;

use serde::Serialize;

use super::Abilities;
use crate::{
    enforcement::{Kept, Managed, Mechanism, Order, Processes, Refusal, Rung, Who, enclose},
    plan::{Access, Files, Forbidden, Kind, Layer, Network, Plan, View},
};

/// What would enforce one kind of policy.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outlook {
    /// The kind of policy.
    pub policy: &'static str,
    /// What would enforce it: `landlock`, `namespaces` or `bubblewrap`. Absent: it would be refused.
    pub mechanism: Option<&'static str>,
    /// Why it would be refused.
    pub reason: Option<String>,
}

/// Tells what would enforce each kind of policy on a machine that can do this.
///
/// Nothing runs and nothing of the files is looked at; Landlock rulesets are made and dropped.
pub fn outlook(can: &Abilities, mechanism: Mechanism, processes: Processes) -> Vec<Outlook> {
    KINDS
        .iter()
        .map(|kind| {
            let found = kind.enclosed(can, mechanism, processes);
            Outlook {
                policy: kind.name,
                mechanism: found.as_ref().ok().copied(),
                reason: found.err(),
            }
        })
        .collect()
}

/// A plan like those of one kind of policy.
struct Example {
    name: &'static str,
    view: fn() -> View,
    network: Network,
    who: Who,
    /// The ports of its network, if that is managed.
    ports: &'static [u16],
}

const KINDS: [Example; 7] = [
    Example {
        network: Network::Host,
        ..command("read-only, with network", read_only)
    },
    command("read-only, without network", read_only),
    command("workspace-write, .git protected", workspace_write),
    command("only some paths can be read", narrow),
    command("some paths cannot be read", denied),
    Example {
        ports: &[3128],
        ..command("managed network", read_only)
    },
    Example {
        who: Who::Helper,
        ..command("file operations (fs/*)", workspace_write)
    },
];

const fn command(name: &'static str, view: fn() -> View) -> Example {
    Example {
        name,
        view,
        network: Network::None,
        who: Who::Command,
        ports: &[],
    }
}

impl Example {
    fn enclosed(
        &self,
        can: &Abilities,
        mechanism: Mechanism,
        processes: Processes,
    ) -> Result<&'static str, String> {
        let mechanism = match (mechanism, self.who) {
            // Which starts no helpers, so that they are left to the others.
            (Mechanism::Bubblewrap, Who::Helper) => Mechanism::Cheapest,
            (mechanism, _) => mechanism,
        };
        let managed = match self.ports {
            [] => None,
            ports => Some(Managed {
                ports: ports.to_vec(),
                // Nothing goes through it: nothing is started.
                door: File::open("/dev/null")
                    .map_err(|error| format!("cannot open /dev/null: {error}"))?
                    .into(),
                unix: false,
            }),
        };
        let plan = Plan {
            files: Files::View((self.view)()),
            network: self.network,
        };
        let order = Order {
            plan: &plan,
            who: self.who,
            mechanism,
            processes,
            managed,
            kept: &Kept::default(),
        };
        match enclose(order, can) {
            Ok(Rung::Enclosed(enclosure)) if enclosure.namespaces.is_some() => Ok("namespaces"),
            Ok(Rung::Enclosed(_)) => Ok("landlock"),
            Ok(Rung::Bubblewrap(_)) => Ok("bubblewrap"),
            Ok(Rung::Free) => Err("the plan of this kind restricts nothing".to_owned()),
            Err(Refusal::Unenforceable(reason)) => Err(reason),
            Err(refusal @ (Refusal::Domain(_) | Refusal::View(_))) => Err(refusal.to_string()),
        }
    }
}

fn view(base: Access, layers: &[(&str, Access)]) -> View {
    let layer = |(path, access): &(&str, Access)| Layer {
        path: path.into(),
        kind: Kind::Directory,
        access: *access,
    };
    View {
        base,
        layers: layers.iter().map(layer).collect(),
        forbidden: Vec::new(),
        links: Vec::new(),
    }
}

fn read_only() -> View {
    view(Access::Read, &[])
}

/// One protected name is there, and one is not.
fn workspace_write() -> View {
    let layers = [
        ("/tmp", Access::Write),
        ("/workspace", Access::Write),
        ("/workspace/.git", Access::Read),
    ];
    let mut view = view(Access::Read, &layers);
    view.forbidden.push(Forbidden {
        directory: "/workspace".into(),
        name: ".codex".into(),
    });
    view
}

fn narrow() -> View {
    let layers = [("/usr", Access::Read), ("/workspace", Access::Read)];
    view(Access::Hidden, &layers)
}

fn denied() -> View {
    view(Access::Read, &[("/workspace/secrets", Access::Hidden)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abilities::{Ability, Cgroups, Host};

    /// Without Landlock, because a made-up version of it would be asked of the kernel.
    fn machine() -> Abilities {
        let none = || Ability::Fails("made up".to_owned());
        Abilities {
            host: Host {
                kernel: "5.10.0".to_owned(),
                account: 1000,
                max_user_namespaces: None,
                unprivileged_userns_clone: None,
                apparmor_restrict_unprivileged_userns: None,
                security_modules: Vec::new(),
                seccomp_actions: Vec::new(),
                under_a_filter: false,
                container: None,
                cgroups: Cgroups::None,
            },
            landlock: 0,
            seccomp: Ability::Works,
            namespaces: none(),
            privileged_namespaces: none(),
            processes: none(),
            guards: none(),
            bubblewrap: none(),
            bubblewrap_path: None,
        }
    }

    fn mechanisms(can: &Abilities) -> Vec<Option<&'static str>> {
        let outlook = outlook(can, Mechanism::Cheapest, Processes::Isolated);
        for Outlook {
            policy,
            mechanism,
            reason,
        } in &outlook
        {
            assert_ne!(mechanism.is_some(), reason.is_some(), "{policy}");
        }
        outlook.iter().map(|outlook| outlook.mechanism).collect()
    }

    #[test]
    fn where_nothing_works_everything_would_be_refused() {
        let bare = Abilities {
            seccomp: Ability::Fails("made up".to_owned()),
            ..machine()
        };
        assert_eq!(mechanisms(&bare), [None; 7]);
        assert_eq!(mechanisms(&machine()), [None; 7]);
    }

    #[test]
    fn bubblewrap_does_neither_missing_names_nor_managed_networks_nor_files() {
        let wrapped = Abilities {
            bubblewrap: Ability::Works,
            bubblewrap_path: Some("/usr/bin/bwrap".into()),
            ..machine()
        };
        let bwrap = Some("bubblewrap");
        let expected = [bwrap, bwrap, None, bwrap, bwrap, None, None];
        assert_eq!(mechanisms(&wrapped), expected);
    }

    #[test]
    fn namespaces_without_guards_protect_no_names_that_are_missing() {
        let spaced = Abilities {
            namespaces: Ability::Works,
            processes: Ability::Works,
            ..machine()
        };
        let space = Some("namespaces");
        let expected = [space, space, None, space, space, space, None];
        assert_eq!(mechanisms(&spaced), expected);
    }

    #[test]
    fn namespaces_without_one_of_processes_need_landlock_for_commands() {
        let spaced = Abilities {
            privileged_namespaces: Ability::Works,
            ..machine()
        };
        assert_eq!(mechanisms(&spaced), [None; 7]);
        let reasons = outlook(&spaced, Mechanism::Cheapest, Processes::Isolated);
        let reason = reasons[0].reason.clone().unwrap_or_default();
        assert!(reason.contains("made up"), "{reason}");
    }

    #[test]
    fn what_the_setting_leaves_out_is_not_used() {
        let spaced = Abilities {
            namespaces: Ability::Works,
            processes: Ability::Works,
            ..machine()
        };
        for mechanism in [Mechanism::Landlock, Mechanism::Bubblewrap] {
            let outlook = outlook(&spaced, mechanism, Processes::Isolated);
            assert_eq!(outlook[1].mechanism, None, "{mechanism:?}");
        }
    }

    #[test]
    fn an_outlook_is_a_stable_object() {
        let outlook = outlook(&machine(), Mechanism::Namespaces, Processes::Inherited);
        let json = serde_json::to_value(&outlook[0]).unwrap();
        let expected = serde_json::json!({
            "policy": "read-only, with network",
            "mechanism": null,
            "reason": "no namespaces (made up)",
        });
        assert_eq!(json, expected);
    }
}
