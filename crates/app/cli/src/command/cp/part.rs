//! The name under which content waits until it is whole.

use exec_wire::path_uri::PathUri;

use crate::command::files::{Identity, below};

/// Bytes of the target's name that the part's name keeps: most systems have names of 255.
const NAME_BYTES: usize = 200;

/// Returns the path of the part beside its target. It is the same for the same target, the same source
/// and the same state of that, and so the next run finds it; another source or state has another one.
pub(super) fn part_of(target: &PathUri, source: &str, state: Identity) -> Option<PathUri> {
    let mut hash = Hash::default();
    hash.add(&target.file_name()?);
    hash.add(source.as_bytes());
    hash.add_identity(state);
    beside(target, &hash, "part")
}

/// Where a tree waits until it is whole, and the journal of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct TreeParts {
    /// The tree.
    pub(super) part: PathUri,
    /// Which files of it are copied.
    pub(super) journal: PathUri,
}

/// Returns what waits beside the target of a tree. It is the same for the same target and the same
/// source, in whatever state: a tree is never at rest, and the journal knows the states of its files.
pub(super) fn tree_parts(target: &PathUri, source: &str) -> Option<TreeParts> {
    let mut hash = Hash::default();
    hash.add(&target.file_name()?);
    hash.add(source.as_bytes());
    Some(TreeParts {
        part: beside(target, &hash, "part")?,
        journal: beside(target, &hash, "copied")?,
    })
}

fn beside(target: &PathUri, hash: &Hash, end: &str) -> Option<PathUri> {
    let (directory, name) = (target.parent()?, target.file_name()?);
    let mut part = vec![b'.'];
    part.extend_from_slice(kept(&name));
    part.extend_from_slice(format!(".{:016x}.{end}", hash.0).as_bytes());
    below(&directory, &part)
}

/// Returns as much of a name as fits, whole characters if it is text.
fn kept(name: &[u8]) -> &[u8] {
    if name.len() <= NAME_BYTES {
        return name;
    }
    let starts_character = |byte: u8| byte & 0b1100_0000 != 0b1000_0000;
    let end = (0..=NAME_BYTES)
        .rev()
        .find(|&end| starts_character(name[end]));
    &name[..end.unwrap_or(NAME_BYTES)]
}

/// FNV-1a: the same in every build.
#[derive(Clone, Debug)]
pub(super) struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(super) fn add_identity(&mut self, source: Identity) {
        self.add(&source.size.to_be_bytes());
        self.add(&source.modified_at_ms.to_be_bytes());
    }

    pub(super) fn value(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Identity = Identity {
        size: 5,
        modified_at_ms: 7,
    };

    fn part(target: &str, source: Identity) -> String {
        let part = part_of(&PathUri::parse(target).unwrap(), "/a b", source).unwrap();
        part.as_str().to_owned()
    }

    #[test]
    fn a_part_is_hidden_beside_its_target_and_follows_the_source() {
        let first = part("file:///srv/a%20b", SOURCE);
        assert!(first.starts_with("file:///srv/.a%20b."), "{first}");
        assert!(first.ends_with(".part"), "{first}");
        assert_eq!(first, part("file:///srv/a%20b", SOURCE));
        let longer = Identity { size: 6, ..SOURCE };
        let later = Identity {
            modified_at_ms: 8,
            ..SOURCE
        };
        for other in [longer, later] {
            assert_ne!(first, part("file:///srv/a%20b", other));
        }
        let target = PathUri::parse("file:///srv/a%20b").unwrap();
        let elsewhere = part_of(&target, "/other/a b", SOURCE).unwrap();
        assert_ne!(first, elsewhere.as_str());
    }

    #[test]
    fn a_long_name_is_cut_between_characters_and_stays_its_own() {
        let long = |end: char| format!("file:///{}{end}", "ä".repeat(126));
        let (one, other) = (long('x'), long('y'));
        let name = |target: &str| {
            let part = part_of(&PathUri::parse(target).unwrap(), "/a", SOURCE).unwrap();
            part.file_name().unwrap()
        };
        assert!(name(&one).len() <= 255);
        assert!(String::from_utf8(name(&one)).is_ok());
        assert_ne!(name(&one), name(&other));
    }

    #[test]
    fn the_root_has_no_part() {
        let root = PathUri::parse("file:///").unwrap();
        assert_eq!(part_of(&root, "/a", SOURCE), None);
    }
}
