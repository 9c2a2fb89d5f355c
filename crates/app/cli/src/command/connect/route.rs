//! Resolves `--env` to a route, and typed paths to URIs. Opens no connection.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use exec_connect::{connector::ServerLifetime, target::Target};
use exec_env::{credential::CredentialVariable, filesystem::ExecutorFileSystem};
use exec_environments::manager::EnvironmentId;
use exec_settings::{
    environments::{
        EnvEndpoint, EnvironmentSelection, RELAY_VARIABLES, SelectionInputs, TargetEndpoint,
        UrlEndpoint,
    },
    local_socket::LocalSocket,
    settings_source::{self, VariableLookup},
};
use exec_transport::connect::{BearerToken, ServerAddress};
use exec_wire::{environment::EnvironmentInfo, path_uri::PathUri};

use crate::command::{
    connect::EnvArgs,
    failure::{CommandFailure, FailureKind},
    files::canonicalize,
};

/// Environment and the way to connect to it.
#[derive(Clone, Debug)]
pub(crate) struct EnvRoute {
    /// Name shown to users.
    pub(crate) name: String,
    /// How to connect.
    pub(crate) route_kind: RouteKind,
}

/// How to connect to an environment.
#[derive(Clone, Debug)]
pub(crate) enum RouteKind {
    /// This machine, through the local server's socket.
    Local(LocalSocket),
    /// Server that a file or a variable names.
    Named(EnvEndpoint),
    /// Typed URL, or typed place with a shell.
    Typed(EnvEndpoint),
}

impl EnvRoute {
    /// Resolves the environment that the flag, the variable or the working directory names, else
    /// the default.
    pub(crate) fn requested(
        env_args: &EnvArgs,
        lookup: VariableLookup<'_>,
    ) -> Result<Self, CommandFailure> {
        let (env_args, directory) = env_args.with_directory(lookup);
        Self::find(&env_args, lookup).map_err(|failure| match directory {
            Some(directory) => CommandFailure {
                what: format!("`{}`: {}", directory.path.display(), failure.what),
                ..failure
            },
            None => failure,
        })
    }

    /// Resolves the named environment, or the default. Reads settings files only when needed.
    pub(crate) fn find(
        env_args: &EnvArgs,
        lookup: VariableLookup<'_>,
    ) -> Result<Self, CommandFailure> {
        let name = env_args.env.as_deref().filter(|name| !name.is_empty());
        let mut route = match name {
            Some(target) if Target::is_target(target) => Self::target(target),
            Some(url) if url.contains("://") => typed(url, env_args, lookup),
            Some(name) if name == EnvironmentId::local().as_str() => Ok(Self::local(lookup)),
            name => {
                let mut route = Self::selected(name, &select(lookup)?, lookup)?;
                if let RouteKind::Named(EnvEndpoint::Url(url)) = &mut route.route_kind
                    && url.auth_bearer_token.is_none()
                    // A token variable belongs to the URL variable, not to every name.
                    && (env_args.token_file.is_some() || route.name == EnvironmentId::remote().as_str())
                {
                    url.auth_bearer_token = token(env_args, lookup)?;
                }
                Ok(route)
            }
        }?;
        if env_args.ephemeral {
            route.make_ephemeral()?;
        }
        Ok(route)
    }

    /// Returns the route to a place with a shell.
    pub(crate) fn target(text: &str) -> Result<Self, CommandFailure> {
        let target = text.parse().map_err(CommandFailure::usage)?;
        Ok(Self {
            name: text.to_owned(),
            route_kind: RouteKind::Typed(EnvEndpoint::Target(TargetEndpoint::new(target))),
        })
    }

    /// Makes the server there end with its connection.
    fn make_ephemeral(&mut self) -> Result<(), CommandFailure> {
        match &mut self.route_kind {
            RouteKind::Named(EnvEndpoint::Target(endpoint))
            | RouteKind::Typed(EnvEndpoint::Target(endpoint)) => {
                endpoint.lifetime = ServerLifetime::Ephemeral;
                Ok(())
            }
            RouteKind::Local(_) | RouteKind::Named(_) | RouteKind::Typed(_) => {
                let what = format!("--ephemeral has no effect on `{}`", self.name);
                Err(CommandFailure::usage(what).next("use it with a target such as ssh:HOST"))
            }
        }
    }

