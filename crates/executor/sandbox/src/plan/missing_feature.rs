//! Determines what Landlock lacks to enforce a plan, for each ABI version.
//!
//! Not here: which version this host has (`abilities`) and which mechanism is used instead
//! (`enforcement`).

use super::{FileAccess, FileView, NetworkScope, PathAccess, PathKind, SandboxPlan, ViewLayer};

/// Feature that a plan requires and Landlock lacks.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum MissingFeature {
    /// Landlock is not available.
    Landlock,
    /// Denying truncation of a file by its path.
    Truncation,
    /// Denying control of devices.
    DeviceControl,
    /// Denying signals and abstract unix sockets.
    Signals,
    /// Paths that can neither be seen nor read.
    HiddenPaths,
    /// Writable directories beside read-only ones.
    WritableDirectories,
    /// Read-only paths below a writable directory.
    CarveOuts,
    /// Names that cannot be created.
    ForbiddenNames,
    /// Denying the network.
    NoNetwork,
}

impl MissingFeature {
    /// Returns the reason as a fragment for an error message.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Landlock => "the kernel has no Landlock, or it is switched off",
            Self::Truncation => {
                "Landlock before ABI 3 cannot keep a command from truncating files by path"
            }
            Self::DeviceControl => {
                "Landlock before ABI 5 cannot keep a command from controlling devices"
            }
            Self::Signals => {
                "Landlock before ABI 6 cannot keep a command from signalling processes outside \
                 and from connecting to abstract unix sockets"
            }
            Self::HiddenPaths => {
                "Landlock hides nothing: names, sizes and times of every file can be read"
            }
            Self::WritableDirectories => {
                "Landlock does not govern modes, owners, times and extended attributes, so a \
                 command that may change them in a writable directory may change them everywhere"
            }
            Self::CarveOuts => {
                "Landlock only adds rights below a directory, and cannot take any away again"
            }
            Self::ForbiddenNames => "Landlock governs directories, not single names in them",
            Self::NoNetwork => "Landlock governs TCP only, and other sockets not at all",
        }
    }
}

/// Returns the features that a plan requires and that Landlock with a seccomp filter lacks. `abi`
/// is 0 if Landlock is not available. Empty if Landlock suffices.
///
/// Single files may be writable: without a writable directory, the filter forbids every change of
/// modes, owners, times and attributes.
pub fn missing_landlock_features(plan: &SandboxPlan, abi: u32) -> Vec<MissingFeature> {
    let mut missing = match &plan.files {
        FileAccess::All => Vec::new(),
        FileAccess::View(view) => missing_in_view(view, abi),
    };
    if plan.network == NetworkScope::None {
        missing.push(MissingFeature::NoNetwork);
    }
    missing
}

fn missing_in_view(view: &FileView, abi: u32) -> Vec<MissingFeature> {
    let any = |matches: fn(&ViewLayer) -> bool| view.layers.iter().any(matches);
    let version = [
        (MissingFeature::Landlock, abi == 0),
        (MissingFeature::Truncation, abi < 3),
        (MissingFeature::DeviceControl, abi < 5),
        (MissingFeature::Signals, abi < 6),
    ];
    let shape = [
        (
            MissingFeature::HiddenPaths,
            view.base == PathAccess::Hidden || any(|layer| layer.access == PathAccess::Hidden),
        ),
        (
            MissingFeature::WritableDirectories,
            any(|layer| layer.access == PathAccess::Write && layer.kind == PathKind::Directory),
        ),
        (MissingFeature::CarveOuts, has_carve_outs(view)),
        (MissingFeature::ForbiddenNames, !view.forbidden.is_empty()),
    ];
    version
        .into_iter()
        .chain(shape)
        .filter_map(|(feature, is_missing)| is_missing.then_some(feature))
        .collect()
}

