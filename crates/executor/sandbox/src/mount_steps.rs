//! A view becomes steps: which mounts are copied, made read-only, attached and covered, in which
//! order.
//!
//! What is copied is copied while the host's files are still there as they are; then the view is made,
//! from the root down. Nothing is created in a directory of the user's.
//!
//! The order of steps.

mod pseudo_fs;
#[cfg(test)]
mod tests;

pub(crate) use self::pseudo_fs::host_settings;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CString, OsStr},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use exec_spawn::enclosure::{MAX_SLOTS, Missing, Slot, Step};

use self::pseudo_fs::{devices, processes, text};
use crate::plan::{Access, Kind, Layer, View};

/// What the view of a command has beside files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Fittings {
    /// A `/dev` with the harmless devices. Without it the host's is there, or none.
    pub(crate) devices: bool,
    /// A `/proc` of the command's own processes. Without it the host's is there, or none.
    pub(crate) processes: bool,
    /// The account that the command runs under.
    pub(crate) account: u32,
}

/// Makes the steps of a view.
///
/// # Errors
/// Fails if the view has more parts than a process has descriptors.
pub(crate) fn steps(view: &View, fittings: Fittings) -> Result<Vec<Step>, ViewError> {
    let view = &without_fitted(view, fittings);
    let mut maker = Maker {
        view,
        index: Index::new(view),
        slots: 0,
        prepare: Vec::new(),
        attach: Vec::new(),
        mask: None,
    };
    let all_writable = view.layers.first().is_some_and(is_writable_root);
    let root = (view.base == Access::Hidden && !all_writable).then(|| maker.empty_root(fittings));
    let mut fitted = Vec::new();
    if fittings.processes {
        let (prepare, attach) = processes(maker.slot(), fittings.account);
        maker.prepare.push(prepare);
        fitted.extend(attach);
    }
    if fittings.devices {
        let (prepare, attach) = devices(&mut || maker.slot());
        maker.prepare.extend(prepare);
        fitted.extend(attach);
    }
    let mut pins: Vec<PathBuf> = pins(view).into_iter().collect();
    pins.sort_by_key(|pin| std::cmp::Reverse(pin.components().count()));
    for layer in &view.layers {
        // From the root down: what is on the way to a layer comes before it.
        let depth = layer.path.components().count();
        while let Some(pin) = pins.pop_if(|pin| pin.components().count() < depth) {
            maker.attach.push(Step::Pin {
                path: absolute(&pin)?,
            });
        }
        maker.layer(layer)?;
    }
    for pin in pins.into_iter().rev() {
        maker.attach.push(Step::Pin {
            path: absolute(&pin)?,
        });
    }
    for link in links(view) {
        maker.attach.push(Step::Pin {
            path: absolute(&link)?,
        });
    }
    if maker.slots > MAX_SLOTS {
        return Err(ViewError::TooMany);
    }
    let mut steps = maker.prepare;
    match root {
        Some(slot) => steps.push(Step::Root { slot }),
        None if all_writable => {}
        None => steps.push(Step::ReadOnlyView),
    }
    steps.extend(fitted);
    steps.extend(maker.attach);
    Ok(steps)
}

/// Why a view has no steps.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ViewError {
    /// Caller: there are too many roots.
    #[error("the policy has more than {MAX_SLOTS} separate roots")]
    TooMany,
    /// Caller: the operating system's texts end at a NUL byte.
    #[error("a path of the policy contains a NUL byte")]
    Nul,
}

struct Maker<'a> {
    view: &'a View,
    index: Index<'a>,
    slots: usize,
    /// What is done while the host's files are there.
    prepare: Vec<Step>,
    /// What is attached afterwards, from the root down.
    attach: Vec<Step>,
    /// Where the covers are.
    mask: Option<Slot>,
}

/// Entries of the file system that covers come from.
const COVER_OF_DIRECTORY: &str = "directory";
const COVER_OF_FILE: &str = "file";
/// They hold names only.
const NAMES_BYTES: u64 = 1 << 20;

