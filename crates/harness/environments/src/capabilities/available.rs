//! What one step can use.

use std::sync::Arc;

use super::{
    discover::DiscoverError,
    metadata::{Plugin, RootCapabilities, Skill},
};
use crate::roots::ResolvedRoot;

/// The skills and plugins of one step, in the order of its roots. What belongs to environments that
/// the step does not have is not in it.
#[derive(Clone, Debug, Default)]
pub struct AvailableCapabilities {
    /// Skills.
    pub skills: Vec<AvailableSkill>,
    /// Plugins.
    pub plugins: Vec<AvailablePlugin>,
    /// Roots that could not be read. A later step tries again.
    pub failed: Vec<FailedRoot>,
    /// What was left out below roots that could be read, for people.
    pub warnings: Vec<RootWarning>,
}

impl AvailableCapabilities {
    /// Adds what lies below a root.
    pub(super) fn add(&mut self, root: &ResolvedRoot, found: &RootCapabilities) {
        if let Some(plugin) = &found.plugin {
            self.plugins.push(AvailablePlugin {
                root: root.clone(),
                plugin: Arc::clone(plugin),
            });
        }
        self.skills
            .extend(found.skills.iter().map(|skill| AvailableSkill {
                root: root.clone(),
                skill: Arc::clone(skill),
            }));
        self.warnings
            .extend(found.warnings.iter().map(|text| RootWarning {
                root: root.clone(),
                text: text.clone(),
            }));
    }
}

/// A skill that a step can use.
#[derive(Clone, Debug)]
pub struct AvailableSkill {
    /// The root it was found below, with the handle through which its files are read.
    pub root: ResolvedRoot,
    /// The skill.
    pub skill: Arc<Skill>,
}

/// A plugin that a step can use.
#[derive(Clone, Debug)]
pub struct AvailablePlugin {
    /// The root that it is, with the handle through which it is used.
    pub root: ResolvedRoot,
    /// The plugin.
    pub plugin: Arc<Plugin>,
}

/// What was left out below a root.
#[derive(Clone, Debug)]
pub struct RootWarning {
    /// The root.
    pub root: ResolvedRoot,
    /// What, and why.
    pub text: String,
}

/// A root that could not be read.
#[derive(Clone, Debug)]
pub struct FailedRoot {
    /// The root.
    pub root: ResolvedRoot,
    /// Why.
    pub error: DiscoverError,
}
