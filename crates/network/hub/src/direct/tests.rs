//! Direct executors and harnesses over websockets in memory.

mod joining;
mod keys;
mod owning;
mod registering;

use std::sync::Arc;

use exec_transport::{
    http::site::Peer,
    link::{Encoding, Link, Role as End},
    websocket::link,
};
use exec_wire::outgoing::Outgoing;
use http::{HeaderMap, Request, request::Parts};
use serde_json::json;
use tokio::{io::split, task::JoinHandle};

use super::{Direct, DirectUpgrade};
use crate::{
    registry::{
        Refusal,
        tests::{Bench, Reply},
    },
    tokens::Token,
};

/// A websocket upgrade request.
fn upgrade(path: &str, headers: HeaderMap) -> Parts {
    let request = Request::get(path)
        .header("host", "hub.example:8765")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket");
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    parts.headers.extend(headers);
    parts
}

fn bearer(token: &Token) -> HeaderMap {
    let value = format!("Bearer {}", token.expose()).parse().unwrap();
    HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])
}

async fn ask(bench: &Bench, parts: &Parts) -> Result<DirectUpgrade, Refusal> {
    let peer = Peer::Network("192.0.2.8:8".parse().unwrap());
    bench.direct.upgrade_at(parts, peer, bench.moment).await
}

async fn refused(bench: &Bench, parts: &Parts) -> (u16, &'static str) {
    let refusal = ask(bench, parts).await.unwrap_err();
    (refusal.status.as_u16(), refusal.code)
}

async fn register(bench: &Bench, environment: &str, token: &Token) -> Reply {
    let body = json!({"transport": "direct_jsonrpc_v1"});
    bench
        .post(&format!("{environment}/direct/register"), token, &body)
        .await
}

/// The path and query of the URL that a registration gave.
fn path(registered: &Reply) -> String {
    let url = url::Url::parse(registered.text("url")).unwrap();
    format!("{}?{}", url.path(), url.query().unwrap())
}

/// A client's end of a websocket whose other end the hub serves.
fn open(direct: &Arc<Direct>, upgrade: DirectUpgrade) -> (Link, JoinHandle<()>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let ((near_in, near_out), (far_in, far_out)) = (split(near), split(far));
    let client = link(near_in, near_out, &[], End::Client, "hub".to_owned());
    let server = link(far_in, far_out, &[], End::Server, "client".to_owned());
    let direct = Arc::clone(direct);
    let served = tokio::spawn(async move { direct.serve(upgrade, server).await });
    (client, served)
}

/// Registers and opens an executor's socket; returns once it waits for a harness.
async fn executor(bench: &Bench, token: &Token) -> (Link, JoinHandle<()>) {
    let registered = register(bench, "env-1", token).await;
    dial(bench, token, &path(&registered)).await
}

async fn dial(bench: &Bench, token: &Token, path: &str) -> (Link, JoinHandle<()>) {
    let mut arrivals = bench.direct.arrivals();
    arrivals.mark_unchanged();
    let agreed = ask(bench, &upgrade(path, bearer(token))).await.unwrap();
    let opened = open(&bench.direct, agreed);
    arrivals.changed().await.unwrap();
    opened
}

async fn harness(bench: &Bench, token: &Token) -> Link {
    let agreed = ask(bench, &upgrade("/direct/env-1", bearer(token)))
        .await
        .unwrap();
    open(&bench.direct, agreed).0
}

async fn say(link: &mut Link, text: &str) {
    link.writer
        .push(Outgoing::Text(text.into()), Encoding::Text);
    link.writer.flush().await.unwrap();
}

async fn hear(link: &mut Link) -> Option<String> {
    let message = link.reader.next().await.ok()??;
    Some(String::from_utf8(message.to_vec()).unwrap())
}

/// Whether the executor of alice is connected.
fn is_online(bench: &Bench) -> bool {
    let (environment, alice) = ("env-1".parse().unwrap(), "alice".parse().unwrap());
    let found = bench.direct.find(&environment, &alice);
    found.is_some_and(|found| found.online)
}
