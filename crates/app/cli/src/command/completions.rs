//! `exec-server completions`: completion scripts for shells, and the dynamic lists they query.
//!
//! clap generates the static part. Environment names, targets and process ids are queried on Tab
//! with `completions --list KIND -- WORDS`, which starts no server and connects to no target.

mod ssh_hosts;
mod target_candidates;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Arg, Args, Command, ValueEnum, ValueHint};
use clap_complete::Shell;
use exec_settings::{environments::EnvEndpoint, settings_source::VariableLookup};
use exec_transport::socket_path::SocketPath;
use exec_wire::process::ProcessSummary;
use tokio::time::timeout;

use self::target_candidates::target_candidates;
use crate::{
    PROGRAM_NAME,
    command::{
        connect::{ConnectedEnv, EnvArgs, EnvRoute, RouteKind, TerminalPrompts, select},
        detached,
        failure::CommandFailure,
        print::{print, print_bytes},
    },
};

/// Limit for listing processes while the user waits for a completion.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// Prints a completion script for a shell.
#[derive(Args, Clone, Debug)]
#[command(after_help = INSTALL)]
pub struct CompletionsCommand {
    /// Shell to print the script for.
    #[arg(required_unless_present = "list")]
    pub shell: Option<Shell>,

    /// Prints current candidates, one per line.
    #[arg(long, hide = true, value_enum, conflicts_with = "shell")]
    pub list: Option<CompletionList>,

    /// Words of the command line so far. The last one is being completed.
    #[arg(last = true, hide = true, requires = "list")]
    pub line: Vec<String>,
}

/// Kind of dynamic candidates.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum CompletionList {
    /// Names of environments.
    Environments,
    /// Names of environments, and targets.
    EnvironmentsOrTargets,
    /// Targets.
    Targets,
    /// Ids of detached processes.
    Processes,
    /// Ids of detached and of recorded processes.
    Recorded,
}

