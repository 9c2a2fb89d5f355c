//! Parser of `environments.toml`, and of the one key of `config.toml` that selects an environment.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_environments::manager::{EnvironmentId, MAX_ENVIRONMENTS};
use exec_transport::connect::{BearerToken, CONNECT_TIMEOUT, ServerAddress, ServerProgram};
use toml::de::DeTable;

use crate::environments::{
    EnvEndpoint, EnvironmentSelection, EnvironmentsError, EnvironmentsFault, ProgramEndpoint,
    SelectionInputs, TargetEndpoint, UrlEndpoint, UrlSetting,
    endpoint::{INITIALIZE_TIMEOUT, network_address},
    reader::{TomlDocument, TomlItem, TomlSection},
    relay,
};
use crate::settings_source::CodexHome;

/// Parses an `environments.toml`. `path` is used in messages and as the base of relative paths;
/// tokens elsewhere are read through `inputs`.
///
/// # Errors
/// When the text is not TOML or has invalid content, including unknown keys.
pub fn parse(
    path: &Path,
    text: &str,
    inputs: SelectionInputs<'_>,
) -> Result<EnvironmentSelection, EnvironmentsError> {
    parse_over(path, text, inputs, None)
}

/// Parses a file like [`parse`] and adds the environments of `base`. The file's own come first and
/// override those of `base` with the same id; missing settings are taken from `base`.
pub fn parse_over(
    path: &Path,
    text: &str,
    inputs: SelectionInputs<'_>,
    base: Option<&EnvironmentSelection>,
) -> Result<EnvironmentSelection, EnvironmentsError> {
    let document = TomlDocument { path, text };
    let table = document.parse()?;
    let keys = &["default", "include_local", "environments"];
    let file = TomlSection::new(document, "", 0, &table, keys)?;
    let local = match file.item("include_local") {
        Some(item) => item.switch()?,
        None => base.is_none_or(|base| base.local),
    };
    let max_remotes = MAX_ENVIRONMENTS - usize::from(local);
    let context = EntryContext {
        home: path.parent().unwrap_or(Path::new("")),
        inputs,
    };
    let mut remotes = match file.item("environments") {
        Some(environments) => remotes(environments, context, max_remotes)?,
        None => Vec::new(),
    };
    for remote in base.iter().flat_map(|base| &base.remotes) {
        if remotes.iter().all(|own| own.id != remote.id) {
            remotes.push(remote.clone());
        }
    }
    if remotes.len() > max_remotes {
        return Err(file.fault("environments", EnvironmentsFault::TooMany(max_remotes)));
    }
    let default = match (file.item("default"), base) {
        (Some(item), _) => default(item, local, &remotes)?,
        (None, Some(base)) => base.default.clone().filter(|id| local || !id.is_local()),
        (None, None) => local.then(EnvironmentId::local),
    };
    Ok(EnvironmentSelection {
        default,
        local,
        remotes,
    })
}

