//! The mount view of a sandboxed command, and pinned paths in it.

use std::os::unix::fs::symlink;

use super::*;

#[tokio::test]
async fn read_only_view_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "echo x > {0}/file; mkdir {0}/dir; : >> /proc/sys/vm/stat_interval; echo x > /dev/null",
        dir.path().display()
    );
    let mut steps = read_only();
    steps.push(MountStep::Protect {
        path: c"/proc/sys".to_owned(),
    });
    let outcome = run(namespaces(steps), &script).await;
    assert_eq!(outcome.status, 0, "the null device works: {outcome:?}");
    let refused = |why: &str| outcome.output.matches(why).count();
    // Only root gets far enough to see that the kernel's settings are read-only.
    let all = refused("Read-only file system") + refused("Permission denied");
    assert_eq!(all, 3, "{outcome:?}");
    assert!(refused("Read-only file system") >= 2, "{outcome:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn cloned_directory_is_writable_except_protected_paths() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    std::fs::create_dir(path.join(".git")).unwrap();
    let mut steps = with_writable(read_only(), &path);
    steps.push(MountStep::Protect {
        path: c_path(&path.join(".git")),
    });
    let script = format!(
        "cd {0} && echo x > file && (echo x > .git/file; mv .git other; rmdir .git; true)",
        path.display()
    );
    let outcome = run(namespaces(steps), &script).await;
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert_eq!(std::fs::read(path.join("file")).unwrap(), b"x\n");
    assert_eq!(outcome.output.matches("Read-only").count(), 1);
    assert_eq!(std::fs::read_dir(path.join(".git")).unwrap().count(), 0);
}

#[tokio::test]
async fn single_file_stays_writable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap().join("file");
    std::fs::write(&path, "").unwrap();
    let script = format!("echo x > {0}; echo y > {0}2", path.display());
    let outcome = run(namespaces(with_writable(read_only(), &path)), &script).await;
    assert_eq!(outcome.status, 1 << 8, "{outcome:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"x\n");
}

#[tokio::test]
async fn new_root_contains_only_attached_mounts() {
    let (root, dir) = (MountSlot(0), |number: u16| MountSlot(10 + number));
    let names = ["usr", "bin", "lib", "lib64", "sbin"];
    let mut steps = vec![MountStep::Memory {
        slot: root,
        mode: 0o755,
        bytes: 1 << 20,
    }];
    let mut attach = Vec::new();
    for (number, name) in (0..).zip(names) {
        let path = Path::new("/").join(name);
        if let Ok(target) = std::fs::read_link(&path) {
            steps.push(MountStep::Link {
                slot: root,
                path: CString::new(name).unwrap(),
                target: c_path(&target),
            });
            continue;
        }
        if !path.exists() {
            continue;
        }
        steps.push(MountStep::Copy {
            path: c_path(&path),
            slot: dir(number),
            missing: MissingPath::Skip,
        });
        steps.push(MountStep::ReadOnly { slot: dir(number) });
        steps.push(MountStep::Directory {
            slot: root,
            path: CString::new(name).unwrap(),
            mode: 0o755,
        });
        attach.push(MountStep::Attach {
            slot: dir(number),
            path: c_path(&path),
        });
    }
    steps.push(MountStep::Copy {
        path: c"/nowhere".to_owned(),
        slot: MountSlot(100),
        missing: MissingPath::Skip,
    });
    steps.push(MountStep::Processes {
        slot: MountSlot(101),
    });
    steps.push(MountStep::Terminals {
        slot: MountSlot(102),
    });
    for name in [c"proc", c"pts"] {
        steps.push(MountStep::Directory {
            slot: root,
            path: name.to_owned(),
            mode: 0o755,
        });
    }
    steps.push(MountStep::Root { slot: root });
    steps.append(&mut attach);
    for (slot, path) in [(100, c"/nowhere"), (101, c"/proc"), (102, c"/pts")] {
        steps.push(MountStep::Attach {
            slot: MountSlot(slot),
            path: path.to_owned(),
        });
    }
    let script = "cd /; ls -d etc root home work nowhere 2>/dev/null; ls /..; ls /pts; pwd; \
                  echo x > /usr/x; echo x > /in-memory && cat /in-memory";
    let outcome = run(namespaces(steps), script).await;
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let lines: Vec<&str> = outcome.output.lines().collect();
    assert!(
        lines.contains(&"proc") && lines.contains(&"usr"),
        "{lines:?}"
    );
    assert!(lines.contains(&"ptmx"), "{lines:?}");
    assert!(!lines.contains(&"etc"), "{lines:?}");
    assert!(outcome.output.contains("Read-only"), "{lines:?}");
    assert_eq!(lines.last(), Some(&"x"));
}

