//! What is installed for the account: skills of its own, and plugins with theirs.

mod front_matter;
mod inventory;
mod metadata;
mod plugins;
mod skill;
mod version;
mod yaml;

pub(super) use self::inventory::discover;
