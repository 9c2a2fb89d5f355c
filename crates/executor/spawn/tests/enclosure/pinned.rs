//! What is pinned stays where it is, and can be used as before.

use std::os::unix::fs::symlink;

use super::*;

/// Runs a script in a writable directory, in which some paths are pinned and `make` made something.
async fn run_pinned(make: impl FnOnce(&Path), pinned: &[&str], script: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    make(&path);
    let mut steps = with_writable(read_only(), &path);
    steps.extend(pinned.iter().map(|name| Step::Pin {
        path: c_path(&path.join(name)),
    }));
    let script = format!("cd {} && {{ {script}\n}}", path.display());
    let outcome = run(namespaces(steps), &script).await;
    outcome.output.lines().map(str::to_owned).collect()
}

/// Counts the lines that say so.
fn count(lines: &[String], text: &str) -> usize {
    lines.iter().filter(|line| line.contains(text)).count()
}

const BUSY: &str = "Device or resource busy";

#[tokio::test]
async fn a_pinned_directory_stays_and_is_written_to() {
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
async fn a_pinned_file_stays_and_is_written_to() {
    let make = |path: &Path| std::fs::write(path.join("file"), "old").unwrap();
    let script =
        "mv file other; rm -f file; echo x > new; mv -f new file; echo new >> file; cat file";
    let lines = run_pinned(make, &["file"], script).await;
    // Renaming onto it is refused, too.
    assert_eq!(count(&lines, BUSY), 3, "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("oldnew"));
}

#[tokio::test]
async fn a_pinned_link_stays_and_is_followed() {
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
async fn what_is_missing_or_behind_a_link_is_not_pinned() {
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
        let step = Step::Pin {
            path: c_path(&path.join(name)),
        };
        let refused = refusal(namespaces(vec![step.clone()])).await;
        assert_eq!(
            refused.0.to_string(),
            format!("pin `{}`", path.join(name).display())
        );
        assert_eq!(refused, (Part::Step(step), errno));
    }
}
