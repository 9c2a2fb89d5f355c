//! Tests of the environment of a directory, and of its approval by the user.

use std::{
    ffi::OsString,
    os::unix::fs::{PermissionsExt, symlink},
};

use super::*;
use crate::command::failure::FailureKind;

/// A home with a project in it.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(home.project().join("src/deep")).unwrap();
        home
    }

    fn project(&self) -> PathBuf {
        fs::canonicalize(self.0.path()).unwrap().join("project")
    }

    fn file(&self) -> PathBuf {
        self.project().join(".exec-server/env")
    }

    fn with_lookup<T>(&self, work: impl FnOnce(VariableLookup<'_>) -> T) -> T {
        let settings = self.0.path().join("settings");
        work(&|name| (name == "EXEC_SERVER_HOME").then(|| OsString::from(&settings)))
    }

    fn find(&self, below: &str) -> Option<DirectoryEnv> {
        let directory = self.project().join(below);
        self.with_lookup(|lookup| DirectoryEnv::find(&directory, lookup))
            .unwrap()
    }

    fn write(&self, name: &str) -> Result<DirectoryEnv, CommandFailure> {
        let directory = self.project();
        self.with_lookup(|lookup| DirectoryEnv::write(&directory, name, lookup))
    }

    /// Writes the file like a checkout.
    fn check_out(&self, content: &str) {
        fs::create_dir_all(self.file().parent().unwrap()).unwrap();
        fs::write(self.file(), content).unwrap();
    }

    fn records(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.path().join("settings/allowed"));
        let entries = entries.into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn file_is_found_from_directories_below_and_the_nearest_one_counts() {
    let home = Home::new();
    assert_eq!(home.find("src/deep"), None);
    home.write("box").unwrap();
    let found = home.find("src/deep").unwrap();
    assert_eq!(found.name.as_deref(), Some("box"));
    assert_eq!(found.objection(), None);
    assert_eq!(found.directory(), home.project());
    let nearer = home.project().join("src");
    home.with_lookup(|lookup| DirectoryEnv::write(&nearer, "ssh:me@host:22", lookup))
        .unwrap();
    let found = home.find("src/deep").unwrap();
    assert_eq!(found.name.as_deref(), Some("ssh:me@host:22"));
    assert_eq!(home.find("").unwrap().name.as_deref(), Some("box"));
}

#[test]
fn only_the_allowed_content_at_the_allowed_path_counts() {
    let home = Home::new();
    home.check_out("# team default\n\nbox\n");
    let mut found = home.find("").unwrap();
    assert_eq!(found.approval, Approval::Unknown);
    let reason = found.objection().unwrap();
    for text in [".exec-server/env", "`box`", "not allowed", "use --allow"] {
        assert!(reason.contains(text), "{text:?} in {reason}");
    }
    home.with_lookup(|lookup| found.allow(lookup)).unwrap();
    assert_eq!(home.find("src").unwrap().approval, Approval::Allowed);
    home.check_out("# team default\n\nother\n");
    let changed = home.find("").unwrap();
    assert_eq!(changed.approval, Approval::Changed);
    assert!(changed.objection().unwrap().contains("has changed"));
    home.check_out("# team default\n\nbox\n");
    assert_eq!(home.find("").unwrap().approval, Approval::Allowed);

    let copy = home.0.path().join("copy");
    fs::create_dir_all(copy.join(".exec-server")).unwrap();
    fs::copy(home.file(), copy.join(".exec-server/env")).unwrap();
    let found = home.with_lookup(|lookup| DirectoryEnv::find(&copy, lookup));
    assert_eq!(found.unwrap().unwrap().approval, Approval::Unknown);
}

#[test]
fn records_are_private_and_others_are_not_trusted() {
    let home = Home::new();
    home.write("box").unwrap();
    let [record] = &home.records()[..] else {
        panic!("one record");
    };
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(record), 0o600);
    assert_eq!(mode(record.parent().unwrap()), 0o700);
    fs::set_permissions(record, fs::Permissions::from_mode(0o620)).unwrap();
    assert_eq!(home.find("").unwrap().approval, Approval::Unknown);
}

#[test]
fn cleared_file_is_gone_and_forgotten_file_stays() {
    let home = Home::new();
    let env = home.write("box").unwrap();
    home.with_lookup(|lookup| env.forget(lookup)).unwrap();
    assert_eq!(home.find("").unwrap().approval, Approval::Unknown);
    let env = home.write("box").unwrap();
    home.with_lookup(|lookup| env.remove(lookup)).unwrap();
    assert_eq!(home.find(""), None);
    assert!(!home.project().join(".exec-server").exists());
    assert_eq!(home.records(), Vec::<PathBuf>::new());
}

#[test]
fn content_without_one_name_never_counts() {
    let home = Home::new();
    for content in ["", "\n", "# box\n", "box\nother\n", "b\u{1b}ox\n", "\u{0}"] {
        home.check_out(content);
        let mut found = home.find("").unwrap();
        home.with_lookup(|lookup| found.allow(lookup)).unwrap();
        let found = home.find("").unwrap();
        assert_eq!(found.name, None, "{content:?}");
        assert!(
            found.objection().unwrap().contains("one line"),
            "{content:?}"
        );
    }
    for name in ["", " box", "# box", "a\nb", "a\u{7}"] {
        assert_eq!(
            home.write(name).unwrap_err().kind,
            FailureKind::Usage,
            "{name:?}"
        );
    }
}

#[test]
fn oversized_and_special_files_are_reported_without_waiting() {
    let home = Home::new();
    home.check_out(&"x".repeat(5000));
    let directory = home.project();
    let find = || home.with_lookup(|lookup| DirectoryEnv::find(&directory, lookup));
    assert!(find().unwrap_err().to_string().contains("4 KiB"));
    fs::remove_file(home.file()).unwrap();
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        home.file(),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    assert!(find().unwrap_err().to_string().contains("not a file"));
}

#[test]
fn link_in_place_of_the_directory_is_not_followed_for_writing() {
    let home = Home::new();
    let elsewhere = home.0.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, home.project().join(".exec-server")).unwrap();
    let failure = home.write("box").unwrap_err();
    assert!(failure.what.contains("not a directory"), "{failure}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn records_of_removed_files_make_space_for_new_ones() {
    let directory = tempfile::tempdir().unwrap();
    let records = ApprovalRecords(directory.path().to_owned());
    let write = |name: &str, line: &str| fs::write(directory.path().join(name), line).unwrap();
    write("a", "0 /gone/away\n");
    write("b", "0 /\n");
    records.make_space(3).unwrap();
    assert!(directory.path().join("a").exists());
    records.make_space(2).unwrap();
    assert!(!directory.path().join("a").exists() && directory.path().join("b").exists());
    let full = records.make_space(1).unwrap_err();
    assert!(full.to_string().contains("use --forget"), "{full}");
}
