use exec_spawn::sandbox_setup::{MissingPath, MountStep};

use super::*;
use crate::plan::{FileView, PathAccess, PathKind, ViewLayer};

const NO_PSEUDO_FS: PseudoFs = PseudoFs {
    devices: false,
    processes: false,
    account: 1000,
};

fn layer(path: &str, kind: PathKind, access: PathAccess) -> ViewLayer {
    ViewLayer {
        path: path.into(),
        kind,
        access,
    }
}

fn view(base: PathAccess, layers: Vec<ViewLayer>) -> FileView {
    FileView {
        base,
        layers,
        forbidden: Vec::new(),
        links: Vec::new(),
    }
}

/// Describes one step per line, with slots as letters.
fn described(view: &FileView, pseudo_fs: PseudoFs) -> Vec<String> {
    let letter = |slot: exec_spawn::sandbox_setup::MountSlot| {
        char::from(b'a' + u8::try_from(slot.0).unwrap())
    };
    let path = |path: &std::ffi::CString| path.to_str().unwrap().to_owned();
    let steps = mount_steps(view, pseudo_fs).unwrap();
    let described = steps.iter().map(|step| match step {
        MountStep::Copy {
            path: from,
            slot,
            missing,
        } => {
            let skip = if *missing == MissingPath::Skip {
                " if there"
            } else {
                ""
            };
            format!("copy {} {}{skip}", path(from), letter(*slot))
        }
        MountStep::ReadOnly { slot } => format!("read-only {}", letter(*slot)),
        MountStep::ReadOnlyView => "read-only view".to_owned(),
        MountStep::Memory { slot, mode, .. } => format!("memory {} {mode:o}", letter(*slot)),
        MountStep::Processes { slot } => format!("processes {}", letter(*slot)),
        MountStep::Terminals { slot } => format!("terminals {}", letter(*slot)),
        MountStep::Directory {
            slot,
            path: at,
            mode,
        } => {
            format!("directory {} {} {mode:o}", letter(*slot), path(at))
        }
        MountStep::File {
            slot,
            path: at,
            mode,
        } => {
            format!("file {} {} {mode:o}", letter(*slot), path(at))
        }
        MountStep::Link {
            slot,
            path: at,
            target,
        } => {
            format!("link {} {} {}", letter(*slot), path(at), path(target))
        }
        MountStep::Attach { slot, path: at } => format!("attach {} {}", letter(*slot), path(at)),
        MountStep::Cover {
            slot,
            entry,
            path: at,
        } => {
            format!("cover {} {} {}", letter(*slot), path(entry), path(at))
        }
        MountStep::Protect { path: at } => format!("protect {}", path(at)),
        MountStep::Pin { path: at } => format!("pin {}", path(at)),
        MountStep::Root { slot } => format!("root {}", letter(*slot)),
    });
    described.collect()
}

#[test]
fn workspace_mount_is_copied_before_the_view_becomes_read_only() {
    let view = view(
        PathAccess::Read,
        vec![
            layer("/w", PathKind::Directory, PathAccess::Write),
            layer("/w/.git", PathKind::Directory, PathAccess::Read),
        ],
    );
    assert_eq!(
        described(&view, NO_PSEUDO_FS),
        [
            "copy /w a if there",
            "read-only view",
            "attach a /w",
            "protect /w/.git"
        ]
    );
}