    /// Resolves a selected environment by name, or the default.
    pub(crate) fn selected(
        name: Option<&str>,
        selection: &EnvironmentSelection,
        lookup: VariableLookup<'_>,
    ) -> Result<Self, CommandFailure> {
        let default = selection.default.as_ref().map(EnvironmentId::as_str);
        let Some(name) = name.or(default) else {
            return Err(CommandFailure::new(
                FailureKind::UnknownEnvironment,
                "no default environment",
            )
            .next("name one with --env; `exec-server env list` shows them"));
        };
        if name == EnvironmentId::local().as_str() {
            return Ok(Self::local(lookup));
        }
        let mut remotes = selection.remotes.iter();
        match remotes.find(|remote| remote.id.as_str() == name) {
            Some(remote) => Ok(Self {
                name: name.to_owned(),
                route_kind: RouteKind::Named(remote.endpoint.clone()),
            }),
            None => Err(unknown(name, selection, lookup)),
        }
    }

    /// Returns the route to this machine.
    pub(crate) fn local(lookup: VariableLookup<'_>) -> Self {
        Self {
            name: EnvironmentId::local().to_string(),
            route_kind: RouteKind::Local(LocalSocket::find(lookup)),
        }
    }
}

/// Reads the selection of environments.
pub(crate) fn select(lookup: VariableLookup<'_>) -> Result<EnvironmentSelection, CommandFailure> {
    let inputs = SelectionInputs {
        lookup,
        read: &settings_source::read_text,
    };
    EnvironmentSelection::find(inputs).map_err(|error| {
        CommandFailure::new(
            FailureKind::UnknownEnvironment,
            format!("{:#}", anyhow::Error::from(error)),
        )
    })
}

fn typed(
    url: &str,
    env_args: &EnvArgs,
    lookup: VariableLookup<'_>,
) -> Result<EnvRoute, CommandFailure> {
    let address: ServerAddress = url
        .parse()
        .map_err(|error| CommandFailure::usage(format!("invalid URL in --env: {error}")))?;
    let endpoint = UrlEndpoint {
        auth_bearer_token: token(env_args, lookup)?,
        ..UrlEndpoint::new(url)
    };
    Ok(EnvRoute {
        name: address.to_string(),
        route_kind: RouteKind::Typed(EnvEndpoint::Url(endpoint)),
    })
}

/// Finds the token for a server at a URL.
fn token(
    env_args: &EnvArgs,
    lookup: VariableLookup<'_>,
) -> Result<Option<BearerToken>, CommandFailure> {
    let denied = |what: String| CommandFailure::new(FailureKind::NotAllowed, what);
    let (text, env) = match &env_args.token_file {
        Some(path) => {
            let text = settings_source::read_text(path).map_err(|error| {
                denied(format!("cannot read token `{}`: {error}", path.display()))
            })?;
            (text, path.display().to_string())
        }
        None => match lookup(TOKEN).filter(|value| !value.is_empty()) {
            Some(value) => (value.to_string_lossy().into_owned(), TOKEN.to_owned()),
            None => return Ok(None),
        },
    };
    BearerToken::new(&text)
        .map(Some)
        .map_err(|error| denied(format!("no token in `{env}`: {error}")))
}

fn unknown(
    name: &str,
    selection: &EnvironmentSelection,
    lookup: VariableLookup<'_>,
) -> CommandFailure {
    let local = selection.local.then(EnvironmentId::local);
    let remotes = selection.remotes.iter().map(|remote| remote.id.clone());
    let names: Vec<_> = local.into_iter().chain(remotes).collect();
    let names: Vec<_> = names.iter().map(EnvironmentId::as_str).collect();
    let failure = CommandFailure::new(
        FailureKind::UnknownEnvironment,
        match names.is_empty() {
            true => format!("unknown environment `{name}`: none is configured"),
            false => format!("unknown environment `{name}`; known: {}", names.join(", ")),
        },
    );
    let is_set = |variable: &&&str| lookup(variable).is_some_and(|value| !value.is_empty());
    match RELAY_VARIABLES.iter().find(is_set) {
        Some(variable) => failure.next(format!(
            "{variable} and related variables select the only one; unset them to use \
             environments.toml"
        )),
        None => failure.next(format!(
            "see `exec-server env list`, or add it with `exec-server env add {name} URL`"
        )),
    }
}

