//! Tests with synthetic machines: advice, and the printed report.

use std::path::PathBuf;

use exec_sandbox::abilities::{
    CgroupSupport, HostAbilities, HostInfo, PolicySupport, ProbeOutcome,
};

use super::{DoctorReport, advice};

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

/// Compares the advice: topics, and words of each problem and its remedies.
fn check(name: &str, can: &HostAbilities, expected: &[(&str, &[&str])]) {
    let advice = advice(can);
    let abouts: Vec<_> = advice.iter().map(|advice| advice.about).collect();
    let expected_abouts: Vec<_> = expected.iter().map(|(about, _)| *about).collect();
    assert_eq!(abouts, expected_abouts, "{name}: {advice:#?}");
    for (advice, (_, words)) in advice.iter().zip(expected) {
        let all = format!("{}\n{}", advice.problem, advice.remedies.join("\n"));
        for word in *words {
            assert!(all.contains(word), "{name}: {all} lacks {word}");
        }
    }
}

#[test]
fn machine_without_problems_gets_no_advice() {
    check("sound", &sound(), &[]);
    let root = HostAbilities {
        namespaces: fails("no"),
        privileged_namespaces: ProbeOutcome::Works,
        ..sound()
    };
    check("root without user namespaces", &root, &[]);
}

#[test]
fn kernel_settings_are_listed_with_the_sysctl_command() {
    let about = "user namespaces";
    let none = without_namespaces(|host| host.max_user_namespaces = Some(0));
    let words = &["sysctl -w user.max_user_namespaces=15000"];
    check("no user namespaces", &none, &[(about, words)]);

    let debian = without_namespaces(|host| host.unprivileged_userns_clone = Some(0));
    let words = &["sysctl -w kernel.unprivileged_userns_clone=1"];
    check("Debian", &debian, &[(about, words)]);

    let ubuntu = without_namespaces(|host| host.apparmor_restrict_unprivileged_userns = Some(1));
    let words = &[
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        "bubblewrap",
        "/etc/apparmor.d/exec-server",
    ];
    check("Ubuntu", &ubuntu, &[(about, words)]);

    let both = without_namespaces(|host| {
        host.max_user_namespaces = Some(0);
        host.unprivileged_userns_clone = Some(0);
    });
    check(
        "both",
        &both,
        &[(about, &["max_user"]), (about, &["userns_clone"])],
    );
}

#[test]
fn root_gets_no_advice_about_unprivileged_settings() {
    let root = without_namespaces(|host| {
        host.account = 0;
        host.unprivileged_userns_clone = Some(0);
        host.apparmor_restrict_unprivileged_userns = Some(1);
    });
    check(
        "root",
        &root,
        &[("user namespaces", &["not permitted", "chroot"])],
    );
}

#[test]
fn each_kind_of_container_has_its_own_options() {
    for (container, namespaces, masked) in [
        (
            "docker",
            &["seccomp=unconfined", "apparmor=unconfined", "mount_setattr"][..],
            "systempaths=unconfined",
        ),
        (
            "podman",
            &["podman run --security-opt seccomp=unconfined"],
            "unmask=ALL",
        ),
        ("kubernetes", &["seccompProfile"], "procMount: Unmasked"),
        ("lxc", &["(lxc)", "seccomp"], "no part of /proc"),
    ] {
        let contained = |host: &mut HostInfo| {
            host.container = Some(container.to_owned());
            host.under_a_filter = true;
        };
        let can = without_namespaces(contained);
        check(container, &can, &[("user namespaces", namespaces)]);

        let mut can = sound();
        contained(&mut can.host);
        can.processes = fails("cannot make a view of processes: Operation not permitted");
        check(
            container,
            &can,
            &[("pid namespace", &[masked, "cannot signal"])],
        );
    }
}

#[test]
fn container_advice_changes_kernel_settings_on_the_host() {
    let mut can = without_namespaces(|host| {
        host.container = Some("docker".to_owned());
        host.max_user_namespaces = Some(0);
    });
    let about = "user namespaces";
    check("docker", &can, &[(about, &["on the host"])]);
    can.host.under_a_filter = true;
    let both: [(&str, &[&str]); 2] = [(about, &["on the host"]), (about, &["docker run"])];
    check("docker with a filter", &can, &both);
}

#[test]
fn container_without_seccomp_filter_gets_no_filter_advice() {
    let can = without_namespaces(|host| host.container = Some("docker".to_owned()));
    let words = &["not permitted", "AppArmor", "chroot"];
    check(
        "docker without a filter",
        &can,
        &[("user namespaces", words)],
    );
}