/// Parses environments, at most `max` of them.
fn remotes(
    item: &TomlItem<'_>,
    context: EntryContext<'_>,
    max: usize,
) -> Result<Vec<RemoteEntry>, EnvironmentsError> {
    let tables = item.elements()?;
    if let Some(first_too_many) = tables.get(max) {
        return Err(first_too_many.wrong(EnvironmentsFault::TooMany(max)));
    }
    let mut lines = BTreeMap::new();
    let mut remotes = Vec::new();
    for table in &tables {
        let section = table.section(KEYS)?;
        let remote = RemoteEntry::read(&section, context)?;
        let id = section.required("id")?;
        if let Some(first) = lines.insert(remote.id.clone(), id.line()) {
            let fault = EnvironmentsFault::DuplicateId {
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
    item: &TomlItem<'_>,
    local: bool,
    remotes: &[RemoteEntry],
) -> Result<Option<EnvironmentId>, EnvironmentsError> {
    let id = match item.text()? {
        "none" => return Ok(None),
        text => EnvironmentId::parse(text).map_err(|error| item.wrong(error.into()))?,
    };
    if id.is_local() && !local {
        return Err(item.wrong(EnvironmentsFault::LocalNotIncluded));
    }
    if !id.is_local() && remotes.iter().all(|remote| remote.id != id) {
        return Err(item.wrong(EnvironmentsFault::UnknownDefault(id)));
    }
    Ok(Some(id))
}

/// Parses `[exec_server] url` in a `config.toml`, and ignores everything else there.
pub(super) fn setting_of_config(path: &Path, text: &str) -> Result<UrlSetting, EnvironmentsError> {
    let document = TomlDocument { path, text };
    let table = document.parse()?;
    let Some((key, value)) = table.get_key_value("exec_server") else {
        return Ok(UrlSetting::Unset);
    };
    // A misspelled key here would run commands on the wrong machine.
    let item = TomlItem::new(document, key, value);
    let section = item.section(&["url"])?;
    let Some(url) = section.item("url") else {
        return Ok(UrlSetting::Unset);
    };
    UrlSetting::parse(url.text()?).ok_or_else(|| url.wrong(EnvironmentsFault::Url))
}

/// Environment on a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RemoteEntry {
    /// Name.
    pub id: EnvironmentId,
    /// How to connect to its server.
    pub endpoint: EnvEndpoint,
    /// Skills that must exist there.
    pub required_skills: Vec<String>,
}

/// Keys of an environment.
pub(super) const KEYS: &[&str] = &[
    "id",
    "url",
    "auth_bearer_token",
    "connect_timeout_sec",
    "initialize_timeout_sec",
    "program",
    "args",
    "env",
    "cwd",
    "target",
    "registry_url",
    "environment_id",
    "auth_token",
    "auth_token_env",
    "auth_token_file",
    "skills",
];

/// Keys that say how to connect.
const ENDPOINT_KEYS: [&str; 4] = ["url", "program", "target", "registry_url"];
/// Keys that require one of the given connection keys.
const DEPENDENT_KEYS: [(&str, &[&str]); 9] = [
    ("auth_bearer_token", &["url"]),
    ("connect_timeout_sec", &["url", "registry_url"]),
    ("args", &["program"]),
    ("env", &["program"]),
    ("cwd", &["program"]),
    ("environment_id", &["registry_url"]),
    ("auth_token", &["registry_url"]),
    ("auth_token_env", &["url", "registry_url"]),
    ("auth_token_file", &["url", "registry_url"]),
];

/// Context for parsing an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryContext<'a> {
    /// Base of relative paths.
    pub(super) home: &'a Path,
    /// Other inputs.
    pub(super) inputs: SelectionInputs<'a>,
}

impl RemoteEntry {
    /// Parses an environment.
    pub(super) fn read(
        section: &TomlSection<'_>,
        context: EntryContext<'_>,
    ) -> Result<Self, EnvironmentsError> {
        let id = id(section.required("id")?)?;
        Ok(Self {
            endpoint: endpoint(section, &id, context)?,
            required_skills: required_skills(section)?,
            id,
        })
    }
}

fn id(item: &TomlItem<'_>) -> Result<EnvironmentId, EnvironmentsError> {
    EnvironmentId::parse_user_defined(item.text()?).map_err(|error| item.wrong(error.into()))
}

fn endpoint(
    section: &TomlSection<'_>,
    id: &EnvironmentId,
    context: EntryContext<'_>,
) -> Result<EnvEndpoint, EnvironmentsError> {
    let mut present: Vec<_> = ENDPOINT_KEYS
        .iter()
        .filter_map(|key| Some((*key, section.item(key)?)))
        .collect();
    present.sort_by_key(|(_, item)| item.offset());
    let (kind, item) = match present[..] {
        [] => return Err(section.fault("url", EnvironmentsFault::NoReach)),
        [only] => only,
        [_, (_, second), ..] => return Err(second.misplaced(EnvironmentsFault::ManyReaches)),
    };
    let stray = DEPENDENT_KEYS
        .iter()
        .filter(|(_, owners)| !owners.contains(&kind));
    let stray = stray.filter_map(|(key, owners)| Some((section.item(key)?, *owners)));
    if let Some((item, owners)) = stray.min_by_key(|(item, _)| item.offset()) {
        return Err(item.misplaced(EnvironmentsFault::OnlyWith(owners)));
    }
    match kind {
        "program" => program_endpoint(section, item, context.home).map(EnvEndpoint::Program),
        "target" => target_endpoint(section, item).map(EnvEndpoint::Target),
        "registry_url" => relay::read(section, item, id, context).map(EnvEndpoint::Relay),
        _ => url_endpoint(section, item, context).map(EnvEndpoint::Url),
    }
}

fn url_endpoint(
    section: &TomlSection<'_>,
    item: &TomlItem<'_>,
    context: EntryContext<'_>,
) -> Result<UrlEndpoint, EnvironmentsError> {
    let url = item.text()?;
    let address = network_address(url).ok_or_else(|| item.wrong(EnvironmentsFault::Url))?;
    Ok(UrlEndpoint {
        auth_bearer_token: bearer_token(section, &address, context)?,
        connect_timeout: timeout(section, "connect_timeout_sec", CONNECT_TIMEOUT)?,
        initialize_timeout: timeout(section, "initialize_timeout_sec", INITIALIZE_TIMEOUT)?,
        url: url.to_owned(),
    })
}

/// Reads the token of a listening server from its source.
fn bearer_token(
    section: &TomlSection<'_>,
    address: &ServerAddress,
    context: EntryContext<'_>,
) -> Result<Option<BearerToken>, EnvironmentsError> {
    let keys = ["auth_bearer_token", "auth_token_env", "auth_token_file"];
    let mut present: Vec<_> = keys
        .iter()
        .filter_map(|key| Some((*key, section.item(key)?)))
        .collect();
    present.sort_by_key(|(_, item)| item.offset());
    let (key, item) = match present[..] {
        [] => return Ok(None),
        [only] => only,
        [_, (_, second), ..] => return Err(second.misplaced(EnvironmentsFault::ManyTokens)),
    };
    if !address.is_private() {
        return Err(item.wrong(EnvironmentsFault::TokenInClear("wss://")));
    }
    let text = match key {
        "auth_token_env" => relay::variable(item, context)?,
        "auth_token_file" => relay::file(item, context)?.1,
        _ => item.text()?.to_owned(),
    };
    let token = BearerToken::new(&text);
    token.map(Some).map_err(|error| item.wrong(error.into()))
}

fn program_endpoint(
    section: &TomlSection<'_>,
    program: &TomlItem<'_>,
    home: &Path,
) -> Result<ProgramEndpoint, EnvironmentsError> {
    let args = section.item("args").map_or(Ok(Vec::new()), |args| {
        let args = args.elements()?;
        args.iter().map(|arg| Ok(arg.text()?.into())).collect()
    })?;
    let env = section.item("env").map_or(Ok(BTreeMap::new()), |env| {
        env.entries()?.iter().map(variable).collect()
    })?;
    let cwd = section.item("cwd").map(|cwd| Ok(home.join(cwd.name()?)));
    let program = ServerProgram {
        program: program.name()?.into(),
        args,
        env,
        cwd: cwd.transpose()?,
    };
    Ok(ProgramEndpoint {
        program,
        initialize_timeout: timeout(section, "initialize_timeout_sec", INITIALIZE_TIMEOUT)?,
    })
}

fn target_endpoint(
    section: &TomlSection<'_>,
    item: &TomlItem<'_>,
) -> Result<TargetEndpoint, EnvironmentsError> {
    let target = item.text()?.parse();
    let target = target.map_err(|error| item.wrong(EnvironmentsFault::Target(error)))?;
    Ok(TargetEndpoint {
        initialize_timeout: timeout(section, "initialize_timeout_sec", INITIALIZE_TIMEOUT)?,
        ..TargetEndpoint::new(target)
    })
}

fn variable(
    (name, item): &(&str, TomlItem<'_>),
) -> Result<(OsString, OsString), EnvironmentsError> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(item.misplaced(EnvironmentsFault::Variable));
    }
    Ok((name.into(), item.text()?.into()))
}

