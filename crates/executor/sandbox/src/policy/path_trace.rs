//! Where a path really leads: symbolic links are followed as the kernel does, and remembered.

use std::{
    collections::{HashMap, VecDeque},
    ffi::OsString,
    path::{Component, Path, PathBuf},
};

use super::MAX_LINKS;
use crate::{
    facts::{Facts, Found},
    plan::{Forbidden, Kind},
};

/// Where a path leads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Trace {
    /// The path itself: without links above it, and itself not followed.
    pub(super) named: PathBuf,
    /// Links on the way, the path itself included.
    pub(super) links: Vec<Link>,
    /// Where the way ends.
    pub(super) end: End,
}

/// A symbolic link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Link {
    /// Where it is.
    pub(super) place: Forbidden,
    /// What it says.
    pub(super) target: PathBuf,
}

/// Where a way ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum End {
    /// At something that exists.
    There { path: PathBuf, kind: Kind },
    /// At a name that does not exist.
    Missing {
        /// What was asked for, as far as names tell.
        path: PathBuf,
        /// The first name that does not exist.
        first: Forbidden,
    },
    /// At this directory, which cannot be searched.
    Sealed(PathBuf),
    /// At a file where a directory was needed, or at links without end.
    Nowhere,
}

/// Follows paths, and asks for each fact once.
pub(super) struct Paths<'a> {
    facts: &'a dyn Facts,
    known: HashMap<PathBuf, Found>,
}

impl<'a> Paths<'a> {
    /// Starts without knowing anything.
    pub(super) fn new(facts: &'a dyn Facts) -> Self {
        let known = HashMap::new();
        Self { facts, known }
    }

    /// Follows an absolute path.
    pub(super) fn trace(&mut self, path: &Path) -> Trace {
        let mut ahead: VecDeque<OsString> = VecDeque::new();
        push_front(&mut ahead, path);
        let (mut here, mut named) = (PathBuf::from("/"), None);
        let (mut links, mut kind) = (Vec::new(), Kind::Directory);
        let end = loop {
            let Some(name) = ahead.pop_front() else {
                break End::There { path: here, kind };
            };
            if name == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&name);
            // All names of the path itself are used up for the first time at its last name.
            if ahead.is_empty() {
                named.get_or_insert_with(|| next.clone());
            }
            match self.look(&next) {
                Found::Directory => here = next,
                Found::File if ahead.is_empty() => {
                    kind = Kind::File;
                    here = next;
                }
                Found::File => break End::Nowhere,
                Found::Link(_) if links.len() == MAX_LINKS => break End::Nowhere,
                Found::Link(target) => {
                    push_front(&mut ahead, &target);
                    let directory = if target.is_absolute() {
                        std::mem::replace(&mut here, PathBuf::from("/"))
                    } else {
                        here.clone()
                    };
                    let place = Forbidden { directory, name };
                    links.push(Link { place, target });
                }
                Found::Missing => {
                    let path = ahead.iter().fold(next, |path, name| path.join(name));
                    let directory = here;
                    let first = Forbidden { directory, name };
                    break End::Missing { path, first };
                }
                Found::Unknown => break End::Sealed(here),
            }
        };
        let named = named.unwrap_or_else(|| path.to_owned());
        Trace { named, links, end }
    }

    /// Returns the facts that nothing needs to be followed for.
    pub(super) fn facts(&self) -> &'a dyn Facts {
        self.facts
    }

    fn look(&mut self, path: &Path) -> Found {
        if let Some(found) = self.known.get(path) {
            return found.clone();
        }
        let found = self.facts.look(path);
        self.known.insert(path.to_owned(), found.clone());
        found
    }
}

/// Puts the names of a path before what is still ahead.
fn push_front(ahead: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => ahead.push_front(name.to_owned()),
            Component::ParentDir => ahead.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Tree;

    const TREE: &str = "
        /real/dir/file
        /real/up -> ..
        /here -> real/dir
        /far -> /here/file
        /gone -> /real/none/x
        /loop -> /loop
        /sealed !
    ";

    fn end(path: &str) -> (Vec<String>, End) {
        let tree = Tree::of(TREE);
        let trace = Paths::new(&tree).trace(Path::new(path));
        let place = |link: &Link| link.place.directory.join(&link.place.name);
        let places = trace
            .links
            .iter()
            .map(|link| place(link).display().to_string());
        (places.collect(), trace.end)
    }

    fn there(path: &str, kind: Kind) -> End {
        End::There {
            path: path.into(),
            kind,
        }
    }

    fn missing(path: &str, directory: &str, name: &str) -> End {
        let first = Forbidden {
            directory: directory.into(),
            name: name.into(),
        };
        End::Missing {
            path: path.into(),
            first,
        }
    }

    #[test]
    fn links_are_followed_and_remembered() {
        for (path, links, expected) in [
            ("/", &[][..], there("/", Kind::Directory)),
            ("/real/dir", &[], there("/real/dir", Kind::Directory)),
            ("/real/dir/file", &[], there("/real/dir/file", Kind::File)),
            (
                "/far",
                &["/far", "/here"],
                there("/real/dir/file", Kind::File),
            ),
            (
                "/here/../up/real",
                &["/here", "/real/up"],
                there("/real", Kind::Directory),
            ),
            ("/real/dir/file/below", &[], End::Nowhere),
            ("/real/a/b", &[], missing("/real/a/b", "/real", "a")),
            (
                "/gone",
                &["/gone"],
                missing("/real/none/x", "/real", "none"),
            ),
            ("/sealed", &[], there("/sealed", Kind::Directory)),
            ("/sealed/x/y", &[], End::Sealed("/sealed".into())),
        ] {
            let links: Vec<_> = links.iter().map(ToString::to_string).collect();
            assert_eq!(end(path), (links, expected), "{path}");
        }
        let (links, end) = end("/loop");
        assert_eq!((links.len(), end), (MAX_LINKS, End::Nowhere));
    }

    #[test]
    fn a_path_is_named_without_the_links_above_it() {
        let tree = Tree::of("/real/link -> /x\n/here -> real");
        let mut paths = Paths::new(&tree);
        for (path, named) in [
            ("/", "/"),
            ("/here/link", "/real/link"),
            ("/here/none", "/real/none"),
            ("/none/more", "/none/more"),
        ] {
            assert_eq!(
                paths.trace(Path::new(path)).named,
                Path::new(named),
                "{path}"
            );
        }
    }
}