#[test]
fn seccomp_filter_outside_containers_is_attributed_to_the_unit() {
    let can = without_namespaces(|host| host.under_a_filter = true);
    check(
        "systemd",
        &can,
        &[("user namespaces", &["RestrictNamespaces=no"])],
    );
}

#[test]
fn old_kernels_are_told_which_version_is_needed() {
    let mut can = without_namespaces(|host| host.kernel = "5.4.0-42-generic".to_owned());
    can.landlock = 0;
    let expected: [(&str, &[&str]); 2] = [
        ("Landlock", &["5.4.0-42-generic", "Linux 6.12 or newer"]),
        ("user namespaces", &["Linux 5.12 or newer"]),
    ];
    check("5.4", &can, &expected);

    for (abi, words) in [
        (1, &["missing", "6.12"]),
        (2, &["6.10", "6.12"]),
        (5, &["before 6", "6.12"]),
    ] {
        let can = HostAbilities {
            landlock: abi,
            guards: match abi {
                1 => fails("Landlock ABI 2 is needed, and there is 1"),
                _ => ProbeOutcome::Works,
            },
            ..sound()
        };
        check("old ABI", &can, &[("Landlock", words)]);
    }
}

#[test]
fn landlock_is_missing_for_one_of_three_reasons() {
    let missing = |change: fn(&mut HostInfo)| {
        let mut can = HostAbilities {
            landlock: 0,
            guards: fails("Landlock ABI 2 is needed, and there is 0"),
            ..sound()
        };
        can.host.security_modules.clear();
        change(&mut can.host);
        can
    };
    let off = missing(|host| host.security_modules = vec!["capability".into(), "yama".into()]);
    check(
        "off",
        &off,
        &[("Landlock", &["lsm=landlock,capability,yama"])],
    );
    let unknown = missing(|_| ());
    check(
        "unknown",
        &unknown,
        &[("Landlock", &["CONFIG_SECURITY_LANDLOCK"])],
    );
    let filtered = missing(|host| host.under_a_filter = true);
    let words = &["CONFIG_SECURITY_LANDLOCK", "landlock_restrict_self"];
    check("filtered", &filtered, &[("Landlock", words)]);
}

#[test]
fn seccomp_guards_and_bubblewrap_have_their_own_advice() {
    let mut can = sound();
    can.seccomp = fails("Invalid argument");
    check(
        "forbidden",
        &can,
        &[("seccomp", &["Invalid argument", "seccomp(2)"])],
    );
    can.host.seccomp_actions.clear();
    check("none", &can, &[("seccomp", &["CONFIG_SECCOMP_FILTER"])]);

    let mut can = sound();
    can.guards = fails("cannot guard names: Device or resource busy");
    can.host.under_a_filter = true;
    check(
        "second listener",
        &can,
        &[("guarded names", &["busy", "listener"])],
    );
    can.host.seccomp_actions.clear();
    check(
        "no notifications",
        &can,
        &[("guarded names", &["Linux 5.0"])],
    );

    let mut can = without_namespaces(|host| host.max_user_namespaces = Some(0));
    can.bubblewrap_path = None;
    let expected: [(&str, &[&str]); 2] = [
        ("user namespaces", &["max_user_namespaces"]),
        ("bubblewrap", &["install"]),
    ];
    check("no bubblewrap", &can, &expected);
}

fn policy_support(policy: &'static str, found: Result<&'static str, &str>) -> PolicySupport {
    PolicySupport {
        policy,
        mechanism: found.ok(),
        reason: found.err().map(str::to_owned),
    }
}

#[test]
fn report_without_problems_is_short() {
    let policy_support = vec![policy_support("read-only, with network", Ok("landlock"))];
    let report = DoctorReport {
        version: "1.2.3".to_owned(),
        ..DoctorReport::with_policies(policy_support, sound())
    };
    assert!(report.enforceable);
    let expected = "\
exec-server 1.2.3 on Linux 6.12.8-made-up, account 1000

What works
  Landlock                         yes  ABI 6: enforces read-only policies, protects missing names
  seccomp filters                  yes
  user namespaces                  yes  with mounts, ipc and network
  pid namespace                    yes  with a private /proc
  guarded names                    yes  missing names stay missing in writable directories
  bubblewrap                       no   bwrap is not installed
  control groups                   v2   not writable for this account; no policy needs them

What enforces each kind of policy
  read-only, with network          landlock

Every kind of policy can be enforced here.
";
    assert_eq!(report.to_string(), expected);
}

