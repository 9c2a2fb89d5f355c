//! How many frames a hub routes: raw endpoints, small frames, as fast as it takes them.

use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::ours;
use crate::hub::{Hub, data, executor, harness, resume};
use crate::plan::Plan;
use crate::report::{Cell, Reach, Row, Unit};
use crate::scratch::Scratch;
use crate::target::Target;
use crate::ws::WebSocket;

/// The size of a typical small record.
const PAYLOAD: [u8; 128] = [7; 128];
/// Frames that are sent with one write.
const BATCH: u32 = 64;

/// Measures how many frames a hub routes.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let measure = |program: PathBuf| {
        let scratch = Scratch::new()?;
        let hub = Hub::start(&program, &scratch)?;
        let mut rates = Vec::new();
        for block in 0..plan.rate_blocks {
            rates.push(route(&hub, &format!("frames-{block}"), plan.frames)?);
        }
        crate::stats::p50(&rates).context("no samples")
    };
    let columns = ours(targets, measure, |rate| vec![Cell::Value(*rate)], 1);
    vec![
        Row::new(
            "hub-frames",
            "frames routed by a hub, 128 bytes each",
            Unit::PerSecond,
        )
        .reach(Reach::AtLeast(100_000.0))
        .cells(&columns[0]),
    ]
}

/// Sends frames from a harness to an executor; returns how many a second came.
fn route(hub: &Hub, environment: &str, count: u32) -> Result<f64> {
    let mut there = WebSocket::connect(&executor(hub, environment, 1)?)?;
    let mut here = WebSocket::connect(&harness(hub, environment, 2)?)?;
    let stream = "11111111-2222-4333-8444-555555555555";
    here.queue_binary(&[&resume(stream)]);
    here.flush()?;
    there.next_message()?;
    let began = Instant::now();
    let sender = thread::spawn(move || -> Result<WebSocket> {
        for seq in 0..count {
            here.queue_binary(&[&data(stream, seq, &PAYLOAD)]);
            if seq % BATCH == BATCH - 1 {
                here.flush()?;
            }
        }
        here.flush()?;
        Ok(here)
    });
    for _ in 0..count {
        let frame = there.next_message()?;
        ensure!(frame.len() > PAYLOAD.len(), "a frame is too short");
    }
    let took = began.elapsed().as_secs_f64();
    let sent = sender.join().ok().context("the sender panicked")?;
    // Open until the last frame has come.
    drop(sent?);
    Ok(f64::from(count) / took)
}