impl CompletionsCommand {
    /// Prints the script, or the requested list.
    pub(crate) async fn run(self, cli: fn() -> Command) -> Result<ExitCode, CommandFailure> {
        match (self.list, self.shell) {
            (Some(list), _) => {
                let names = list.names(&self.line).await;
                print(
                    &names
                        .iter()
                        .map(|name| format!("{name}\n"))
                        .collect::<String>(),
                )?;
            }
            (None, Some(shell)) => print_bytes(&script(shell, cli()))?,
            (None, None) => {
                return Err(CommandFailure::usage("missing shell"));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl CompletionList {
    /// Returns the candidates. Errors yield an empty list, because the shell cannot show them.
    async fn names(self, line: &[String]) -> Vec<String> {
        let lookup = &|name: &str| std::env::var_os(name);
        match self {
            Self::Environments => environments(lookup),
            Self::EnvironmentsOrTargets => {
                let targets = target_candidates(last_value(line), lookup).await;
                environments(lookup).into_iter().chain(targets).collect()
            }
            Self::Targets => target_candidates(last_value(line), lookup).await,
            Self::Processes | Self::Recorded => {
                let found = timeout(LIST_TIMEOUT, self.processes(line)).await;
                let found = found.ok().flatten().unwrap_or_default();
                let is_wanted = |process: &&ProcessSummary| is_wanted(line, process.running);
                let found = found.iter().filter(is_wanted);
                let ids: BTreeSet<_> = found
                    .map(|process| process.process_id.to_string())
                    .collect();
                ids.into_iter().collect()
            }
        }
    }

    /// Lists the processes of the environment that the command line names.
    async fn processes(self, line: &[String]) -> Option<Vec<ProcessSummary>> {
        let lookup = &|name: &str| std::env::var_os(name);
        let variable = |name| lookup(name).and_then(|value| value.into_string().ok());
        let env_args = EnvArgs {
            env: value_of(line, &["-E", "--env"]).or_else(|| variable("EXEC_SERVER_ENV")),
            token_file: value_of(line, &["--token-file"])
                .or_else(|| variable("EXEC_SERVER_TOKEN_FILE"))
                .map(Into::into),
            ..EnvArgs::default()
        };
        let route = EnvRoute::requested(&env_args, lookup).ok()?;
        match &route.route_kind {
            RouteKind::Local(socket) => drop(SocketPath::connect(socket.path()).ok()?),
            // It would start programs here and there, which may ask for a password.
            RouteKind::Named(EnvEndpoint::Target(_) | EnvEndpoint::Program(_))
            | RouteKind::Typed(EnvEndpoint::Target(_)) => return None,
            RouteKind::Named(_) | RouteKind::Typed(_) => {}
        }
        let env = ConnectedEnv::connect_route(route, TerminalPrompts::Forbidden).await;
        let env = env.ok()?;
        let mut processes = detached::list(&env.client).await.ok()?;
        if self == Self::Recorded {
            let recorded = detached::history(&env.client).await.ok().flatten();
            processes.extend(recorded.into_iter().flatten());
        }
        Some(processes)
    }
}

/// Returns the names of environments.
fn environments(lookup: VariableLookup<'_>) -> Vec<String> {
    let Ok(selection) = select(lookup) else {
        return Vec::new();
    };
    let local = selection.local.then(|| "local".to_owned());
    let remotes = selection.remotes.iter().map(|remote| remote.id.to_string());
    local.into_iter().chain(remotes).collect()
}

/// Returns the value that is being completed.
fn last_value(line: &[String]) -> &str {
    let word = line.last().map_or("", String::as_str);
    word.strip_prefix("--env=").unwrap_or(word)
}

/// Returns whether the command on the line applies to a process in this state.
fn is_wanted(line: &[String], is_running: bool) -> bool {
    let has = |word: &str| line.iter().any(|one| one == word);
    if ["kill", "attach", "--process"].into_iter().any(has) {
        return is_running;
    }
    let removes = has("ps") && has("rm") || has("history") && has("purge");
    !(removes && is_running)
}

/// Returns the last value of an option.
fn value_of(line: &[String], names: &[&str]) -> Option<String> {
    let mut value = None;
    let mut words = line.iter().peekable();
    while let Some(word) = words.next() {
        let joined = |name: &&str| word.strip_prefix(*name)?.strip_prefix('=');
        if names.contains(&word.as_str()) {
            value = words.peek().map(|next| (*next).clone()).or(value);
        } else if let Some(joined) = names.iter().find_map(joined) {
            value = Some(joined.to_owned());
        }
    }
    value
}

fn script(shell: Shell, cli: Command) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = with_hints(cli, "");
    clap_complete::generate(shell, &mut command, PROGRAM_NAME, &mut script);
    let text = String::from_utf8_lossy(&script);
    match shell {
        Shell::Bash => {
            // clap looks up words under one spelling of a hyphenated name and lists them under
            // another.
            let text = text.replace("exec__subcmd__server", "exec__server");
            let text = text.replace(
                "complete -F _exec__server ",
                "complete -F _exec_server_complete ",
            );
            format!("{BASH}{text}").into()
        }
        Shell::Zsh => {
            let text = text.replace(":_users'", ":_exec_server_environments_or_targets'");
            let text = text.replace(":_email_addresses'", ":_exec_server_environments'");
            let text = text.replace(":_command_names -e'", ":_exec_server_targets'");
            let text = text.replace(":_hosts'", ":_exec_server_processes'");
            let text = text.replace(":_urls'", ":_exec_server_recorded'");
            let head = "autoload -U is-at-least\n";
            text.replacen(head, &format!("{head}{ZSH}"), 1).into()
        }
        Shell::Fish => {
            let text = text.replace(
                "(__fish_complete_users)",
                "(__exec_server_list environments-or-targets)",
            );
            let hosts = "(__fish_print_hostnames)";
            let text = text.replace(hosts, "(__exec_server_list processes)");
            format!("{text}{FISH}").into()
        }
        Shell::Elvish | Shell::PowerShell | _ => script,
    }
}

/// Marks arguments that name environments, targets, processes and recorded processes with value
/// hints that no other argument uses, such as user names and URLs. The generated completers for those
/// are replaced by ours.
fn with_hints(command: Command, parent: &str) -> Command {
    let name = command.get_name().to_owned();
    let hint = |arg: Arg| {
        let id = arg.get_id().as_str();
        let is_environment_or_target =
            id == "env" && arg.get_short() == Some('E') || name == "use" && id == "name";
        let is_environment = parent == "env" && name != "add" && matches!(id, "name" | "names");
        let is_target =
            id == "target" && name == "connect" || parent == "env" && name == "add" && id == "url";
        let is_process = id == "process"
            || matches!(id, "id" | "ids")
                && (matches!(name.as_str(), "attach" | "kill" | "wait") || parent == "ps");
        let is_recorded = matches!(id, "id" | "ids")
            && (matches!(name.as_str(), "logs" | "replay") || parent == "history");
        let hints = [
            (is_environment_or_target, ValueHint::Username),
            (is_environment, ValueHint::EmailAddress),
            (is_target, ValueHint::CommandName),
            (is_process, ValueHint::Hostname),
            (is_recorded, ValueHint::Url),
        ];
        match hints.into_iter().find(|(applies, _)| *applies) {
            Some((_, hint)) => arg.value_hint(hint),
            None => arg,
        }
    };
    command
        .mut_args(hint)
        .mut_subcommands(|sub| with_hints(sub, &name))
}

/// Completes dynamic candidates, and leaves the rest to clap's function. Flags are offered only
/// after a hyphen.
const BASH: &str = r#"_exec_server_complete() {
    # Bash breaks words at colons and equals signs, too.
    local line="${COMP_LINE:0:COMP_POINT}" words
    read -d '' -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local count=${#words[@]} kind="" word
    local cur="${words[count-1]}" prev="${words[count-2]}"
    local value="$cur"
    if [[ $cur == --env=* ]]; then
        kind=environments-or-targets value="${cur#--env=}"
    elif [[ $prev == -E || $prev == --env ]]; then
        kind=environments-or-targets
    elif [[ $prev == --process ]]; then
        kind=processes
    elif [[ $cur != -* && $prev != -* ]]; then
        case "${words[1]}" in
            use) kind=environments-or-targets ;;
            connect) kind=targets ;;
            attach|kill|wait) kind=processes ;;
            logs|replay) kind=recorded ;;
            history) [[ $count -gt 3 && ${words[2]} == purge ]] && kind=recorded ;;
            ps) [[ $count -gt 3 && ${words[2]} == rm ]] && kind=processes ;;
            env)
                case "${words[2]}" in
                    remove|rm|default|status) [[ $count -gt 3 ]] && kind=environments ;;
                    add) [[ $count -eq 5 ]] && kind=targets ;;
                esac
                ;;
        esac
        # The first word is the command itself.
        [[ $count -lt 3 ]] && kind=""
    fi
    if [[ -n $kind ]]; then
        # Files are not offered in their place.
        compopt +o default +o bashdefault 2>/dev/null
        # What is before the last break stays. An `@` is a break that begins a word.
        local start="${value##*[$COMP_WORDBREAKS]}"
        start="${value%"$start"}"
        start="${start%@}"
        COMPREPLY=()
        while IFS= read -r word; do
            [[ $word == "$value"* ]] && COMPREPLY+=("${word#"$start"}")
        done < <(exec-server completions --list "$kind" -- "${words[@]}" 2>/dev/null)
        # A target continues after its kind.
        [[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == *: ]] && compopt -o nospace 2>/dev/null
        return 0
    fi
    _exec__server "$@"
    if [[ $cur != -* ]]; then
        local all=("${COMPREPLY[@]}")
        COMPREPLY=()
        for word in "${all[@]}"; do
            case "$word" in -*|"<"*|"["*) ;; *) COMPREPLY+=("$word") ;; esac
        done
    fi
    return 0
}

