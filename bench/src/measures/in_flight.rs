//! Processes per second with many between start and closed, pipelined on one connection.

use std::time::Instant;

use anyhow::Result;

use crate::floors::spawn::{Output, PROGRAM, rate};
use crate::plan::{Budget, Plan};
use crate::report::{Reach, Row, Unit};
use crate::rpc::{Client, Event, Start, Stdio};
use crate::stats::{Lane, interleave, p50};
use crate::target::Target;

/// Processes between start and closed.
const WIDTH: usize = 32;

/// Measures process throughput.
pub(crate) fn run(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let budget = plan.in_flight;
    let floor = |output| {
        Lane::new(move |samples: &mut Vec<f64>| {
            samples.push(rate(output, WIDTH, budget)?);
            Ok(())
        })
    };
    let mut lanes = vec![floor(Output::Piped), floor(Output::Null)];
    for target in targets {
        lanes.push(Lane::prepare(target.shared().connect().map(
            |mut client| {
                Lane::new(move |samples| {
                    samples.push(block(&mut client, budget)?);
                    Ok(())
                })
            },
        )));
    }
    interleave(plan.rate_blocks, &mut lanes);

    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    vec![
        Row::new("in-flight", "32 in flight, pipes", Unit::PerSecond)
            .floor(&cells[0])
            .reach(Reach::RatioAtLeast(0.7))
            .cells(&cells[2..]),
        Row::new(
            "in-flight-plain",
            "(floor: bare loop, all on /dev/null)",
            Unit::PerSecond,
        )
        .floor(&cells[1]),
    ]
}

/// Runs one block and returns processes per second. Every start is answered and closed after it.
fn block(client: &mut Client, budget: Budget) -> Result<f64> {
    let start = Start::new(&[PROGRAM], Stdio::Pipes);
    let mut laps = budget.laps();
    let (mut closed, mut answered, mut started) = (0_u32, 0_u64, 0_u64);
    let began = Instant::now();
    for _ in 0..WIDTH {
        client.queue_start(&start);
        started += 1;
    }
    client.flush()?;
    let rate = loop {
        let mut event = Some(client.next_event()?);
        let mut done = false;
        // All that is here already, before one write that replaces all that closed.
        while let Some(known) = event {
            match known {
                Event::Closed => {
                    closed += 1;
                    done |= laps.next().is_none();
                    client.queue_start(&start);
                    started += 1;
                }
                Event::Response => answered += 1,
                Event::Output(_) | Event::Other => {}
            }
            event = client.buffered_event()?;
        }
        client.flush()?;
        if done {
            break f64::from(closed) / began.elapsed().as_secs_f64();
        }
    };
    client.settle(started - answered, started - u64::from(closed))?;
    Ok(rate)
}