/// Variable with the token for a server at a URL.
pub(super) const TOKEN: &str = CredentialVariable::ServerToken.name();

/// Resolves a path: a `file:` URI, absolute, below the home (`~/x`), or relative to `base`. Queries
/// the host only if `..` follows a name.
pub(super) async fn read(
    typed: &OsStr,
    base: Option<PathBuf>,
    info: &EnvironmentInfo,
    files: &dyn ExecutorFileSystem,
) -> Result<PathUri, CommandFailure> {
    let displayed = typed.display();
    let wrong =
        |why: &dyn std::fmt::Display| CommandFailure::usage(format!("path `{displayed}`: {why}"));
    if typed.is_empty() {
        return Err(CommandFailure::usage("empty path"));
    }
    if let Some(uri) = typed.to_str().filter(|text| text.starts_with("file:")) {
        return PathUri::parse(uri).map_err(|error| wrong(&error));
    }
    let below_home = match typed.as_bytes() {
        b"~" => Some(&b""[..]),
        bytes => bytes.strip_prefix(b"~/"),
    };
    let (start, relative) = match below_home {
        Some(relative) => {
            let home = info.user_home_dir.as_ref();
            let home = home.ok_or_else(|| wrong(&"the server reports no home directory"))?;
            (home.clone(), OsStr::from_bytes(relative))
        }
        None => (start(base, info).map_err(|why| wrong(&why))?, typed),
    };
    // On a host of the local kind, a path keeps arbitrary bytes. Other hosts require text.
    if let Ok(native) = start.to_native() {
        let native = joined(&native, relative);
        let goes_up = native.components().any(|part| part == Component::ParentDir);
        return match goes_up {
            true => resolve_parents(&native, files)
                .await
                .map_err(|failure| CommandFailure {
                    what: format!("path `{displayed}`: {}", failure.what),
                    ..failure
                }),
            false => PathUri::from_native(&native).map_err(|error| wrong(&error)),
        };
    }
    // Hosts of the other kind resolve `..` lexically.
    let relative = relative.to_str().ok_or_else(|| wrong(&"it is not UTF-8"))?;
    start.join(relative).map_err(|error| wrong(&error))
}

/// Returns the base of a relative path.
fn start(base: Option<PathBuf>, info: &EnvironmentInfo) -> Result<PathUri, String> {
    if let Some(base) = base {
        return PathUri::from_native(&base).map_err(|error| error.to_string());
    }
    match &info.cwd {
        Some(cwd) => Ok(cwd.clone()),
        None => PathUri::parse("file:///").map_err(|error| error.to_string()),
    }
}

/// Resolves an absolute path like the kernel: a name before `..` may be a symbolic link.
async fn resolve_parents(
    native: &Path,
    files: &dyn ExecutorFileSystem,
) -> Result<PathUri, CommandFailure> {
    let wrong = |error: &dyn std::fmt::Display| CommandFailure::usage(error);
    let mut path = PathUri::from_native(Path::new("/")).map_err(|error| wrong(&error))?;
    let mut is_real = true;
    for part in native.components() {
        match part {
            Component::Normal(name) => {
                let below = path.child(name);
                path = below.ok_or_else(|| wrong(&"it contains a name that cannot be used"))?;
                is_real = false;
            }
            Component::ParentDir => {
                if !is_real {
                    path = canonicalize(files, &path).await?;
                }
                // The parent of the root is the root.
                path = path.parent().unwrap_or(path);
                is_real = true;
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(path)
}

/// Joins two paths. An empty `rest` adds no slash.
fn joined(start: &Path, rest: &OsStr) -> PathBuf {
    match rest.is_empty() {
        true => start.to_owned(),
        false => start.join(rest),
    }
}
