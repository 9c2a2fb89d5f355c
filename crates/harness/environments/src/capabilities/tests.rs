//! Finding capabilities once, and showing those of a step.

mod bounds;
mod content;
mod discovering;
mod projecting;

use std::sync::Arc;

use exec_wire::{
    discovery::{CapabilityFile, DiscoveredRoot, SkillFiles},
    path_uri::PathUri,
};

use super::AvailableCapabilities;
use crate::{
    fakes::{Shelf, environment_with, id},
    roots::{ResolvedRoot, RootId, StepRoots},
};
use exec_env::environment::Environment;

fn uri(path: &str) -> PathUri {
    PathUri::parse(&format!("file://{path}")).unwrap()
}

/// Returns a root that holds one skill of the same name.
fn with_skill(name: &str) -> DiscoveredRoot {
    let instructions = CapabilityFile {
        path: uri(&format!("/roots/{name}/{name}/SKILL.md")),
        contents: format!("---\nname: {name}\ndescription: does {name}\n---\nInstructions."),
    };
    DiscoveredRoot {
        skills: vec![SkillFiles {
            instructions,
            metadata: None,
        }],
        ..empty(name)
    }
}

/// Returns a root that holds nothing.
fn empty(name: &str) -> DiscoveredRoot {
    DiscoveredRoot {
        id: name.to_owned(),
        path: uri(&format!("/roots/{name}")),
        plugin: None,
        skills: Vec::new(),
        namespace_manifests: Vec::new(),
        warnings: Vec::new(),
        error: None,
    }
}

/// Puts roots with one skill each on a shelf.
fn fill(shelf: &Shelf, names: &[&str]) {
    for name in names {
        shelf.put(uri(&format!("/roots/{name}")), Ok(with_skill(name)));
    }
}

/// Returns a handle of an environment.
fn handle(label: &str, shelf: &Arc<Shelf>) -> Arc<Environment> {
    Arc::new(environment_with(label, shelf.clone()))
}

fn resolved(name: &str, environment: &str, handle: &Arc<Environment>) -> ResolvedRoot {
    ResolvedRoot {
        id: RootId::new(name).unwrap(),
        environment_id: id(environment),
        path: uri(&format!("/roots/{name}")),
        environment: Arc::clone(handle),
    }
}

/// Returns a step with these roots of one environment.
fn step(names: &[&str], environment: &str, handle: &Arc<Environment>) -> StepRoots {
    let roots = names.iter().map(|name| resolved(name, environment, handle));
    StepRoots {
        resolved: roots.collect(),
        omitted: Vec::new(),
    }
}

/// Returns the names of the skills that are available.
fn skills(available: &AvailableCapabilities) -> Vec<String> {
    let name = |skill: &super::AvailableSkill| skill.skill.qualified_name();
    available.skills.iter().map(name).collect()
}