#[tokio::test]
async fn slot_entry_can_cover_several_paths() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    std::fs::write(path.join("secret"), "secret").unwrap();
    std::fs::create_dir(path.join("hidden")).unwrap();
    std::fs::write(path.join("hidden/inside"), "").unwrap();
    let mask = MountSlot(5);
    let cover = |entry: &CStr, name: &str| MountStep::Cover {
        slot: mask,
        entry: entry.to_owned(),
        path: c_path(&path.join(name)),
    };
    let mut steps = read_only();
    steps.extend([
        MountStep::Memory {
            slot: mask,
            mode: 0o755,
            bytes: 4096,
        },
        MountStep::File {
            slot: mask,
            path: c"file".to_owned(),
            mode: 0,
        },
        MountStep::Directory {
            slot: mask,
            path: c"dir".to_owned(),
            mode: 0,
        },
        MountStep::ReadOnly { slot: mask },
        cover(c"file", "secret"),
        cover(c"dir", "hidden"),
        cover(c"file", "secret"),
    ]);
    let script = format!(
        "cd {}; cat secret; ls hidden; stat -c %a secret hidden; ls -a /.. | grep -x file",
        path.display()
    );
    let outcome = run(namespaces(steps), &script).await;
    // Root without capabilities is subject to permissions, too.
    assert_eq!(
        outcome.output.matches("Permission denied").count(),
        2,
        "{outcome:?}"
    );
    assert!(outcome.output.ends_with("\n0\n0\n"), "{outcome:?}");
}

#[tokio::test]
async fn failing_step_is_named_and_nothing_runs() {
    let mut steps = read_only();
    let failing = MountStep::Protect {
        path: c"/nowhere/at/all".to_owned(),
    };
    steps.push(failing.clone());
    let refused = refusal(namespaces(steps)).await;
    assert_eq!(refused, (SetupStep::Step(failing), libc::ENOENT));
    assert_eq!(refused.0.to_string(), "protect `/nowhere/at/all`");
}

#[tokio::test]
async fn failed_start_leaves_no_process_behind() {
    let spawner = Spawner::default();
    let (first, _output) = start(&spawner, SandboxSetup::default(), "exec sleep 1000")
        .await
        .unwrap();
    let failing = MountStep::Protect {
        path: c"/nowhere".to_owned(),
    };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut setup = namespaces(vec![failing]);
    setup.namespaces.as_mut().unwrap().network = Some(NetworkNamespace {
        listen: Vec::new(),
        listener_socket: Some(theirs.into()),
    });
    start(&spawner, setup, "true").await.unwrap_err();
    // The supervisor, its init and the command each held the socket; it closes with the last.
    let end = (&ours).read(&mut [0; 1]).unwrap();
    assert_eq!(end, 0);
    drop(first);
}

#[tokio::test]
async fn symlink_in_a_step_path_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    std::fs::create_dir_all(path.join("real/below")).unwrap();
    symlink("real", path.join("link")).unwrap();
    for name in ["link", "link/below"] {
        let path = c_path(&path.join(name));
        let copy = MountStep::Copy {
            path: path.clone(),
            slot: MountSlot(0),
            missing: MissingPath::Skip,
        };
        let protect = MountStep::Protect { path };
        for step in [copy, protect] {
            let refused = refusal(namespaces(vec![step.clone()])).await;
            assert_eq!(refused, (SetupStep::Step(step), libc::ELOOP));
        }
    }
}

