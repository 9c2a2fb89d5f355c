//! Tests of the printed report.

use exec_sandbox::abilities::PolicySupport;

use super::*;
use crate::doctor::DoctorReport;

fn outlook(policy: &'static str, found: Result<&'static str, &str>) -> PolicySupport {
    PolicySupport {
        policy,
        mechanism: found.ok(),
        reason: found.err().map(str::to_owned),
    }
}

#[test]
fn report_without_problems_is_short() {
    let outlook = vec![outlook("read-only, with network", Ok("landlock"))];
    let report = DoctorReport {
        version: "1.2.3".to_owned(),
        ..DoctorReport::with_outlook(outlook, sound())
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
    let outlook = vec![
        outlook("read-only, with network", Ok("landlock")),
        outlook(
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
        ..DoctorReport::with_outlook(outlook, can)
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
        let report = DoctorReport::with_outlook(Vec::new(), can).to_string();
        for line in report.lines() {
            assert!(line.chars().count() <= 100, "{line}");
            assert_eq!(line, line.trim_end());
        }
    }
}

#[test]
fn json_report_members_are_stable() {
    let outlook = vec![outlook("managed network", Err("no namespaces"))];
    let can = without_namespaces(|host| host.max_user_namespaces = Some(0));
    let report = DoctorReport {
        version: "1.2.3".to_owned(),
        ..DoctorReport::with_outlook(outlook, can)
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