"#;

const ZSH: &str = r#"
_exec_server_list() {
    local -a found kinds
    local status_of_list=1
    found=(${(f)"$(exec-server completions --list $1 -- "${(@)words[1,CURRENT]}" 2>/dev/null)"})
    # A target continues after its kind.
    kinds=(${(M)found:#*:})
    found=(${found:#*:})
    compadd -a found && status_of_list=0
    compadd -S '' -a kinds && status_of_list=0
    return status_of_list
}

_exec_server_environments() { _exec_server_list environments }

_exec_server_environments_or_targets() { _exec_server_list environments-or-targets }

_exec_server_targets() { _exec_server_list targets }

_exec_server_processes() { _exec_server_list processes }

_exec_server_recorded() { _exec_server_list recorded }
"#;

const FISH: &str = r#"
function __exec_server_list
    exec-server completions --list $argv[1] -- (commandline -opc) (commandline -ct) 2>/dev/null
end

complete -c exec-server -n "__fish_exec_server_using_subcommand attach kill wait" -f -a "(__exec_server_list processes)"
complete -c exec-server -n "__fish_exec_server_using_subcommand logs replay" -f -a "(__exec_server_list recorded)"
complete -c exec-server -n "__fish_exec_server_using_subcommand history; and __fish_seen_subcommand_from purge" -f -a "(__exec_server_list recorded)"
complete -c exec-server -n "__fish_exec_server_using_subcommand ps; and __fish_seen_subcommand_from rm" -f -a "(__exec_server_list processes)"
complete -c exec-server -n "__fish_exec_server_using_subcommand use" -f -a "(__exec_server_list environments-or-targets)"
complete -c exec-server -n "__fish_exec_server_using_subcommand connect" -f -a "(__exec_server_list targets)"
complete -c exec-server -n "__fish_exec_server_using_subcommand env; and __fish_seen_subcommand_from add" -f -a "(__exec_server_list targets)"
complete -c exec-server -n "__fish_exec_server_using_subcommand env; and __fish_seen_subcommand_from remove rm default status" -f -a "(__exec_server_list environments)"
"#;

const INSTALL: &str = "\
Examples:
  exec-server completions bash > ~/.local/share/bash-completion/completions/exec-server
  exec-server completions zsh > \"${fpath[1]}/_exec-server\"
  exec-server completions fish > ~/.config/fish/completions/exec-server.fish";

/// Prints the manual page, or writes one per command.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ManCommand {
    /// Writes exec-server.1 and a page per command into this directory.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

impl ManCommand {
    /// Prints or writes the pages.
    pub(crate) fn run(self, cli: Command) -> Result<ExitCode, CommandFailure> {
        let Some(directory) = self.dir else {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(cli).render(&mut page);
            rendered.map_err(CommandFailure::failed)?;
            print_bytes(&page)?;
            return Ok(ExitCode::SUCCESS);
        };
        write(&directory, cli).map_err(|error| {
            let what = format!("cannot write pages into `{}`: {error}", directory.display());
            CommandFailure::failed(what)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn write(directory: &Path, cli: Command) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(cli, directory)
}

const EXAMPLES: &str = "\
Examples:
  exec-server man | man -l -
  exec-server man --dir ~/.local/share/man/man1";
