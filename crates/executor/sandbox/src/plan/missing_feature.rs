//! What Landlock can express of a plan, for each version of its interface.
//!
//! Not here: which version this host has, and what is done about a lack.

use super::{Access, Files, Kind, Layer, Network, Plan, View};

/// Something that a plan asks for and Landlock does not give.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Lack {
    /// There is no Landlock.
    Landlock,
    /// Truncating a file by its path.
    Truncation,
    /// Controlling devices.
    DeviceControl,
    /// Signals, and abstract unix sockets.
    Signals,
    /// Paths that cannot be seen or read.
    HiddenPaths,
    /// Directories that can be written while others cannot.
    WritableDirectories,
    /// Paths that cannot be written below one that can.
    CarveOuts,
    /// Names that cannot be made.
    ForbiddenNames,
    /// No network.
    NoNetwork,
}

impl Lack {
    /// Returns why it is lacking, as a fragment that a refusal can show.
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

/// Returns what a plan asks for and Landlock with a filter of system calls does not give; `abi` is
/// 0 if there is no Landlock. Nothing is lacking if nothing needs it.
///
/// Single files may be writable: where no directory is, the filter forbids changing modes, owners,
/// times and attributes altogether.
pub fn landlock_lacks(plan: &Plan, abi: u32) -> Vec<Lack> {
    let mut lacks = match &plan.files {
        Files::All => Vec::new(),
        Files::View(view) => view_lacks(view, abi),
    };
    if plan.network == Network::None {
        lacks.push(Lack::NoNetwork);
    }
    lacks
}

fn view_lacks(view: &View, abi: u32) -> Vec<Lack> {
    let any = |matches: fn(&Layer) -> bool| view.layers.iter().any(matches);
    let version = [
        (Lack::Landlock, abi == 0),
        (Lack::Truncation, abi < 3),
        (Lack::DeviceControl, abi < 5),
        (Lack::Signals, abi < 6),
    ];
    let shape = [
        (
            Lack::HiddenPaths,
            view.base == Access::Hidden || any(|layer| layer.access == Access::Hidden),
        ),
        (
            Lack::WritableDirectories,
            any(|layer| layer.access == Access::Write && layer.kind == Kind::Directory),
        ),
        (Lack::CarveOuts, has_carve_outs(view)),
        (Lack::ForbiddenNames, !view.forbidden.is_empty()),
    ];
    version
        .into_iter()
        .chain(shape)
        .filter_map(|(lack, lacking)| lacking.then_some(lack))
        .collect()
}

/// Tells whether something below a layer has less access than the layer.
fn has_carve_outs(view: &View) -> bool {
    let above = |layer: &Layer| {
        let parent = layer.path.parent();
        parent.map_or(view.base, |parent| view.access(parent))
    };
    view.layers.iter().any(|layer| layer.access < above(layer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Forbidden;

    /// Every version of the interface that is known, and what it lacks for a plan that it serves.
    const ABIS: [(u32, &[Lack]); 9] = [
        (
            0,
            &[
                Lack::Landlock,
                Lack::Truncation,
                Lack::DeviceControl,
                Lack::Signals,
            ],
        ),
        (1, &[Lack::Truncation, Lack::DeviceControl, Lack::Signals]),
        (2, &[Lack::Truncation, Lack::DeviceControl, Lack::Signals]),
        (3, &[Lack::DeviceControl, Lack::Signals]),
        (4, &[Lack::DeviceControl, Lack::Signals]),
        (5, &[Lack::Signals]),
        (6, &[]),
        (7, &[]),
        (8, &[]),
    ];

    fn layer(path: &str, kind: Kind, access: Access) -> Layer {
        Layer {
            path: path.into(),
            kind,
            access,
        }
    }

    fn view(base: Access, layers: &[Layer]) -> View {
        View {
            base,
            layers: layers.to_vec(),
            forbidden: Vec::new(),
            links: Vec::new(),
        }
    }

    fn check(name: &str, files: Files, shape: &[Lack]) {
        for (abi, version) in ABIS {
            for network in [Network::Host, Network::None] {
                let plan = Plan {
                    files: files.clone(),
                    network,
                };
                let version = match files {
                    Files::All => &[],
                    Files::View(_) => version,
                };
                let mut expected = [version, shape].concat();
                if network == Network::None {
                    expected.push(Lack::NoNetwork);
                }
                assert_eq!(landlock_lacks(&plan, abi), expected, "{name}, ABI {abi}");
            }
        }
    }

    #[test]
    fn what_landlock_lacks_is_told_for_every_abi() {
        use Access::{Hidden, Read, Write};
        use Kind::{Directory, File};
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
        guarded.forbidden.push(Forbidden {
            directory: "/a".into(),
            name: ".git".into(),
        });
        check("everything", Files::All, &[]);
        check("read only", Files::View(plain), &[]);
        check("a writable file", Files::View(file), &[]);
        let writable = &[Lack::WritableDirectories];
        check("a writable directory", Files::View(directory), writable);
        check("a writable root", Files::View(root), writable);
        let masked = &[Lack::HiddenPaths, Lack::CarveOuts];
        check("a hidden directory", Files::View(hidden), masked);
        check(
            "a list of what is there",
            Files::View(listed),
            &[Lack::HiddenPaths],
        );
        let lacks = &[Lack::WritableDirectories, Lack::CarveOuts];
        check("a carve-out", Files::View(carved), lacks);
        let lacks = &[Lack::WritableDirectories, Lack::ForbiddenNames];
        check("a forbidden name", Files::View(guarded), lacks);
    }

    #[test]
    fn every_lack_has_a_reason() {
        for lack in [
            Lack::Landlock,
            Lack::Truncation,
            Lack::DeviceControl,
            Lack::Signals,
            Lack::HiddenPaths,
            Lack::WritableDirectories,
            Lack::CarveOuts,
            Lack::ForbiddenNames,
            Lack::NoNetwork,
        ] {
            assert!(lack.reason().len() > 20, "{lack:?}");
        }
    }
}
