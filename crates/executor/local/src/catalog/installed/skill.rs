//! One skill, from its files.

use exec_wire::{
    discovery::{CapabilityFile, InstalledSkill, SkillFiles, SkillRoot},
    path_uri::PathUri,
};

use super::{
    front_matter::{FrontMatter, FrontMatterError},
    metadata::Metadata,
};
use crate::catalog::manifest;

/// Why a file makes no skill. Its author must act.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum SkillError {
    /// Caller: it does not say what it must.
    #[error(transparent)]
    FrontMatter(#[from] FrontMatterError),
    /// Caller: the name is too long.
    #[error(
        "its name is longer than {MAX_NAME} characters, or {MAX_QUALIFIED_NAME} with its plugin's"
    )]
    LongName,
}

/// Makes a skill of its files, named after the plugin that it lies in.
pub(super) fn installed(
    files: &SkillFiles,
    namespaces: &Namespaces,
    root: Option<&SkillRoot>,
) -> Result<InstalledSkill, SkillError> {
    let path = &files.instructions.path;
    let matter = FrontMatter::parse(&files.instructions.contents)?;
    let name = matter.name.unwrap_or_else(|| directory_name(path));
    if name.chars().count() > MAX_NAME {
        return Err(SkillError::LongName);
    }
    let name = match namespaces.around(path) {
        Some(plugin) => format!("{plugin}:{name}"),
        None => name,
    };
    if name.chars().count() > MAX_QUALIFIED_NAME {
        return Err(SkillError::LongName);
    }
    let metadata = files.metadata.as_ref();
    let metadata = metadata.map(|file| Metadata::parse(&file.contents));
    let Metadata {
        dependencies,
        policy,
    } = metadata.unwrap_or_default();
    Ok(InstalledSkill {
        name,
        description: matter.description,
        short_description: matter.short_description,
        path: path.clone(),
        discovery_root: root.cloned(),
        dependencies,
        policy,
    })
}

fn directory_name(instructions: &PathUri) -> String {
    let directory = instructions.parent();
    let name = directory.and_then(|directory| directory.file_name());
    String::from_utf8_lossy(&name.unwrap_or_default()).into_owned()
}

/// The plugins around and below a root, by the directories they begin at.
#[derive(Debug)]
pub(super) struct Namespaces(Vec<(PathUri, String)>);

impl Namespaces {
    pub(super) fn new(manifests: &[CapabilityFile]) -> Self {
        let namespace = |file: &CapabilityFile| {
            let (root, _) = manifest::plugin_root(&file.path)?;
            let name = manifest::namespace(&file.contents, &root)?;
            Some((root, name))
        };
        Self(manifests.iter().filter_map(namespace).collect())
    }

    /// Returns the name of the innermost plugin that a path lies in.
    fn around(&self, path: &PathUri) -> Option<&str> {
        let around = self.0.iter().filter(|(root, _)| root.contains(path));
        let innermost = around.max_by_key(|(root, _)| root.as_str().len());
        innermost.map(|(_, name)| name.as_str())
    }
}

/// Longest name of a skill: as the stock server.
const MAX_NAME: usize = 64;
/// Longest name of a skill with its plugin's before it: as the stock server.
const MAX_QUALIFIED_NAME: usize = 129;
