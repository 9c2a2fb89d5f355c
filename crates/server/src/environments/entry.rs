//! One `[[environments]]` of the file.

use std::{collections::BTreeMap, ffi::OsString, path::Path, time::Duration};

use exec_env::manager::EnvironmentId;
use exec_transport::connect::{BearerToken, CONNECT_TIMEOUT, Program};

use super::{
    EnvironmentsError, Fault, ProgramReach, Reach, UrlReach,
    reach::{INITIALIZE_TIMEOUT, network_address},
    reader::{Item, Section},
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
    "skills",
];

/// Keys that only make sense for a server that listens.
const URL_KEYS: [&str; 2] = ["auth_bearer_token", "connect_timeout_sec"];
/// Keys that only make sense for a server that is started.
const PROGRAM_KEYS: [&str; 3] = ["args", "env", "cwd"];

impl Remote {
    /// Reads an environment; `home` is what a relative directory is relative to.
    pub(super) fn read(section: &Section<'_>, home: &Path) -> Result<Self, EnvironmentsError> {
        Ok(Self {
            id: id(section.required("id")?)?,
            reach: reach(section, home)?,
            required_skills: required_skills(section)?,
        })
    }
}

fn id(item: &Item<'_>) -> Result<EnvironmentId, EnvironmentsError> {
    EnvironmentId::chosen(item.text()?).map_err(|error| item.wrong(error.into()))
}

fn reach(section: &Section<'_>, home: &Path) -> Result<Reach, EnvironmentsError> {
    match (section.item("url"), section.item("program")) {
        (Some(url), Some(program)) => {
            let later = if url.is_before(program) { program } else { url };
            Err(later.misplaced(Fault::BothReaches))
        }
        (None, None) => Err(section.fault("url", Fault::NoReach)),
        (Some(url), None) => {
            refuse(section, &PROGRAM_KEYS, "program")?;
            url_reach(section, url).map(Reach::Url)
        }
        (None, Some(program)) => {
            refuse(section, &URL_KEYS, "url")?;
            program_reach(section, program, home).map(Reach::Program)
        }
    }
}

/// Refuses keys that belong to the other way to reach an environment, which `owner` is the key of.
fn refuse(
    section: &Section<'_>,
    keys: &[&'static str],
    owner: &'static str,
) -> Result<(), EnvironmentsError> {
    let misplaced = keys.iter().find_map(|key| section.item(key));
    misplaced.map_or(Ok(()), |item| Err(item.misplaced(Fault::OnlyWith(owner))))
}

fn url_reach(section: &Section<'_>, item: &Item<'_>) -> Result<UrlReach, EnvironmentsError> {
    let url = item.text()?;
    let address = network_address(url).ok_or_else(|| item.wrong(Fault::Url))?;
    let token = |token: &Item<'_>| {
        if !address.is_private() {
            return Err(token.wrong(Fault::TokenInClear));
        }
        BearerToken::new(token.text()?).map_err(|error| token.wrong(error.into()))
    };
    Ok(UrlReach {
        auth_bearer_token: section.item("auth_bearer_token").map(token).transpose()?,
        connect_timeout: timeout(section, "connect_timeout_sec", CONNECT_TIMEOUT)?,
        initialize_timeout: timeout(section, "initialize_timeout_sec", INITIALIZE_TIMEOUT)?,
        url: url.to_owned(),
    })
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

fn timeout(
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