/// Parses an optional duration.
pub(super) fn timeout(
    section: &TomlSection<'_>,
    key: &'static str,
    default: Duration,
) -> Result<Duration, EnvironmentsError> {
    section
        .item(key)
        .map_or(Ok(default), |item| Ok(item.seconds()?.0))
}

fn required_skills(section: &TomlSection<'_>) -> Result<Vec<String>, EnvironmentsError> {
    let Some(skills) = section.item("skills") else {
        return Ok(Vec::new());
    };
    let skills = skills.section(&["required"])?;
    let Some(required) = skills.item("required") else {
        return Ok(Vec::new());
    };
    let names = required.elements()?;
    names
        .iter()
        .map(|name| name.name().map(str::to_owned))
        .collect()
}

/// Keys of an `[[environments]]` table that every supported stock release (0.166 to 0.169) knows.
pub(super) const STOCK_KEYS: [&str; 10] = [
    "id",
    "skills",
    "url",
    "auth_bearer_token",
    "program",
    "args",
    "env",
    "cwd",
    "connect_timeout_sec",
    "initialize_timeout_sec",
];

/// Key that prevents Codex from starting. Its `Display` explains how to repair the file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ForeignKey {
    /// The file of Codex.
    pub path: PathBuf,
    /// Line of the key, from 1.
    pub line: usize,
    /// The key.
    pub key: String,
    /// Id of the environment, if it has one.
    pub environment: Option<String>,
    /// Whether that environment is the file's default.
    pub is_default: bool,
    /// Our own file, to which the environment can be moved.
    pub own: Option<PathBuf>,
}

