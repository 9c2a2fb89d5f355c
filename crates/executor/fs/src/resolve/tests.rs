use std::fs;

use super::*;
use crate::{identity::Identity, scratch::Scratch};

/// Both ways to open a directory without links.
const WAYS: [fn(&Path) -> io::Result<OwnedFd>; 2] =
    [by_kernel, |path| walk(path, Links::Refuse, Missing::Fail)];

#[test]
fn both_ways_lead_to_the_same_directory() {
    let scratch = Scratch::new();
    let path = fs::canonicalize(scratch.directory("a/b/c")).unwrap();
    for path in [path.as_path(), Path::new("/"), Path::new("/proc")] {
        let expected = Identity::of(directory(path, Links::Follow).unwrap()).unwrap();
        for way in WAYS {
            assert_eq!(Identity::of(way(path).unwrap()), Ok(expected), "{path:?}");
        }
    }
}

#[test]
fn both_ways_refuse_links_and_files_alike() {
    let scratch = Scratch::new();
    let root = fs::canonicalize(scratch.root()).unwrap();
    scratch.directory("real/below");
    scratch.file("file", "");
    scratch.link("link", "real");
    scratch.link("dangling", "nowhere");
    for way in WAYS {
        for name in ["link", "link/below", "file", "file/below", "dangling"] {
            let refused = way(&root.join(name)).map(drop);
            assert_eq!(refused, Err(Errno::NOTDIR), "{name}");
        }
        for name in ["none", "real/none", "none/below"] {
            let missing = way(&root.join(name)).map(drop);
            assert_eq!(missing, Err(Errno::NOENT), "{name}");
        }
        assert_eq!(
            way(Path::new("/proc/self/task")).map(drop),
            Err(Errno::NOTDIR)
        );
    }
}

#[test]
fn directories_are_made_only_where_they_are_missing() {
    let scratch = Scratch::new();
    let root = fs::canonicalize(scratch.root()).unwrap();
    scratch.directory("real");
    scratch.link("link", "real");
    scratch.link("dangling", "nowhere");
    for links in [Links::Follow, Links::Refuse] {
        let path = root.join("real/a/b");
        let made = Identity::of(made_directory(&path, links).unwrap());
        assert_eq!(made, Identity::of(made_directory(&path, links).unwrap()));
        fs::remove_dir_all(root.join("real/a")).unwrap();
    }
    made_directory(&root.join("link/a/b"), Links::Follow).unwrap();
    assert!(root.join("real/a/b").is_dir());
    let refused = |name, links| made_directory(&root.join(name), links).map(drop);
    assert_eq!(refused("link/c", Links::Refuse), Err(Errno::NOTDIR));
    assert_eq!(refused("dangling", Links::Follow), Err(Errno::EXIST));
    assert_eq!(refused("dangling/c", Links::Follow), Err(Errno::EXIST));
    assert_eq!(refused("dangling/c", Links::Refuse), Err(Errno::NOTDIR));
}

#[test]
fn the_root_is_a_name_in_itself() {
    for links in [Links::Follow, Links::Refuse] {
        let place = Place::of(Path::new("/"), links).unwrap();
        assert_eq!(place.name(), ".");
        let place = Place::of(Path::new("/proc"), links).unwrap();
        assert_eq!(place.name(), "proc");
    }
}