impl Maker<'_> {
    fn slot(&mut self) -> Slot {
        let slot = Slot(u16::try_from(self.slots).unwrap_or(u16::MAX));
        self.slots += 1;
        slot
    }

    /// A root in memory, with places for what is attached to it and the links of the host's root.
    fn empty_root(&mut self, fittings: Fittings) -> Slot {
        let slot = self.slot();
        self.prepare.push(Step::Memory {
            slot,
            mode: 0o755,
            bytes: NAMES_BYTES,
        });
        let mut made = BTreeSet::new();
        for (fitted, name) in [(fittings.devices, "dev"), (fittings.processes, "proc")] {
            if fitted && made.insert(PathBuf::from(name)) {
                self.prepare.push(directory(slot, text(name), 0o755));
            }
        }
        self.places(slot, Path::new("/"), 0o755, &mut made);
        for (link, target) in &self.view.links {
            let Ok(name) = link.strip_prefix("/") else {
                continue;
            };
            let above = made.iter().any(|made| name.starts_with(made));
            let (Some(path), Some(target)) = (relative(name), relative(target)) else {
                continue;
            };
            // What is below something that is attached is there already.
            if !above
                || name
                    .parent()
                    .is_some_and(|parent| is_only_a_way(self.view, parent))
            {
                self.parents(slot, name, 0o755, &mut made);
                if made.insert(name.to_owned()) {
                    self.prepare.push(Step::Link { slot, path, target });
                }
            }
        }
        // Or what is written where nothing is shown would seem to be written.
        self.prepare.push(Step::ReadOnly { slot });
        slot
    }

    /// Makes the mount points of the layers whose nearest layer above is at `above`.
    fn places(&mut self, slot: Slot, above: &Path, mode: u32, made: &mut BTreeSet<PathBuf>) {
        for layer in self.index.children(above).to_vec() {
            let Ok(rest) = layer.path.strip_prefix(above) else {
                continue;
            };
            if rest.as_os_str().is_empty() {
                continue;
            }
            self.parents(slot, rest, mode, made);
            let Some(path) = relative(rest) else { continue };
            if made.insert(rest.to_owned()) {
                self.prepare.push(match layer.kind {
                    Kind::Directory => directory(slot, path, mode),
                    Kind::File => Step::File {
                        slot,
                        path,
                        mode: 0o644,
                    },
                });
            }
        }
    }

    fn parents(&mut self, slot: Slot, path: &Path, mode: u32, made: &mut BTreeSet<PathBuf>) {
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for parent in above.into_iter().rev() {
            if let Some(name) = relative(parent)
                && !parent.as_os_str().is_empty()
                && made.insert(parent.to_owned())
            {
                self.prepare.push(directory(slot, name, mode));
            }
        }
    }

    fn layer(&mut self, layer: &Layer) -> Result<(), ViewError> {
        let path = absolute(&layer.path)?;
        let above = self.index.nearest(&layer.path);
        let above = above.map_or(self.view.base, |layer| layer.access);
        match (layer.access, above) {
            (Access::Hidden, _) => self.hide(layer, path),
            // The host's mount is there already, and may be written.
            (Access::Write, _) if is_writable_root(layer) => {}
            (Access::Read, Access::Write) => self.attach.push(Step::Protect { path }),
            (Access::Write, _) => {
                self.copy(&path, Missing::Skip);
            }
            (Access::Read, _) => {
                let slot = self.copy(&path, Missing::Skip);
                self.prepare.push(Step::ReadOnly { slot });
            }
        }
        Ok(())
    }

    fn copy(&mut self, path: &CString, missing: Missing) -> Slot {
        let slot = self.slot();
        self.prepare.push(Step::Copy {
            path: path.clone(),
            slot,
            missing,
        });
        let path = path.clone();
        self.attach.push(Step::Attach { slot, path });
        slot
    }

    fn hide(&mut self, layer: &Layer, path: CString) {
        if layer.kind == Kind::Directory && !self.index.children(&layer.path).is_empty() {
            // It can be passed through, and nothing in it can be listed.
            let slot = self.slot();
            self.prepare.push(Step::Memory {
                slot,
                mode: 0o111,
                bytes: NAMES_BYTES,
            });
            self.places(slot, &layer.path, 0o111, &mut BTreeSet::new());
            self.prepare.push(Step::ReadOnly { slot });
            self.attach.push(Step::Attach { slot, path });
            return;
        }
        let mask = match self.mask {
            Some(mask) => mask,
            None => self.make_mask(),
        };
        let entry = text(match layer.kind {
            Kind::Directory => COVER_OF_DIRECTORY,
            Kind::File => COVER_OF_FILE,
        });
        self.attach.push(Step::Cover {
            slot: mask,
            entry,
            path,
        });
    }

    /// An empty directory and an empty file that nobody may open, not even their owner, who cannot
    /// change that either: they are read-only.
    fn make_mask(&mut self) -> Slot {
        let slot = self.slot();
        self.mask = Some(slot);
        self.prepare.extend([
            Step::Memory {
                slot,
                mode: 0o755,
                bytes: NAMES_BYTES,
            },
            directory(slot, text(COVER_OF_DIRECTORY), 0),
            Step::File {
                slot,
                path: text(COVER_OF_FILE),
                mode: 0,
            },
            Step::ReadOnly { slot },
        ]);
        slot
    }
}

