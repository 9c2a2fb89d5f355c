//! The way from a policy to a plan.

use std::path::{Path, PathBuf};

use exec_wire::sandbox::Sandbox;

use super::{
    bounds::MAX_ENTRIES,
    context::{Context, Purpose, Surroundings},
    error::PolicyError,
    metadata::{protect_kernel, protect_metadata},
    profile::{self, Restrictions, restrictions, writes_everything},
    rules::Rules,
    scan::scan,
    target::{self, Targets},
    trace::{End, Paths, Trace},
};
use crate::{
    facts::Facts,
    plan::{Access, Files, Network, Plan, View},
};

/// What nearly every program reads, where it exists: as the stock server.
const MINIMAL: [&str; 8] = [
    "/bin",
    "/sbin",
    "/usr",
    "/etc",
    "/lib",
    "/lib64",
    "/nix/store",
    "/run/current-system/sw",
];

/// Makes the plan of a policy.
///
/// Looks at the host through `facts` only, and blocks as long as they do: globs may look at very
/// many files.
///
/// # Errors
/// Refuses what cannot be resolved on this host. Nothing is left out silently, but paths that do
/// not exist and cannot come to be.
pub fn resolve(
    sandbox: &Sandbox,
    context: &Context,
    facts: &dyn Facts,
) -> Result<Plan, PolicyError> {
    let network = match context.purpose {
        Purpose::Process => profile::network(sandbox),
        Purpose::Files => Network::None,
    };
    let restrictions = restrictions(sandbox);
    if let Some(Restrictions { entries, .. }) = restrictions {
        if entries.len() > MAX_ENTRIES {
            return Err(PolicyError::TooManyEntries(entries.len()));
        }
        for (index, entry) in entries.iter().enumerate() {
            target::check(index, entry)?;
        }
    }
    profile::check_platform(sandbox)?;
    let files = match restrictions {
        Some(restrictions) if !writes_everything(sandbox) => {
            let surroundings = Surroundings::of(sandbox, context)?;
            Files::View(view(restrictions, &surroundings, context, facts)?)
        }
        Some(_) | None => Files::All,
    };
    Ok(Plan { files, network })
}

fn view(
    restrictions: Restrictions<'_>,
    surroundings: &Surroundings,
    context: &Context,
    facts: &dyn Facts,
) -> Result<View, PolicyError> {
    let mut paths = Paths::new(facts);
    let targets = Targets::of(restrictions.entries, surroundings, context, &mut paths)?;
    let trace = |(path, access): &(PathBuf, Access)| (paths.trace(path), *access);
    let mut rules = rules(targets.paths.iter().map(trace).collect());
    deny_matches(&targets, &restrictions, context, &mut rules, &mut paths)?;
    if targets.minimal || context.purpose == Purpose::Files {
        for path in MINIMAL {
            rules.add_default(&paths.trace(Path::new(path)));
        }
    }
    for path in &context.always_readable {
        rules.add_needed(&paths.trace(path));
    }
    protect_metadata(&mut rules, &mut paths);
    protect_kernel(&mut rules, &mut paths);
    for path in context.protected.iter() {
        rules.close(&paths.trace(path));
    }
    rules.into_view()
}

/// Puts together what the entries say about paths.
///
/// A link that an enclosed command can replace leads where that command wants the next one to go: for
/// its directory for temporary files, say. So nothing is allowed by such a link; what it takes away is
/// taken away all the same. Whether a link can be replaced is told as if all links counted, so that
/// no order of them matters.
fn rules(entries: Vec<(Trace, Access)>) -> Rules {
    let mut all = Rules::default();
    for (trace, access) in &entries {
        all.add(trace.clone(), *access);
    }
    let replaceable = |trace: &Trace| {
        let mut places = trace.links.iter().map(|link| &link.place.directory);
        places.any(|directory| all.access(directory) == Access::Write)
    };
    let (doubtful, plain): (Vec<_>, Vec<_>) = entries
        .into_iter()
        .partition(|(trace, access)| *access != Access::Hidden && replaceable(trace));
    if doubtful.is_empty() {
        return all;
    }
    let mut rules = Rules::default();
    for (trace, access) in plain {
        rules.add(trace, access);
    }
    let (writing, reading): (Vec<_>, Vec<_>) = doubtful
        .into_iter()
        .partition(|(_, access)| *access == Access::Write);
    for (trace, _) in reading {
        rules.protect(&trace);
    }
    for (trace, _) in writing {
        rules.add_doubtful(trace);
    }
    rules
}

/// Denies what globs match.
fn deny_matches(
    targets: &Targets,
    restrictions: &Restrictions<'_>,
    context: &Context,
    rules: &mut Rules,
    paths: &mut Paths<'_>,
) -> Result<(), PolicyError> {
    let mut allowed = rules.allowed_paths();
    for path in &context.always_readable {
        if let End::There { path, .. } = paths.trace(path).end {
            allowed.insert(path);
        }
    }
    let matches = scan(&targets.globs, restrictions.depth, &allowed, paths)?;
    for trace in &matches.bases {
        rules.add_base(trace);
    }
    for path in &matches.links {
        rules.add(paths.trace(path), Access::Hidden);
    }
    for directory in matches.sealed {
        rules.seal(directory, Access::Hidden);
    }
    for (path, kind) in matches.plain {
        let (named, links) = (path.clone(), Vec::new());
        let end = End::There { path, kind };
        let trace = Trace { named, links, end };
        rules.add(trace, Access::Hidden);
    }
    Ok(())
}
