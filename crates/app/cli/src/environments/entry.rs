//! One `[[environments]]` of the file.

use std::{collections::BTreeMap, ffi::OsString, path::Path, time::Duration};

use exec_environments::manager::EnvironmentId;
use exec_transport::connect::{Address, BearerToken, CONNECT_TIMEOUT, Program};

use super::{
    EnvironmentsError, Facts, Fault, ProgramReach, Reach, UrlReach,
    reach::{INITIALIZE_TIMEOUT, network_address},
    reader::{Item, Section},
    relay,
};

/// An environment on a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Remote {
    /// Its name.
    pub id: EnvironmentId,
    /// How its server is reached.
    pub reach: Reach,
    /// Skills that must be found there.
    pub required_skills: Vec<String>,
}

/// The keys of an environment.
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
    "registry_url",
    "environment_id",
    "auth_token",
    "auth_token_env",
    "auth_token_file",
    "skills",
];

/// The keys that say how an environment is reached.
const REACHES: [&str; 3] = ["url", "program", "registry_url"];
/// Keys that only make sense for some ways to reach an environment, and those ways.
const OWNED: [(&str, &[&str]); 9] = [
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

/// What a file is read with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    /// What a relative path is relative to.
    pub(super) home: &'a Path,
    /// What else is looked at.
    pub(super) facts: Facts<'a>,
}

impl Remote {
    /// Reads an environment.
    pub(super) fn read(
        section: &Section<'_>,
        around: Around<'_>,
    ) -> Result<Self, EnvironmentsError> {
        let id = id(section.required("id")?)?;
        Ok(Self {
            reach: reach(section, &id, around)?,
            required_skills: required_skills(section)?,
            id,
        })
    }
}

fn id(item: &Item<'_>) -> Result<EnvironmentId, EnvironmentsError> {
    EnvironmentId::chosen(item.text()?).map_err(|error| item.wrong(error.into()))
}

fn reach(
    section: &Section<'_>,
    id: &EnvironmentId,
    around: Around<'_>,
) -> Result<Reach, EnvironmentsError> {
    let mut given: Vec<_> = REACHES
        .iter()
        .filter_map(|key| Some((*key, section.item(key)?)))
        .collect();
    given.sort_by_key(|(_, item)| item.place());
    let (way, item) = match given[..] {
        [] => return Err(section.fault("url", Fault::NoReach)),
        [only] => only,
        [_, (_, second), ..] => return Err(second.misplaced(Fault::ManyReaches)),
    };
    let stray = OWNED.iter().filter(|(_, owners)| !owners.contains(&way));
    let stray = stray.filter_map(|(key, owners)| Some((section.item(key)?, *owners)));
    if let Some((item, owners)) = stray.min_by_key(|(item, _)| item.place()) {
        return Err(item.misplaced(Fault::OnlyWith(owners)));
    }
    match way {
        "program" => program_reach(section, item, around.home).map(Reach::Program),
        "registry_url" => relay::read(section, item, id, around).map(Reach::Relay),
        _ => url_reach(section, item, around).map(Reach::Url),
    }
}

fn url_reach(
    section: &Section<'_>,
    item: &Item<'_>,
    around: Around<'_>,
) -> Result<UrlReach, EnvironmentsError> {
    let url = item.text()?;
    let address = network_address(url).ok_or_else(|| item.wrong(Fault::Url))?;
    Ok(UrlReach {
        auth_bearer_token: bearer_token(section, &address, around)?,
        connect_timeout: timeout(section, "connect_timeout_sec", CONNECT_TIMEOUT)?,
        initialize_timeout: timeout(section, "initialize_timeout_sec", INITIALIZE_TIMEOUT)?,
        url: url.to_owned(),
    })
}

/// Reads the token of a server that listens, wherever it is.
fn bearer_token(
    section: &Section<'_>,
    address: &Address,
    around: Around<'_>,
) -> Result<Option<BearerToken>, EnvironmentsError> {
    let keys = ["auth_bearer_token", "auth_token_env", "auth_token_file"];
    let mut given: Vec<_> = keys
        .iter()
        .filter_map(|key| Some((*key, section.item(key)?)))
        .collect();
    given.sort_by_key(|(_, item)| item.place());
    let (key, item) = match given[..] {
        [] => return Ok(None),
        [only] => only,
        [_, (_, second), ..] => return Err(second.misplaced(Fault::ManyTokens)),
    };
    if !address.is_private() {
        return Err(item.wrong(Fault::TokenInClear("wss://")));
    }
    let text = match key {
        "auth_token_env" => relay::variable(item, around)?,
        "auth_token_file" => relay::file(item, around)?.1,
        _ => item.text()?.to_owned(),
    };
    let token = BearerToken::new(&text);
    token.map(Some).map_err(|error| item.wrong(error.into()))
}

fn program_reach(
    section: &Section<'_>,
    program: &Item<'_>,
    home: &Path,
) -> Result<ProgramReach, EnvironmentsError> {
    let args = section.item("args").map_or(Ok(Vec::new()), |args| {
        let args = args.elements()?;
        args.iter().map(|arg| Ok(arg.text()?.into())).collect()
    })?;
    let env = section.item("env").map_or(Ok(BTreeMap::new()), |env| {
        env.entries()?.iter().map(variable).collect()
    })?;
    let cwd = section.item("cwd").map(|cwd| Ok(home.join(cwd.name()?)));
    let program = Program {
        program: program.name()?.into(),
        args,
        env,
        cwd: cwd.transpose()?,
    };
    Ok(ProgramReach {
        program,
        initialize_timeout: timeout(section, "initialize_timeout_sec", INITIALIZE_TIMEOUT)?,
    })
}

fn variable((name, item): &(&str, Item<'_>)) -> Result<(OsString, OsString), EnvironmentsError> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(item.misplaced(Fault::Variable));
    }
    Ok((name.into(), item.text()?.into()))
}

/// Reads a span of time that need not be there.
pub(super) fn timeout(
    section: &Section<'_>,
    key: &'static str,
    default: Duration,
) -> Result<Duration, EnvironmentsError> {
    section
        .item(key)
        .map_or(Ok(default), |item| Ok(item.seconds()?.0))
}

fn required_skills(section: &Section<'_>) -> Result<Vec<String>, EnvironmentsError> {
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