impl fmt::Display for ForeignKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, line) = (self.path.display(), self.line);
        write!(
            f,
            "Codex refuses to start: it does not know `{}` in {path}:{line}; move ",
            self.key
        )?;
        if self.is_default {
            f.write_str("the line `default` and ")?;
        }
        match &self.environment {
            Some(id) => write!(f, "the [[environments]] table of `{id}`")?,
            None => f.write_str("that [[environments]] table")?,
        }
        match &self.own {
            Some(own) => write!(f, " to {}", own.display()),
            None => f.write_str(" to a file of your own"),
        }
    }
}

/// Finds the first unknown key of each environment in the file of Codex. Returns nothing if the
/// file does not exist or cannot be parsed: the selection reports that.
pub fn foreign_keys(inputs: SelectionInputs<'_>) -> Vec<ForeignKey> {
    let Some(home) = CodexHome::find(inputs.lookup) else {
        return Vec::new();
    };
    let path = home.path().join("environments.toml");
    let Ok(text) = (inputs.read)(&path) else {
        return Vec::new();
    };
    let document = TomlDocument {
        path: &path,
        text: &text,
    };
    let Ok(table) = document.parse() else {
        return Vec::new();
    };
    let default = table
        .get("default")
        .and_then(|item| item.get_ref().as_str());
    let environments = table.get("environments");
    let environments = environments.and_then(|item| item.get_ref().as_array());
    let tables = environments.into_iter().flat_map(|array| array.iter());
    let tables = tables.filter_map(|item| item.get_ref().as_table());
    let found = tables.filter_map(|environment| {
        let (key, offset) = first_unknown(environment)?;
        let id = environment.get("id").and_then(|id| id.get_ref().as_str());
        Some(ForeignKey {
            path: path.clone(),
            line: document.line_at(offset),
            key,
            is_default: id.is_some() && id == default,
            environment: id.map(str::to_owned),
            own: EnvironmentSelection::own_file(inputs.lookup),
        })
    });
    found.collect()
}

fn first_unknown(environment: &DeTable<'_>) -> Option<(String, usize)> {
    let keys = environment.iter().map(|(key, _)| key);
    let unknown = keys.filter(|key| !STOCK_KEYS.contains(&key.get_ref().as_ref()));
    let first = unknown.min_by_key(|key| key.span().start)?;
    Some((first.get_ref().to_string(), first.span().start))
}