#[tokio::test]
async fn invalid_or_empty_slot_is_refused() {
    let number = u16::try_from(MAX_MOUNT_SLOTS).unwrap();
    for (slot, errno) in [(number, libc::EOVERFLOW), (3, libc::EBADF)] {
        let step = MountStep::Directory {
            slot: MountSlot(slot),
            path: c"x".to_owned(),
            mode: 0,
        };
        let refused = refusal(namespaces(vec![step.clone()])).await;
        assert_eq!(refused, (SetupStep::Step(step), errno));
    }
}

#[tokio::test]
async fn all_slots_can_be_used() {
    let steps = (0..u16::try_from(MAX_MOUNT_SLOTS).unwrap()).map(|slot| MountStep::Copy {
        path: c"/usr".to_owned(),
        slot: MountSlot(slot),
        missing: MissingPath::Fail,
    });
    let outcome = run(namespaces(steps.collect()), "echo done").await;
    assert_eq!(outcome, Outcome::exited(0, "done\n"));
}

/// Runs a script in a writable directory with pinned paths. `make` prepares the directory.
async fn run_pinned(make: impl FnOnce(&Path), pinned: &[&str], script: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    make(&path);
    let mut steps = with_writable(read_only(), &path);
    steps.extend(pinned.iter().map(|name| MountStep::Pin {
        path: c_path(&path.join(name)),
    }));
    let script = format!("cd {} && {{ {script}\n}}", path.display());
    let outcome = run(namespaces(steps), &script).await;
    outcome.output.lines().map(str::to_owned).collect()
}

/// Counts the lines that contain `text`.
fn count(lines: &[String], text: &str) -> usize {
    lines.iter().filter(|line| line.contains(text)).count()
}

const BUSY: &str = "Device or resource busy";

#[tokio::test]
async fn pinned_directory_cannot_move_but_is_writable() {
    let script = "mv dir other; rmdir dir; echo x > dir/file; mkdir -p dir/sub; mv dir/sub dir/sub2; \
                  ls dir; cat dir/file";
    let make = |path: &Path| std::fs::create_dir(path.join("dir")).unwrap();
    let lines = run_pinned(make, &["dir"], script).await;
    assert_eq!(count(&lines, BUSY), 2, "{lines:?}");
    assert!(
        lines.ends_with(&["file", "sub2", "x"].map(str::to_owned)),
        "{lines:?}"
    );
}

#[tokio::test]
async fn pinned_file_cannot_move_but_is_writable() {
    let make = |path: &Path| std::fs::write(path.join("file"), "old").unwrap();
    let script =
        "mv file other; rm -f file; echo x > new; mv -f new file; echo new >> file; cat file";
    let lines = run_pinned(make, &["file"], script).await;
    // Renaming onto it is refused, too.
    assert_eq!(count(&lines, BUSY), 3, "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("oldnew"));
}

#[tokio::test]
async fn pinned_symlink_cannot_move_but_is_followed() {
    let make = |path: &Path| {
        std::fs::create_dir(path.join("dir")).unwrap();
        std::fs::write(path.join("dir/file"), "text\n").unwrap();
        symlink("dir", path.join("link")).unwrap();
        symlink("nowhere", path.join("loose")).unwrap();
    };
    let script = "for link in link loose; do mv $link other; rm -f $link; ln -sfnT other $link; done; \
                  echo x > link/new; readlink link loose; cat link/file dir/new";
    let lines = run_pinned(make, &["link", "loose"], script).await;
    assert_eq!(count(&lines, BUSY), 6, "{lines:?}");
    assert!(
        lines.ends_with(&["dir", "nowhere", "text", "x"].map(str::to_owned)),
        "{lines:?}"
    );
}

#[tokio::test]
async fn pinning_a_missing_or_linked_path_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    std::fs::create_dir_all(path.join("real/below")).unwrap();
    symlink("real", path.join("link")).unwrap();
    let cases = [
        ("missing", libc::ENOENT),
        ("link/below", libc::ELOOP),
        ("link/", libc::ELOOP),
    ];
    for (name, errno) in cases {
        let step = MountStep::Pin {
            path: c_path(&path.join(name)),
        };
        let refused = refusal(namespaces(vec![step.clone()])).await;
        assert_eq!(
            refused.0.to_string(),
            format!("pin `{}`", path.join(name).display())
        );
        assert_eq!(refused, (SetupStep::Step(step), errno));
    }
}