/// Finds the directories on the way from a writable root to what must stay as it is.
///
/// What something is mounted on can be neither renamed nor removed. Otherwise whoever may write above a
/// protected path could move its directory away, and make another one in its place or have the next
/// command find it where the policy does not look.
pub(crate) fn pins(view: &View) -> BTreeSet<PathBuf> {
    let kept = view
        .layers
        .iter()
        .filter(|layer| layer.access != Access::Write);
    let kept = kept.filter_map(|layer| layer.path.parent());
    let guarded = view.forbidden.iter().map(|name| name.directory.as_path());
    let index = Index::new(view);
    let mut pins = BTreeSet::new();
    for directory in kept.chain(guarded) {
        // Processes and devices are the command's own.
        if directory.starts_with("/proc") || directory.starts_with("/dev") {
            continue;
        }
        let on_the_way = directory.ancestors().take_while(|path| {
            index.at(path).is_none() && index.access(path) == Some(Access::Write)
        });
        pins.extend(on_the_way.map(Path::to_owned));
    }
    pins
}

/// Names that must not come to be because they are links now: they must not go either, or what they
/// lead to would not be protected next time.
fn links(view: &View) -> impl Iterator<Item = PathBuf> {
    let paths = view
        .forbidden
        .iter()
        .map(|name| name.directory.join(&name.name));
    paths.filter(|path| path.is_symlink())
}

fn is_writable_root(layer: &Layer) -> bool {
    layer.path == Path::new("/") && layer.access == Access::Write
}

/// Leaves out what the fittings stand for: the host's devices and processes would come back with it.
fn without_fitted(view: &View, fittings: Fittings) -> View {
    let mut view = view.clone();
    let fitted = |path: &Path| {
        let device = path.starts_with("/dev") && !path.starts_with("/dev/shm");
        (fittings.devices && device) || (fittings.processes && path.starts_with("/proc"))
    };
    view.layers.retain(|layer| !fitted(&layer.path));
    view
}

/// Layers by their paths, and by the layer above them.
struct Index<'a> {
    by_path: BTreeMap<&'a Path, &'a Layer>,
    by_parent: BTreeMap<&'a Path, Vec<&'a Layer>>,
}

impl<'a> Index<'a> {
    fn new(view: &'a View) -> Self {
        let by_path = view
            .layers
            .iter()
            .map(|layer| (layer.path.as_path(), layer));
        let mut index = Self {
            by_path: by_path.collect(),
            by_parent: BTreeMap::new(),
        };
        for layer in &view.layers {
            let nearest = index.nearest(&layer.path);
            let parent = nearest.map_or(Path::new("/"), |layer| &layer.path);
            index.by_parent.entry(parent).or_default().push(layer);
        }
        index
    }

    /// The layer that holds for what is above a path.
    fn nearest(&self, path: &Path) -> Option<&'a Layer> {
        let mut above = path.ancestors().skip(1);
        above.find_map(|path| self.by_path.get(path).copied())
    }

    /// The layers of which this one is the nearest above; of the root's, also those that have none.
    fn children(&self, path: &Path) -> &[&'a Layer] {
        self.by_parent.get(path).map_or(&[], Vec::as_slice)
    }

    /// The layer at a path.
    fn at(&self, path: &Path) -> Option<&'a Layer> {
        self.by_path.get(path).copied()
    }

    /// What holds for a path.
    fn access(&self, path: &Path) -> Option<Access> {
        let layer = self.at(path).or_else(|| self.nearest(path));
        layer.map(|layer| layer.access)
    }
}

/// Tells whether a path only leads to others in a view that shows nothing by itself.
fn is_only_a_way(view: &View, path: &Path) -> bool {
    view.access(&Path::new("/").join(path)) == Access::Hidden
}

fn directory(slot: Slot, path: CString, mode: u32) -> Step {
    Step::Directory { slot, path, mode }
}

fn relative(path: &Path) -> Option<CString> {
    CString::new(OsStr::as_bytes(path.as_os_str())).ok()
}

fn absolute(path: &Path) -> Result<CString, ViewError> {
    relative(path).ok_or(ViewError::Nul)
}
