//! Helper program for cases that need more than a shell.
#![expect(clippy::print_stdout, reason = "the program reports on stdout")]

use std::{
    env,
    io::{self, Read, Write},
    net::TcpStream,
    process::ExitCode,
};

use exec_conformance::pattern;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let outcome = match (arguments.next().as_deref(), arguments.next()) {
        (Some("emit"), Some(bytes)) => emit(&bytes),
        (Some("copy"), Some(bytes)) => copy(&bytes),
        (Some("catch"), Some(count)) => catch(&count),
        (Some("connect"), Some(address)) => connect(&address),
        (Some("arguments"), _) => print_arguments(),
        (Some("environment"), _) => print_environment(),
        (Some("window"), _) => print_window(),
        _ => return ExitCode::from(64),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Writes `bytes` bytes of the pattern.
fn emit(bytes: &str) -> io::Result<()> {
    let bytes = bytes.parse().map_err(io::Error::other)?;
    pattern::write(bytes, &mut io::stdout().lock())
}

/// Copies `bytes` bytes from stdin to stdout and flushes after each read.
fn copy(bytes: &str) -> io::Result<()> {
    let mut left: usize = bytes.parse().map_err(io::Error::other)?;
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let room = left.min(buffer.len());
        let length = input.read(&mut buffer[..room])?;
        if length == 0 {
            break;
        }
        output.write_all(&buffer[..length])?;
        output.flush()?;
        left -= length;
    }
    Ok(())
}

/// Prints the names of the next `count` signals it receives, then exits.
fn catch(count: &str) -> io::Result<()> {
    let count: usize = count.parse().map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut quit = signal(SignalKind::quit())?;
        let mut user1 = signal(SignalKind::user_defined1())?;
        let mut user2 = signal(SignalKind::user_defined2())?;
        println!("ready");
        for _ in 0..count {
            let name = tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
                _ = hangup.recv() => "SIGHUP",
                _ = quit.recv() => "SIGQUIT",
                _ = user1.recv() => "SIGUSR1",
                _ = user2.recv() => "SIGUSR2",
            };
            println!("got {name}");
        }
        Ok(())
    })
}

/// Connects to an address and prints the error if that fails.
fn connect(address: &str) -> io::Result<()> {
    TcpStream::connect(address)
        .map(drop)
        .inspect_err(|error| drop(writeln!(io::stderr(), "cannot connect: {error}")))
}

/// Prints one line for each argument, starting with `argv[0]`.
fn print_arguments() -> io::Result<()> {
    for argument in env::args() {
        println!("{argument}");
    }
    Ok(())
}

/// Prints one line for each environment variable, sorted by name.
fn print_environment() -> io::Result<()> {
    let mut variables: Vec<_> = env::vars().collect();
    variables.sort();
    for (name, value) in variables {
        println!("{name}={value}");
    }
    Ok(())
}

/// Prints the terminal size now and after each `SIGWINCH`.
fn print_window() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut changes = signal(SignalKind::window_change())?;
        loop {
            let size = rustix::termios::tcgetwinsize(io::stdout())?;
            println!("{} rows {} columns", size.ws_row, size.ws_col);
            io::stdout().flush()?;
            changes.recv().await;
        }
    })
}
