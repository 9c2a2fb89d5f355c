//! Cuts the connection to a server repeatedly while a command writes: every line arrives exactly
//! once and in order, without any code for it in the harness.
//!
//! ```text
//! exec-server --listen ws://127.0.0.1:8765
//! cargo run --example survive_disconnect -- 127.0.0.1:8765
//! ```

use std::io::{Write, stdout};

use anyhow::Context;
use exec_server::{
    BackpressureMode, Command, ExecProcessEvent, ExecServerClient, FollowFrom, FollowOptions,
    OutputSeq, PathUri, ProcessId, RemoteExecServerConnectArgs,
};
use futures_util::StreamExt;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::broadcast,
};

const PROGRAM: &str = "i=0; while [ $i -lt 500 ]; do i=$((i+1)); echo $i; sleep 0.002; done";

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let server = std::env::args().nth(1);
    let server = server.context("usage: survive_disconnect HOST:PORT")?;
    // The client connects through a proxy of this program, which disconnects on request.
    let proxy = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("ws://{}", proxy.local_addr()?);
    let (cut, _) = broadcast::channel(1);
    tokio::spawn(forward(proxy, server, cut.clone()));

    let connect = RemoteExecServerConnectArgs::new(url, "survive_disconnect");
    let client = ExecServerClient::connect_websocket(connect).await?;
    let argv = ["/bin/sh", "-c", PROGRAM].map(str::to_owned).to_vec();
    let command = Command::new(ProcessId::new("count")?, argv, PathUri::parse("file:///")?);
    let count = client.environment().backend.start(command).await?.process;

    let mut events = count.follow(FollowOptions {
        start: FollowFrom::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    });
    let (mut text, mut cuts) = (String::new(), 0);
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(chunk) => text.push_str(str::from_utf8(&chunk.data)?),
            ExecProcessEvent::Exited(..) => {}
            ExecProcessEvent::Closed(_) => break,
            ExecProcessEvent::Failed(error) => return Err(error.into()),
        }
        if text.lines().count() >= 100 * (cuts + 1) && cuts < 4 {
            cuts += cut.send(())?;
        }
    }
    let expected: String = (1..=500).map(|number| format!("{number}\n")).collect();
    anyhow::ensure!(text == expected, "lines were lost or repeated: {text}");
    let lines = text.lines().count();
    writeln!(stdout(), "{lines} lines in their order, {cuts} cuts")?;
    Ok(())
}

/// Forwards connections to `server` until the next disconnect.
async fn forward(proxy: TcpListener, server: String, cut: broadcast::Sender<()>) {
    while let Ok((mut downstream, _)) = proxy.accept().await {
        let (server, mut cut) = (server.clone(), cut.subscribe());
        tokio::spawn(async move {
            let mut upstream = TcpStream::connect(server).await?;
            tokio::select! {
                ended = copy_bidirectional(&mut downstream, &mut upstream) => ended.map(|_| ()),
                _ = cut.recv() => Ok(()),
            }
        });
    }
}
