//! Tests with synthetic machines: advice, and the printed report.

mod advice;
mod report;

use std::path::PathBuf;

use exec_sandbox::abilities::{Abilities, Ability, Cgroups, Host};

fn fails(reason: &str) -> Ability {
    Ability::Fails(reason.to_owned())
}

/// Returns a machine on which everything works that an ordinary account can use.
fn sound() -> Abilities {
    let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Abilities {
        host: Host {
            kernel: "6.12.8-made-up".to_owned(),
            account: 1000,
            max_user_namespaces: Some(15000),
            unprivileged_userns_clone: None,
            apparmor_restrict_unprivileged_userns: None,
            security_modules: text(&["capability", "landlock"]),
            seccomp_actions: text(&["kill_process", "user_notif", "allow"]),
            under_a_filter: false,
            container: None,
            cgroups: Cgroups::Unified,
        },
        landlock: 6,
        seccomp: Ability::Works,
        namespaces: Ability::Works,
        privileged_namespaces: fails("cannot make namespaces: Operation not permitted"),
        processes: Ability::Works,
        guards: Ability::Works,
        bubblewrap: fails("bwrap is not installed"),
        bubblewrap_path: None,
    }
}

fn without_namespaces(host: impl FnOnce(&mut Host)) -> Abilities {
    let no = "cannot make namespaces: Operation not permitted (os error 1)";
    let mut can = Abilities {
        namespaces: fails(no),
        processes: fails(no),
        guards: fails("there are no namespaces to guard"),
        bubblewrap: fails("bwrap: no"),
        bubblewrap_path: Some(PathBuf::from("/usr/bin/bwrap")),
        ..sound()
    };
    host(&mut can.host);
    can
}
