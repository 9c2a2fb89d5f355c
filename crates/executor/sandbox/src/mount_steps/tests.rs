use exec_spawn::enclosure::{Missing, Step};

use super::{steps, *};
use crate::plan::{Access, Kind, Layer, View};

const BARE: Fittings = Fittings {
    devices: false,
    processes: false,
    account: 1000,
};

fn layer(path: &str, kind: Kind, access: Access) -> Layer {
    Layer {
        path: path.into(),
        kind,
        access,
    }
}

fn view(base: Access, layers: Vec<Layer>) -> View {
    View {
        base,
        layers,
        forbidden: Vec::new(),
        links: Vec::new(),
    }
}

/// One line a step, with slots as letters.
fn told(view: &View, fittings: Fittings) -> Vec<String> {
    let letter =
        |slot: exec_spawn::enclosure::Slot| char::from(b'a' + u8::try_from(slot.0).unwrap());
    let path = |path: &std::ffi::CString| path.to_str().unwrap().to_owned();
    let steps = steps(view, fittings).unwrap();
    let told = steps.iter().map(|step| match step {
        Step::Copy {
            path: from,
            slot,
            missing,
        } => {
            let skip = if *missing == Missing::Skip {
                " if there"
            } else {
                ""
            };
            format!("copy {} {}{skip}", path(from), letter(*slot))
        }
        Step::ReadOnly { slot } => format!("read-only {}", letter(*slot)),
        Step::ReadOnlyView => "read-only view".to_owned(),
        Step::Memory { slot, mode, .. } => format!("memory {} {mode:o}", letter(*slot)),
        Step::Processes { slot } => format!("processes {}", letter(*slot)),
        Step::Terminals { slot } => format!("terminals {}", letter(*slot)),
        Step::Directory {
            slot,
            path: at,
            mode,
        } => {
            format!("directory {} {} {mode:o}", letter(*slot), path(at))
        }
        Step::File {
            slot,
            path: at,
            mode,
        } => {
            format!("file {} {} {mode:o}", letter(*slot), path(at))
        }
        Step::Link {
            slot,
            path: at,
            target,
        } => {
            format!("link {} {} {}", letter(*slot), path(at), path(target))
        }
        Step::Attach { slot, path: at } => format!("attach {} {}", letter(*slot), path(at)),
        Step::Cover {
            slot,
            entry,
            path: at,
        } => {
            format!("cover {} {} {}", letter(*slot), path(entry), path(at))
        }
        Step::Protect { path: at } => format!("protect {}", path(at)),
        Step::Pin { path: at } => format!("pin {}", path(at)),
        Step::Root { slot } => format!("root {}", letter(*slot)),
    });
    told.collect()
}

#[test]
fn a_workspace_is_copied_before_everything_is_read_only_and_attached_after() {
    let view = view(
        Access::Read,
        vec![
            layer("/w", Kind::Directory, Access::Write),
            layer("/w/.git", Kind::Directory, Access::Read),
        ],
    );
    assert_eq!(
        told(&view, BARE),
        [
            "copy /w a if there",
            "read-only view",
            "attach a /w",
            "protect /w/.git"
        ]
    );
}

#[test]
fn directories_on_the_way_to_what_is_protected_cannot_be_moved_away() {
    let mut view = view(
        Access::Read,
        vec![
            layer("/tmp", Kind::Directory, Access::Write),
            layer("/tmp/a/w/.git", Kind::Directory, Access::Read),
        ],
    );
    view.forbidden = vec![crate::plan::Forbidden {
        directory: "/tmp/b".into(),
        name: ".git".into(),
    }];
    assert_eq!(
        told(&view, BARE),
        [
            "copy /tmp a if there",
            "read-only view",
            "attach a /tmp",
            "pin /tmp/b",
            "pin /tmp/a",
            "pin /tmp/a/w",
            "protect /tmp/a/w/.git"
        ]
    );
}

#[test]
fn hidden_paths_are_covered_by_what_nobody_can_open() {
    let view = view(
        Access::Read,
        vec![
            layer("/home", Kind::Directory, Access::Hidden),
            layer("/etc/key", Kind::File, Access::Hidden),
        ],
    );
    assert_eq!(
        told(&view, BARE),
        [
            "memory a 755",
            "directory a directory 0",
            "file a file 0",
            "read-only a",
            "read-only view",
            "cover a directory /home",
            "cover a file /etc/key"
        ]
    );
}