/// Returns whether a path below a layer has less access than the layer.
fn has_carve_outs(view: &FileView) -> bool {
    let parent_access = |layer: &ViewLayer| {
        let parent = layer.path.parent();
        parent.map_or(view.base, |parent| view.access(parent))
    };
    view.layers
        .iter()
        .any(|layer| layer.access < parent_access(layer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ForbiddenName;

    /// Every known ABI version, and the features it lacks for a plan that it can otherwise enforce.
    const ABIS: [(u32, &[MissingFeature]); 9] = [
        (
            0,
            &[
                MissingFeature::Landlock,
                MissingFeature::Truncation,
                MissingFeature::DeviceControl,
                MissingFeature::Signals,
            ],
        ),
        (
            1,
            &[
                MissingFeature::Truncation,
                MissingFeature::DeviceControl,
                MissingFeature::Signals,
            ],
        ),
        (
            2,
            &[
                MissingFeature::Truncation,
                MissingFeature::DeviceControl,
                MissingFeature::Signals,
            ],
        ),
        (3, &[MissingFeature::DeviceControl, MissingFeature::Signals]),
        (4, &[MissingFeature::DeviceControl, MissingFeature::Signals]),
        (5, &[MissingFeature::Signals]),
        (6, &[]),
        (7, &[]),
        (8, &[]),
    ];

    fn layer(path: &str, kind: PathKind, access: PathAccess) -> ViewLayer {
        ViewLayer {
            path: path.into(),
            kind,
            access,
        }
    }

    fn view(base: PathAccess, layers: &[ViewLayer]) -> FileView {
        FileView {
            base,
            layers: layers.to_vec(),
            forbidden: Vec::new(),
            links: Vec::new(),
        }
    }

    fn check(name: &str, files: FileAccess, shape: &[MissingFeature]) {
        for (abi, version) in ABIS {
            for network in [NetworkScope::Host, NetworkScope::None] {
                let plan = SandboxPlan {
                    files: files.clone(),
                    network,
                };
                let version = match files {
                    FileAccess::All => &[],
                    FileAccess::View(_) => version,
                };
                let mut expected = [version, shape].concat();
                if network == NetworkScope::None {
                    expected.push(MissingFeature::NoNetwork);
                }
                assert_eq!(
                    missing_landlock_features(&plan, abi),
                    expected,
                    "{name}, ABI {abi}"
                );
            }
        }
    }

    #[test]
    fn missing_features_are_listed_for_every_abi() {
        use PathAccess::{Hidden, Read, Write};
        use PathKind::{Directory, File};
        let plain = view(Read, &[]);
        let file = view(Read, &[layer("/a/file", File, Write)]);
        let directory = view(Read, &[layer("/a", Directory, Write)]);
        let root = view(Read, &[layer("/", Directory, Write)]);
        let hidden = view(Read, &[layer("/a", Directory, Hidden)]);
        let listed = view(Hidden, &[layer("/a", Directory, Read)]);
        let carved = view(
            Read,
            &[
                layer("/a", Directory, Write),
                layer("/a/b", Directory, Read),
            ],
        );
        let mut guarded = directory.clone();
        guarded.forbidden.push(ForbiddenName {
            directory: "/a".into(),
            name: ".git".into(),
        });
        check("everything", FileAccess::All, &[]);
        check("read only", FileAccess::View(plain), &[]);
        check("a writable file", FileAccess::View(file), &[]);
        let writable = &[MissingFeature::WritableDirectories];
        check(
            "a writable directory",
            FileAccess::View(directory),
            writable,
        );
        check("a writable root", FileAccess::View(root), writable);
        let masked = &[MissingFeature::HiddenPaths, MissingFeature::CarveOuts];
        check("a hidden directory", FileAccess::View(hidden), masked);
        check(
            "a list of what is there",
            FileAccess::View(listed),
            &[MissingFeature::HiddenPaths],
        );
        let missing = &[
            MissingFeature::WritableDirectories,
            MissingFeature::CarveOuts,
        ];
        check("a carve-out", FileAccess::View(carved), missing);
        let missing = &[
            MissingFeature::WritableDirectories,
            MissingFeature::ForbiddenNames,
        ];
        check("a forbidden name", FileAccess::View(guarded), missing);
    }

    #[test]
    fn every_missing_feature_has_a_reason() {
        for feature in [
            MissingFeature::Landlock,
            MissingFeature::Truncation,
            MissingFeature::DeviceControl,
            MissingFeature::Signals,
            MissingFeature::HiddenPaths,
            MissingFeature::WritableDirectories,
            MissingFeature::CarveOuts,
            MissingFeature::ForbiddenNames,
            MissingFeature::NoNetwork,
        ] {
            assert!(feature.reason().len() > 20, "{feature:?}");
        }
    }
}
