//! The suite over the standard input and output of a server of its own.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use std::{ffi::OsString, path::Path};

use exec_conformance::{conformance_suite, server, subject::Subject};
use exec_transport::connect::Program;

conformance_suite!(remote_stdio, subject());

async fn subject() -> Subject {
    let home = server::home();
    let link = program(home.path()).start().unwrap();
    Subject::remote(link, env!("CARGO_BIN_EXE_exec-probe"), home).await
}

/// A server with the environment that subjects need, and nothing of the test's own.
fn program(home: &Path) -> Program {
    let mut server = server::program("stdio");
    let server = server.env("HOME", home).as_std();
    let variables = server.get_envs().map(|(name, value)| {
        let mut variable = name.to_owned();
        variable.push("=");
        variable.push(value.unwrap_or_default());
        variable
    });
    let mut args = vec![OsString::from("-i")];
    args.extend(variables);
    args.push(server.get_program().to_owned());
    args.extend(server.get_args().map(ToOwned::to_owned));
    Program {
        args,
        ..Program::new("env")
    }
}
