//! Regular files: their mode here, whole files and blocks in the submodules.

mod block_file;
mod whole_file;

use std::{fs, os::unix::fs::PermissionsExt};

use super::*;
use crate::test_dir::TestDir;

#[test]
fn copy_keeps_setuid_only_for_the_same_owner() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o7751)).unwrap();
    let from = RegularFile::to_read(&path, LinkPolicy::Follow)
        .unwrap()
        .stat;
    let mut to = from;
    assert_eq!(copied_mode(&from, &to), Mode::from_raw_mode(0o7751));
    to.st_uid += 1;
    assert_eq!(copied_mode(&from, &to), Mode::from_raw_mode(0o1751));
    to = from;
    to.st_gid += 1;
    assert_eq!(copied_mode(&from, &to), Mode::from_raw_mode(0o1751));
}
