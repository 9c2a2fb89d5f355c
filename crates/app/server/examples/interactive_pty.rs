//! Interacts with a program on a remote terminal: output, input, resize, and Ctrl-C.
//!
//! ```text
//! exec-server --listen ws://127.0.0.1:8765
//! cargo run --example interactive_pty -- ws://127.0.0.1:8765
//! ```

use std::io::{Write, stdout};

use anyhow::Context;
use exec_server::{
    BackpressureMode, Command, EventStream, ExecProcessEvent, ExecServerClient, FollowFrom,
    FollowOptions, OutputSeq, PathUri, ProcessId, ProcessIo, RemoteExecServerConnectArgs,
    TerminalSize,
};
use futures_util::StreamExt;

const PROGRAM: &str = "printf 'name? '; read name; printf 'size? '; read answer; \
                       echo \"$name has $(stty size)\"; echo waiting; exec sleep 1000";

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1);
    let url = url.context("usage: interactive_pty URL")?;
    let connect = RemoteExecServerConnectArgs::new(url, "interactive_pty");
    let client = ExecServerClient::connect_websocket(connect).await?;

    let argv = ["/bin/sh", "-c", PROGRAM].map(str::to_owned).to_vec();
    let command = Command {
        io: ProcessIo::Terminal(TerminalSize { rows: 24, cols: 80 }),
        ..Command::new(ProcessId::new("shell")?, argv, PathUri::parse("file:///")?)
    };
    let shell = client.environment().backend.start(command).await?.process;
    // Every event from the first one; the program is paused if we are slow (backpressure).
    let mut events = shell.follow(FollowOptions {
        start: FollowFrom::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    });

    show_until(&mut events, "name? ").await?;
    shell.write(None, "ann\n".into()).await?;
    show_until(&mut events, "size? ").await?;
    shell
        .resize(TerminalSize {
            rows: 50,
            cols: 132,
        })
        .await?;
    shell.write(None, "\n".into()).await?;
    show_until(&mut events, "waiting").await?;
    // Ctrl-C; the terminal converts it into a signal.
    shell.write(None, "\x03".into()).await?;

    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(chunk) => stdout().write_all(&chunk.data)?,
            ExecProcessEvent::Exited(_, exit) => {
                let signal = exit.signal.unwrap_or("no signal");
                writeln!(stdout(), "\nended with {} by {signal}", exit.code)?;
            }
            ExecProcessEvent::Closed(_) => break,
            ExecProcessEvent::Failed(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Prints output until it ends with `prompt`.
async fn show_until(events: &mut EventStream, prompt: &str) -> anyhow::Result<()> {
    let mut screen = String::new();
    while !screen.contains(prompt) {
        match events.next().await {
            Some(ExecProcessEvent::Output(chunk)) => {
                stdout().write_all(&chunk.data)?;
                screen.push_str(&String::from_utf8_lossy(&chunk.data));
            }
            other => anyhow::bail!("expected `{prompt}`, not {other:?}"),
        }
    }
    Ok(())
}
