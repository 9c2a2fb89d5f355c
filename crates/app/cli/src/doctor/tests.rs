//! Tests with synthetic machines: advice, and the printed report.

mod advice;
mod report;

use std::path::PathBuf;

use exec_sandbox::abilities::{CgroupSupport, HostAbilities, HostInfo, ProbeOutcome};

fn fails(reason: &str) -> ProbeOutcome {
    ProbeOutcome::Fails(reason.to_owned())
}

/// Returns a machine on which everything works that an ordinary account can use.
fn sound() -> HostAbilities {
    let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    HostAbilities {
        host: HostInfo {
            kernel: "6.12.8-made-up".to_owned(),
            account: 1000,
            max_user_namespaces: Some(15000),
            unprivileged_userns_clone: None,
            apparmor_restrict_unprivileged_userns: None,
            security_modules: text(&["capability", "landlock"]),
            seccomp_actions: text(&["kill_process", "user_notif", "allow"]),
            under_a_filter: false,
            container: None,
            cgroups: CgroupSupport::Unified,
        },
        landlock: 6,
        seccomp: ProbeOutcome::Works,
        namespaces: ProbeOutcome::Works,
        privileged_namespaces: fails("cannot make namespaces: Operation not permitted"),
        processes: ProbeOutcome::Works,
        guards: ProbeOutcome::Works,
        bubblewrap: fails("bwrap is not installed"),
        bubblewrap_path: None,
    }
}

fn without_namespaces(host: impl FnOnce(&mut HostInfo)) -> HostAbilities {
    let no = "cannot make namespaces: Operation not permitted (os error 1)";
    let mut can = HostAbilities {
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