#[test]
fn container_report_lists_refusals_and_remedies() {
    let policy_support = vec![
        policy_support("read-only, with network", Ok("landlock")),
        policy_support(
            "workspace-write, .git protected",
            Err(
                "no namespaces (cannot make namespaces: Operation not permitted (os error 1)), \
                 bubblewrap does not do (bwrap: no), and there is no other mechanism",
            ),
        ),
    ];
    let can = without_namespaces(|host| {
        host.account = 0;
        host.container = Some("docker".to_owned());
        host.under_a_filter = true;
        host.cgroups = CgroupSupport::None;
    });
    let report = DoctorReport {
        version: "1.2.3".to_owned(),
        ..DoctorReport::with_policies(policy_support, can)
    };
    assert!(!report.enforceable);
    let expected = "\
exec-server 1.2.3 on Linux 6.12.8-made-up, account 0, in a container (docker)

What works
  Landlock                         yes  ABI 6: enforces read-only policies, protects missing names
  seccomp filters                  yes
  user namespaces                  no   cannot make namespaces: Operation not permitted (os error 1)
  privileged namespaces            no   cannot make namespaces: Operation not permitted
  pid namespace                    no   cannot make namespaces: Operation not permitted (os error 1)
  guarded names                    no   there are no namespaces to guard
  bubblewrap                       no   bwrap: no
  control groups                   no   none are mounted; no policy needs them

What enforces each kind of policy
  read-only, with network          landlock
  workspace-write, .git protected  refused: no namespaces (cannot make namespaces: Operation not
                                   permitted (os error 1)), bubblewrap does not do (bwrap: no), and…
  (`exec-server doctor --json` has the reasons in full)

What would help
  user namespaces: the container (docker) has a filter that may forbid them
    - docker run --security-opt seccomp=unconfined, or a profile of your own that allows clone,
      unshare, mount, umount2, pivot_root, open_tree, move_mount, mount_setattr, fsopen, fsconfig
      and fsmount
    - as well, where the host has AppArmor: --security-opt apparmor=unconfined

Not every kind of policy can be enforced here; what cannot is refused, never weakened.
";
    assert_eq!(report.to_string(), expected);
}

#[test]
fn no_line_is_wider_than_a_hundred_columns() {
    let mut cans = vec![sound()];
    for container in [None, Some("docker"), Some("kubernetes"), Some("lxc")] {
        cans.push(without_namespaces(|host| {
            host.container = container.map(str::to_owned);
            host.max_user_namespaces = Some(0);
            host.unprivileged_userns_clone = Some(0);
            host.apparmor_restrict_unprivileged_userns = Some(1);
            host.under_a_filter = true;
        }));
    }
    for can in cans {
        let report = DoctorReport::with_policies(Vec::new(), can).to_string();
        for line in report.lines() {
            assert!(line.chars().count() <= 100, "{line}");
            assert_eq!(line, line.trim_end());
        }
    }
}

#[test]
fn json_report_members_are_stable() {
    let policy_support = vec![policy_support("managed network", Err("no namespaces"))];
    let can = without_namespaces(|host| host.max_user_namespaces = Some(0));
    let report = DoctorReport {
        version: "1.2.3".to_owned(),
        ..DoctorReport::with_policies(policy_support, can)
    };
    let no = "cannot make namespaces: Operation not permitted (os error 1)";
    let failed = |reason: &str| serde_json::json!({"state": "fails", "reason": reason});
    let expected = serde_json::json!({
        "version": "1.2.3",
        "enforceable": false,
        "abilities": {
            "host": {
                "kernel": "6.12.8-made-up",
                "account": 1000,
                "maxUserNamespaces": 0,
                "unprivilegedUsernsClone": null,
                "apparmorRestrictUnprivilegedUserns": null,
                "securityModules": ["capability", "landlock"],
                "seccompActions": ["kill_process", "user_notif", "allow"],
                "underAFilter": false,
                "container": null,
                "cgroups": "unified",
            },
            "landlock": 6,
            "seccomp": {"state": "works"},
            "namespaces": failed(no),
            "privilegedNamespaces": failed("cannot make namespaces: Operation not permitted"),
            "processes": failed(no),
            "guards": failed("there are no namespaces to guard"),
            "bubblewrap": failed("bwrap: no"),
            "bubblewrapPath": "/usr/bin/bwrap",
        },
        "outlook": [
            {"policy": "managed network", "mechanism": null, "reason": "no namespaces"},
        ],
        "advice": [{
            "about": "user namespaces",
            "problem": "user.max_user_namespaces is 0",
            "remedies": [
                "sysctl -w user.max_user_namespaces=15000, and the same line in /etc/sysctl.d/ to \
                 keep it",
            ],
        }],
    });
    assert_eq!(serde_json::to_value(&report).unwrap(), expected);
}
