//! The commands for people: each does one thing in an environment, and ends with a status that tells
//! what became of it.
//! Invariant: what goes wrong is one line that says what, why and what to do next.

mod amount;
mod attach;
mod bench;
mod cat;
mod completions;
mod cp;
mod detached;
mod edit;
mod env;
mod examine;
mod failure;
mod files;
mod find;
mod grep;
mod kill;
mod launch;
mod line;
mod logs;
mod ls;
mod man;
mod mcp;
mod mkdir;
mod mv;
mod operand;
mod place;
mod print;
mod ps;
mod rm;
mod run;
mod shell;
mod stream;
mod terminal;
mod wait;
mod watch;

pub use self::{
    amount::{AmountError, Size, Span},
    attach::Attach,
    bench::Bench,
    cat::Cat,
    completions::{CompletionList, Completions},
    cp::Cp,
    edit::Edit,
    env::{Env, warn_of_foreign_keys},
    examine::examine,
    failure::{Failure, FailureKind},
    find::Find,
    grep::Grep,
    kill::{Kill, NamedSignal},
    launch::{NetworkReach, SandboxChoice, Setting, Surroundings},
    line::Line,
    logs::Logs,
    ls::Ls,
    man::Man,
    mcp::Mcp,
    mkdir::Mkdir,
    mv::Mv,
    place::Where,
    ps::Ps,
    rm::Rm,
    run::Run,
    shell::Shell,
    stream::{DetachKeys, DetachKeysError},
    wait::Wait,
    watch::Watch,
};
pub(crate) use self::{place::Socket as LocalSocket, print::printable};