#[test]
fn a_hidden_directory_lets_through_to_what_is_allowed_below_it() {
    let view = view(
        Access::Read,
        vec![
            layer("/home", Kind::Directory, Access::Hidden),
            layer("/home/me/w", Kind::Directory, Access::Write),
        ],
    );
    assert_eq!(
        told(&view, BARE),
        [
            "memory a 111",
            "directory a me 111",
            "directory a me/w 111",
            "read-only a",
            "copy /home/me/w b if there",
            "read-only view",
            "attach a /home",
            "attach b /home/me/w"
        ]
    );
}

#[test]
fn a_view_from_nothing_has_places_and_links_for_what_it_shows() {
    let mut view = view(
        Access::Hidden,
        vec![
            layer("/usr", Kind::Directory, Access::Read),
            layer("/etc/hosts", Kind::File, Access::Read),
            layer("/usr/w", Kind::Directory, Access::Write),
        ],
    );
    view.links = vec![
        ("/bin".into(), "usr/bin".into()),
        ("/usr/lib/here".into(), "there".into()),
    ];
    assert_eq!(
        told(&view, BARE),
        [
            "memory a 755",
            "directory a usr 755",
            "directory a etc 755",
            "file a etc/hosts 644",
            "link a bin usr/bin",
            "read-only a",
            "copy /usr b if there",
            "read-only b",
            "copy /etc/hosts c if there",
            "read-only c",
            "copy /usr/w d if there",
            "root a",
            "attach b /usr",
            "attach c /etc/hosts",
            "attach d /usr/w"
        ]
    );
}

#[test]
fn a_writable_root_stays_as_it_is_but_for_what_is_narrowed() {
    let view = view(
        Access::Read,
        vec![
            layer("/", Kind::Directory, Access::Write),
            layer("/sys", Kind::Directory, Access::Read),
        ],
    );
    assert_eq!(told(&view, BARE), ["protect /sys"]);
}

#[test]
fn processes_and_devices_come_before_the_layers() {
    let fittings = Fittings {
        devices: true,
        processes: true,
        account: 1000,
    };
    let told = told(
        &view(
            Access::Read,
            vec![layer("/dev/shm", Kind::Directory, Access::Write)],
        ),
        fittings,
    );
    let at = |line: &str| told.iter().position(|told| told == line).unwrap();
    let view = at("read-only view");
    assert!(
        told[..view]
            .iter()
            .any(|line| line.starts_with("copy /dev/null")),
        "{told:?}"
    );
    assert!(
        view < told
            .iter()
            .position(|line| line.ends_with(" /proc"))
            .unwrap()
    );
    assert!(
        view < told
            .iter()
            .position(|line| line.ends_with(" /dev"))
            .unwrap()
    );
    // The policy's own comes last.
    assert!(told.last().unwrap().ends_with("/dev/shm"), "{told:?}");
}

#[test]
fn the_hosts_devices_and_processes_stay_out_although_a_policy_names_them() {
    let fittings = Fittings {
        devices: true,
        processes: true,
        account: 1000,
    };
    let layers = ["/dev", "/dev/kmsg", "/proc", "/proc/1"];
    let layers = layers.map(|path| layer(path, Kind::Directory, Access::Read));
    let told = told(&view(Access::Hidden, layers.to_vec()), fittings);
    assert!(
        !told
            .iter()
            .any(|line| line.starts_with("copy /dev ") || line.contains("kmsg")),
        "{told:?}"
    );
    assert!(
        !told.iter().any(|line| line.starts_with("copy /proc")),
        "{told:?}"
    );
}

#[test]
fn many_hidden_directories_take_no_longer_than_they_are_many() {
    // Eight thousand of them took hours when each looked at all others.
    let layers =
        (0..8000).map(|number| layer(&format!("/w/{number}/x"), Kind::Directory, Access::Hidden));
    let mut layers: Vec<Layer> = layers.collect();
    layers.insert(0, layer("/w", Kind::Directory, Access::Write));
    let steps = steps(&view(Access::Read, layers), BARE).unwrap();
    assert_eq!(
        steps
            .iter()
            .filter(|step| matches!(step, Step::Cover { .. }))
            .count(),
        8000
    );
}

#[test]
fn uid_0_cannot_write_what_holds_for_the_host() {
    let fittings = Fittings {
        devices: false,
        processes: true,
        account: 0,
    };
    let told = told(&view(Access::Read, Vec::new()), fittings);
    assert!(told.contains(&"protect /proc/sys".to_owned()), "{told:?}");
}

#[test]
fn more_roots_than_descriptors_are_refused() {
    let layers =
        (0..600).map(|number| layer(&format!("/w{number}"), Kind::Directory, Access::Write));
    let view = view(Access::Read, layers.collect());
    assert_eq!(steps(&view, BARE), Err(ViewError::TooMany));
}
