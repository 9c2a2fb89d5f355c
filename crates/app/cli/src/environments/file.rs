//! `environments.toml`, and the one key of `config.toml` that selects an environment.

use std::{collections::BTreeMap, path::Path};

use exec_environments::manager::{EnvironmentId, MAX_ENVIRONMENTS};

use super::{
    EnvironmentsError, Facts, Fault, Selection,
    entry::{Around, KEYS, Remote},
    reader::{Document, Item, Section},
    select::Setting,
};

/// Reads the text of an `environments.toml`; `path` is for messages, and its directory is what a
/// relative path is relative to. A token may be elsewhere: `facts` gives it.
///
/// # Errors
/// When it is no TOML, or says anything that does not make sense, an unknown key included.
pub fn parse(path: &Path, text: &str, facts: Facts<'_>) -> Result<Selection, EnvironmentsError> {
    parse_over(path, text, facts, None)
}

/// Reads a file as [`parse`] does and adds the environments of `base`. The file's own come first and
/// hide those of `base` with the same id; what the file leaves out is as in `base`.
pub(crate) fn parse_over(
    path: &Path,
    text: &str,
    facts: Facts<'_>,
    base: Option<&Selection>,
) -> Result<Selection, EnvironmentsError> {
    let document = Document { path, text };
    let table = document.parse()?;
    let known = &["default", "include_local", "environments"];
    let file = Section::new(document, "", 0, &table, known)?;
    let local = match file.item("include_local") {
        Some(item) => item.switch()?,
        None => base.is_none_or(|base| base.local),
    };
    let room = MAX_ENVIRONMENTS - usize::from(local);
    let around = Around {
        home: path.parent().unwrap_or(Path::new("")),
        facts,
    };
    let mut remotes = match file.item("environments") {
        Some(environments) => remotes(environments, around, room)?,
        None => Vec::new(),
    };
    for remote in base.iter().flat_map(|base| &base.remotes) {
        if remotes.iter().all(|own| own.id != remote.id) {
            remotes.push(remote.clone());
        }
    }
    if remotes.len() > room {
        return Err(file.fault("environments", Fault::TooMany(room)));
    }
    let default = match (file.item("default"), base) {
        (Some(item), _) => default(item, local, &remotes)?,
        (None, Some(base)) => base.default.clone().filter(|id| local || !id.is_local()),
        (None, None) => local.then(EnvironmentId::local),
    };
    Ok(Selection {
        default,
        local,
        remotes,
    })
}

/// Reads environments, at most as many as there is `room` for in a manager.
fn remotes(
    item: &Item<'_>,
    around: Around<'_>,
    room: usize,
) -> Result<Vec<Remote>, EnvironmentsError> {
    let tables = item.elements()?;
    if let Some(first_too_many) = tables.get(room) {
        return Err(first_too_many.wrong(Fault::TooMany(room)));
    }
    let mut lines = BTreeMap::new();
    let mut remotes = Vec::new();
    for table in &tables {
        let section = table.section(KEYS)?;
        let remote = Remote::read(&section, around)?;
        let id = section.required("id")?;
        if let Some(first) = lines.insert(remote.id.clone(), id.line()) {
            let fault = Fault::DuplicateId {
                id: remote.id,
                first,
            };
            return Err(id.wrong(fault));
        }
        remotes.push(remote);
    }
    Ok(remotes)
}

fn default(
    item: &Item<'_>,
    local: bool,
    remotes: &[Remote],
) -> Result<Option<EnvironmentId>, EnvironmentsError> {
    let id = match item.text()? {
        "none" => return Ok(None),
        text => EnvironmentId::parse(text).map_err(|error| item.wrong(error.into()))?,
    };
    if id.is_local() && !local {
        return Err(item.wrong(Fault::LocalNotIncluded));
    }
    if !id.is_local() && remotes.iter().all(|remote| remote.id != id) {
        return Err(item.wrong(Fault::UnknownDefault(id)));
    }
    Ok(Some(id))
}

/// Reads `[exec_server] url` of a `config.toml`, in which everything else is for others.
pub(super) fn setting_of_config(path: &Path, text: &str) -> Result<Setting, EnvironmentsError> {
    let document = Document { path, text };
    let table = document.parse()?;
    let Some((key, value)) = table.get_key_value("exec_server") else {
        return Ok(Setting::Unset);
    };
    // What is misspelled here would run commands on the wrong machine.
    let item = Item::new(document, key, value);
    let section = item.section(&["url"])?;
    let Some(url) = section.item("url") else {
        return Ok(Setting::Unset);
    };
    Setting::parse(url.text()?).ok_or_else(|| url.wrong(Fault::Url))
}
