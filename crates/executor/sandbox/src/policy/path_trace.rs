//! Resolves paths like the kernel does, and records the symbolic links on the way.

use std::{
    collections::{HashMap, VecDeque},
    ffi::OsString,
    path::{Component, Path, PathBuf},
};

use super::MAX_LINKS;
use crate::{
    facts::{FileFacts, PathState},
    plan::{ForbiddenName, PathKind},
};

/// Result of resolving a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PathTrace {
    /// The path itself: parent links resolved, a final link not followed.
    pub(super) named: PathBuf,
    /// Links on the way, including a final link.
    pub(super) links: Vec<TracedLink>,
    /// End of the resolution.
    pub(super) end: TraceEnd,
}

/// A symbolic link on the way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct TracedLink {
    /// Location of the link.
    pub(super) location: ForbiddenName,
    /// Target of the link.
    pub(super) target: PathBuf,
}

/// End of the resolution.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum TraceEnd {
    /// The path exists.
    Exists { path: PathBuf, kind: PathKind },
    /// A component does not exist.
    Missing {
        /// Requested path, with the remaining components appended.
        path: PathBuf,
        /// First name that does not exist.
        first: ForbiddenName,
    },
    /// This directory cannot be searched.
    Unsearchable(PathBuf),
    /// A component is not a directory, or there are too many links.
    Unreachable,
}

/// Resolves paths, and looks up each fact once.
pub(super) struct PathTracer<'a> {
    facts: &'a dyn FileFacts,
    cached: HashMap<PathBuf, PathState>,
}

impl<'a> PathTracer<'a> {
    /// Creates a tracer with an empty cache.
    pub(super) fn new(facts: &'a dyn FileFacts) -> Self {
        let cached = HashMap::new();
        Self { facts, cached }
    }

    /// Resolves an absolute path.
    pub(super) fn trace(&mut self, path: &Path) -> PathTrace {
        let mut remaining: VecDeque<OsString> = VecDeque::new();
        prepend_components(&mut remaining, path);
        let (mut current, mut named) = (PathBuf::from("/"), None);
        let (mut links, mut kind) = (Vec::new(), PathKind::Directory);
        let end = loop {
            let Some(name) = remaining.pop_front() else {
                break TraceEnd::Exists {
                    path: current,
                    kind,
                };
            };
            if name == ".." {
                current.pop();
                continue;
            }
            let next = current.join(&name);
            // The first time that no component remains, `next` is the path itself.
            if remaining.is_empty() {
                named.get_or_insert_with(|| next.clone());
            }
            match self.lookup(&next) {
                PathState::Directory => current = next,
                PathState::File if remaining.is_empty() => {
                    kind = PathKind::File;
                    current = next;
                }
                PathState::File => break TraceEnd::Unreachable,
                PathState::Link(_) if links.len() == MAX_LINKS => break TraceEnd::Unreachable,
                PathState::Link(target) => {
                    prepend_components(&mut remaining, &target);
                    let directory = if target.is_absolute() {
                        std::mem::replace(&mut current, PathBuf::from("/"))
                    } else {
                        current.clone()
                    };
                    let location = ForbiddenName { directory, name };
                    links.push(TracedLink { location, target });
                }
                PathState::Missing => {
                    let path = remaining.iter().fold(next, |path, name| path.join(name));
                    let directory = current;
                    let first = ForbiddenName { directory, name };
                    break TraceEnd::Missing { path, first };
                }
                PathState::Unknown => break TraceEnd::Unsearchable(current),
            }
        };
        let named = named.unwrap_or_else(|| path.to_owned());
        PathTrace { named, links, end }
    }

    /// Returns the underlying facts.
    pub(super) fn facts(&self) -> &'a dyn FileFacts {
        self.facts
    }

    fn lookup(&mut self, path: &Path) -> PathState {
        if let Some(state) = self.cached.get(path) {
            return state.clone();
        }
        let state = self.facts.lookup(path);
        self.cached.insert(path.to_owned(), state.clone());
        state
    }
}

/// Prepends the components of a path to the remaining ones.
fn prepend_components(remaining: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => remaining.push_front(name.to_owned()),
            Component::ParentDir => remaining.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::MemoryTree;

    const TREE: &str = "
        /real/dir/file
        /real/up -> ..
        /here -> real/dir
        /far -> /here/file
        /gone -> /real/none/x
        /loop -> /loop
        /sealed !
    ";

    fn end(path: &str) -> (Vec<String>, TraceEnd) {
        let tree = MemoryTree::of(TREE);
        let trace = PathTracer::new(&tree).trace(Path::new(path));
        let location = |link: &TracedLink| link.location.directory.join(&link.location.name);
        let link_paths = trace
            .links
            .iter()
            .map(|link| location(link).display().to_string());
        (link_paths.collect(), trace.end)
    }

    fn exists(path: &str, kind: PathKind) -> TraceEnd {
        TraceEnd::Exists {
            path: path.into(),
            kind,
        }
    }

    fn missing(path: &str, directory: &str, name: &str) -> TraceEnd {
        let first = ForbiddenName {
            directory: directory.into(),
            name: name.into(),
        };
        TraceEnd::Missing {
            path: path.into(),
            first,
        }
    }

    #[test]
    fn links_are_followed_and_recorded() {
        for (path, links, expected) in [
            ("/", &[][..], exists("/", PathKind::Directory)),
            ("/real/dir", &[], exists("/real/dir", PathKind::Directory)),
            (
                "/real/dir/file",
                &[],
                exists("/real/dir/file", PathKind::File),
            ),
            (
                "/far",
                &["/far", "/here"],
                exists("/real/dir/file", PathKind::File),
            ),
            (
                "/here/../up/real",
                &["/here", "/real/up"],
                exists("/real", PathKind::Directory),
            ),
            ("/real/dir/file/below", &[], TraceEnd::Unreachable),
            ("/real/a/b", &[], missing("/real/a/b", "/real", "a")),
            (
                "/gone",
                &["/gone"],
                missing("/real/none/x", "/real", "none"),
            ),
            ("/sealed", &[], exists("/sealed", PathKind::Directory)),
            ("/sealed/x/y", &[], TraceEnd::Unsearchable("/sealed".into())),
        ] {
            let links: Vec<_> = links.iter().map(ToString::to_string).collect();
            assert_eq!(end(path), (links, expected), "{path}");
        }
        let (links, end) = end("/loop");
        assert_eq!((links.len(), end), (MAX_LINKS, TraceEnd::Unreachable));
    }

    #[test]
    fn named_path_has_parent_links_resolved() {
        let tree = MemoryTree::of("/real/link -> /x\n/here -> real");
        let mut tracer = PathTracer::new(&tree);
        for (path, named) in [
            ("/", "/"),
            ("/here/link", "/real/link"),
            ("/here/none", "/real/none"),
            ("/none/more", "/none/more"),
        ] {
            assert_eq!(
                tracer.trace(Path::new(path)).named,
                Path::new(named),
                "{path}"
            );
        }
    }
}