#[test]
fn parents_of_protected_paths_are_pinned() {
    let mut view = view(
        PathAccess::Read,
        vec![
            layer("/tmp", PathKind::Directory, PathAccess::Write),
            layer("/tmp/a/w/.git", PathKind::Directory, PathAccess::Read),
        ],
    );
    view.forbidden = vec![crate::plan::ForbiddenName {
        directory: "/tmp/b".into(),
        name: ".git".into(),
    }];
    assert_eq!(
        described(&view, NO_PSEUDO_FS),
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
fn hidden_paths_are_covered_by_inaccessible_entries() {
    let view = view(
        PathAccess::Read,
        vec![
            layer("/home", PathKind::Directory, PathAccess::Hidden),
            layer("/etc/key", PathKind::File, PathAccess::Hidden),
        ],
    );
    assert_eq!(
        described(&view, NO_PSEUDO_FS),
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
fn hidden_directory_can_be_traversed_to_allowed_paths() {
    let view = view(
        PathAccess::Read,
        vec![
            layer("/home", PathKind::Directory, PathAccess::Hidden),
            layer("/home/me/w", PathKind::Directory, PathAccess::Write),
        ],
    );
    assert_eq!(
        described(&view, NO_PSEUDO_FS),
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
fn hidden_base_gets_mount_points_and_links() {
    let mut view = view(
        PathAccess::Hidden,
        vec![
            layer("/usr", PathKind::Directory, PathAccess::Read),
            layer("/etc/hosts", PathKind::File, PathAccess::Read),
            layer("/usr/w", PathKind::Directory, PathAccess::Write),
        ],
    );
    view.links = vec![
        ("/bin".into(), "usr/bin".into()),
        ("/usr/lib/here".into(), "there".into()),
    ];
    assert_eq!(
        described(&view, NO_PSEUDO_FS),
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
fn writable_root_only_protects_restricted_paths() {
    let view = view(
        PathAccess::Read,
        vec![
            layer("/", PathKind::Directory, PathAccess::Write),
            layer("/sys", PathKind::Directory, PathAccess::Read),
        ],
    );
    assert_eq!(described(&view, NO_PSEUDO_FS), ["protect /sys"]);
}

#[test]
fn proc_and_dev_are_attached_before_the_layers() {
    let pseudo_fs = PseudoFs {
        devices: true,
        processes: true,
        account: 1000,
    };
    let described = described(
        &view(
            PathAccess::Read,
            vec![layer("/dev/shm", PathKind::Directory, PathAccess::Write)],
        ),
        pseudo_fs,
    );
    let at = |line: &str| {
        described
            .iter()
            .position(|described| described == line)
            .unwrap()
    };
    let view = at("read-only view");
    assert!(
        described[..view]
            .iter()
            .any(|line| line.starts_with("copy /dev/null")),
        "{described:?}"
    );
    assert!(
        view < described
            .iter()
            .position(|line| line.ends_with(" /proc"))
            .unwrap()
    );
    assert!(
        view < described
            .iter()
            .position(|line| line.ends_with(" /dev"))
            .unwrap()
    );
    // The layer of the policy comes last.
    assert!(
        described.last().unwrap().ends_with("/dev/shm"),
        "{described:?}"
    );
}

#[test]
fn host_devices_and_processes_stay_hidden_despite_policy_entries() {
    let pseudo_fs = PseudoFs {
        devices: true,
        processes: true,
        account: 1000,
    };
    let layers = ["/dev", "/dev/kmsg", "/proc", "/proc/1"];
    let layers = layers.map(|path| layer(path, PathKind::Directory, PathAccess::Read));
    let described = described(&view(PathAccess::Hidden, layers.to_vec()), pseudo_fs);
    assert!(
        !described
            .iter()
            .any(|line| line.starts_with("copy /dev ") || line.contains("kmsg")),
        "{described:?}"
    );
    assert!(
        !described.iter().any(|line| line.starts_with("copy /proc")),
        "{described:?}"
    );
}

#[test]
fn hidden_directories_take_linear_time() {
    // Eight thousand took hours when each was compared with all others.
    let layers = (0..8000).map(|number| {
        layer(
            &format!("/w/{number}/x"),
            PathKind::Directory,
            PathAccess::Hidden,
        )
    });
    let mut layers: Vec<ViewLayer> = layers.collect();
    layers.insert(0, layer("/w", PathKind::Directory, PathAccess::Write));
    let steps = mount_steps(&view(PathAccess::Read, layers), NO_PSEUDO_FS).unwrap();
    assert_eq!(
        steps
            .iter()
            .filter(|step| matches!(step, MountStep::Cover { .. }))
            .count(),
        8000
    );
}

#[test]
fn uid_0_cannot_write_host_settings() {
    let pseudo_fs = PseudoFs {
        devices: false,
        processes: true,
        account: 0,
    };
    let described = described(&view(PathAccess::Read, Vec::new()), pseudo_fs);
    assert!(
        described.contains(&"protect /proc/sys".to_owned()),
        "{described:?}"
    );
}

#[test]
fn more_roots_than_descriptors_are_refused() {
    let layers = (0..600).map(|number| {
        layer(
            &format!("/w{number}"),
            PathKind::Directory,
            PathAccess::Write,
        )
    });
    let view = view(PathAccess::Read, layers.collect());
    assert_eq!(
        mount_steps(&view, NO_PSEUDO_FS),
        Err(MountStepsError::TooManyRoots)
    );
}
