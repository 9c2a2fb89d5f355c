//! Calls of filesystem methods: small calls one at a time and many in flight, and the walk of a
//! large tree.
//!
//! The files are in the page cache, so servers are measured and not disks.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use memchr::memmem;
use serde_json::{Value, json};

use crate::base64;
use crate::bench_dir::{Scratch, check_content, content_at, file_uri};
use crate::bench_plan::{Budget, Plan};
use crate::bench_target::Target;
use crate::contender::{Lane, interleave, p50};
use crate::helper_process::{Core, ExchangeFloor};
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc_client::{Client, Request};
use crate::rpc_message::{Answer, Data};

/// Bytes of the files.
const FILE_BYTES: usize = 4096;

/// Calls that wait for their answer, and files that they go round.
const WIDTH: usize = 32;

/// Unmeasured calls of each lane.
const WARM_UP: usize = 200;

/// Measures small calls.
pub(crate) fn measure_calls(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let rows = Scratch::new().and_then(|scratch| {
        Ok([
            measure_one_at_a_time(plan, targets, &scratch)?,
            measure_in_flight(plan, targets, &scratch),
        ]
        .concat())
    });
    rows.unwrap_or_else(|error| {
        let cells = vec![Cell::without(&error); targets.len()];
        vec![Row::new("fs-calls", "small file calls", Unit::PerSecond).cells(&cells)]
    })
}

fn measure_one_at_a_time(plan: &Plan, targets: &[Target], scratch: &Scratch) -> Result<Vec<Row>> {
    let budget = plan.files.calls;
    let path = scratch.file("one", FILE_BYTES as u64)?;
    let request = Request::new("fs/readFile", &json!({"path": file_uri(&path)}));
    let exchange = || ExchangeFloor::start(request.size(), RESPONSE_BYTES);
    let free = exchange().map(|mut exchange| rate_contender(budget, move || exchange.round_trip()));
    let apart = Core::Last.run(exchange).map(|mut exchange| {
        Lane::new(move |samples: &mut Vec<f64>| {
            samples.push(Core::First.run(|| call_rate(budget, || exchange.round_trip()))?);
            Ok(())
        })
    });
    let mut lanes = vec![Lane::prepare(free), Lane::prepare(apart)];
    lanes.extend(targets.iter().map(|target| {
        let client = target.shared().connect().and_then(|mut client| {
            let data = client.call(&request)?.data("dataBase64", FILE_BYTES)?;
            check_content(0, FILE_BYTES, data)?;
            for _ in 0..WARM_UP {
                Call::Read.check(client.call(&request)?)?;
            }
            Ok(client)
        });
        let request = &request;
        Lane::prepare(client.map(|mut client| {
            rate_contender(budget, move || Call::Read.check(client.call(request)?))
        }))
    }));
    interleave(plan.blocks, &mut lanes);

    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let title = "fs/readFile 4 KiB, one at a time";
    Ok(vec![
        Row::new("fs-read-small", title, Unit::PerSecond)
            .floor(&cells[0])
            .reach(Reach::RatioAtLeast(0.6))
            .cells(&cells[2..]),
        Row::new(
            "fs-read-small-apart",
            "(floor: bare exchange, on two cores)",
            Unit::PerSecond,
        )
        .floor(&cells[1]),
    ])
}

/// About what a 4 KiB file takes on the wire: base64, the JSON around it, and a frame header.
const RESPONSE_BYTES: usize =
    base64::encoded_len(FILE_BYTES) + r#"{"id":1000,"result":{"dataBase64":""}}"#.len() + 4;

/// Makes a lane whose samples are rates, one for each turn.
fn rate_contender<'a>(budget: Budget, mut once: impl FnMut() -> Result<()> + 'a) -> Lane<'a, f64> {
    Lane::new(move |samples| {
        samples.push(call_rate(budget, &mut once)?);
        Ok(())
    })
}

/// Returns how often per second `once` is done.
fn call_rate(budget: Budget, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let (mut laps, began) = (0_u32, Instant::now());
    for _ in budget.laps() {
        once()?;
        laps += 1;
    }
    Ok(f64::from(laps) / began.elapsed().as_secs_f64())
}

fn measure_in_flight(plan: &Plan, targets: &[Target], scratch: &Scratch) -> Vec<Row> {
    let mut lanes = Vec::new();
    for call in Call::ALL {
        for (at, target) in targets.iter().enumerate() {
            let directory = format!("{}-{at}", call.method().replace('/', "-"));
            let pipeline = Pipeline::prepare(call, target, scratch, &directory);
            lanes.push(Lane::prepare(pipeline.map(|mut pipeline| {
                Lane::new(move |samples: &mut Vec<f64>| {
                    samples.push(pipeline.block(plan.files.in_flight)?);
                    Ok(())
                })
            })));
        }
    }
    interleave(plan.rate_blocks, &mut lanes);

    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let calls = Call::ALL.iter().enumerate();
    calls
        .map(|(at, call)| {
            Row::new(call.id(), call.title(), Unit::PerSecond)
                .against_stock(targets)
                .reach(Reach::StockAtLeast(3.0))
                .cells(&cells[at * targets.len()..][..targets.len()])
        })
        .collect()
}

/// A call that is made many times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Call {
    Read,
    Stat,
    Write,
}

impl Call {
    const ALL: [Self; 3] = [Self::Read, Self::Stat, Self::Write];

    const fn id(self) -> &'static str {
        match self {
            Self::Read => "fs-read-in-flight",
            Self::Stat => "fs-stat-in-flight",
            Self::Write => "fs-write-in-flight",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Read => "fs/readFile 4 KiB, 32 in flight",
            Self::Stat => "fs/getMetadata, 32 in flight",
            Self::Write => "fs/writeFile 4 KiB, 32 in flight",
        }
    }

    const fn method(self) -> &'static str {
        match self {
            Self::Read => "fs/readFile",
            Self::Stat => "fs/getMetadata",
            Self::Write => "fs/writeFile",
        }
    }

    fn request(self, path: &str) -> Request {
        let mut params = json!({"path": path});
        if self == Self::Write {
            params["dataBase64"] = json!(base64::encode(&content_at(0, FILE_BYTES)));
        }
        Request::new(self.method(), &params)
    }

    /// Checks an answer; all files are alike, so it does not matter which one it is about.
    fn check(self, answer: Answer<'_>) -> Result<()> {
        match self {
            Self::Read => {
                let Data::Base64(text) = answer.data("dataBase64", FILE_BYTES)? else {
                    anyhow::bail!("binary data that was not asked for");
                };
                // One sample: what is between was compared when the lane was warmed up.
                let first = base64::encode(&content_at(0, 12));
                ensure!(text.starts_with(first.as_bytes()), "wrong file content");
            }
            Self::Stat => ensure!(
                memmem::find(answer.json, b"\"size\":4096").is_some(),
                "wrong size: {}",
                String::from_utf8_lossy(answer.json)
            ),
            Self::Write => {}
        }
        Ok(())
    }
}

/// A connection on which calls are made, and the files that they are about.
#[derive(Debug)]
struct Pipeline {
    call: Call,
    client: Client,
    requests: Vec<Request>,
    paths: Vec<PathBuf>,
}

impl Pipeline {
    fn prepare(call: Call, target: &Target, scratch: &Scratch, directory: &str) -> Result<Self> {
        scratch.directory(directory)?;
        let paths: Vec<PathBuf> = (0..WIDTH)
            .map(|at| scratch.file(&format!("{directory}/{at}"), FILE_BYTES as u64))
            .collect::<Result<_>>()?;
        let mut pipeline = Self {
            call,
            client: target.shared().connect()?,
            requests: paths
                .iter()
                .map(|path| call.request(&file_uri(path)))
                .collect(),
            paths,
        };
        for request in &pipeline.requests {
            let answer = pipeline.client.call(request)?;
            if call == Call::Read {
                check_content(0, FILE_BYTES, answer.data("dataBase64", FILE_BYTES)?)?;
            }
        }
        Ok(pipeline)
    }

    /// Makes calls within `budget` and returns how many per second.
    fn block(&mut self, budget: Budget) -> Result<f64> {
        let mut requests = self.requests.iter().cycle();
        let mut next = move |client: &mut Client| {
            if let Some(request) = requests.next() {
                client.queue_request(request);
            }
        };
        if self.call == Call::Write {
            self.clear()?;
        }
        let mut laps = budget.laps();
        let mut answered = 0_u32;
        let began = Instant::now();
        for _ in 0..WIDTH {
            next(&mut self.client);
        }
        self.client.flush()?;
        let mut done = false;
        while !done {
            self.call.check(self.client.next_answer()?)?;
            let mut here = 1;
            // All that is here already, before one write that replaces all that was answered. Not
            // later: a server that leaves Nagle's algorithm on waits for our next segment.
            while let Some(answer) = self.client.buffered_answer()? {
                self.call.check(answer)?;
                here += 1;
            }
            for _ in 0..here {
                done |= laps.next().is_none();
                next(&mut self.client);
            }
            answered += here;
            self.client.flush()?;
        }
        let rate = f64::from(answered) / began.elapsed().as_secs_f64();
        for _ in 0..WIDTH {
            self.call.check(self.client.next_answer()?)?;
        }
        if self.call == Call::Write {
            for path in &self.paths {
                check_content(0, FILE_BYTES, Data::Raw(&fs::read(path)?))?;
            }
        }
        Ok(rate)
    }

    /// Overwrites the files, so that what is found in them later was written since.
    fn clear(&self) -> Result<()> {
        for path in &self.paths {
            // In place: a file that is cut first is flushed to the disk by some filesystems.
            let mut file = File::options().write(true).open(path)?;
            file.write_all(&[0; FILE_BYTES])?;
        }
        Ok(())
    }
}

/// Files in each directory.
const FILES_PER_DIRECTORY: usize = 100;

/// Measures the walk.
pub(crate) fn measure_walk(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let cells = Scratch::new().and_then(|scratch| {
        create_tree(&scratch, plan.files.directories)?;
        Ok(walk_times(plan, targets, &scratch))
    });
    let cells = cells.unwrap_or_else(|error| vec![Cell::without(&error); targets.len()]);
    let title = format!(
        "fs/walk of {} files, p50",
        plan.files.directories * FILES_PER_DIRECTORY
    );
    vec![
        Row::new("fs-walk", &title, Unit::Seconds)
            .against_stock(targets)
            .reach(Reach::StockAtMost(0.3))
            .cells(&cells),
    ]
}

/// Makes the tree.
fn create_tree(scratch: &Scratch, directories: usize) -> Result<()> {
    for directory in 0..directories {
        let path = scratch.directory(&format!("directory-{directory:03}"))?;
        for file in 0..FILES_PER_DIRECTORY {
            File::create(path.join(format!("file-{file:02}.txt")))?;
        }
    }
    Ok(())
}

fn walk_times(plan: &Plan, targets: &[Target], scratch: &Scratch) -> Vec<Cell> {
    let options = json!({
        "maxDepth": 8,
        "maxDirectories": 10_000,
        "maxEntries": 50_000,
        "followDirectorySymlinks": false,
    });
    let params = json!({"path": file_uri(scratch.path()), "options": options});
    let walk = Request::new("fs/walk", &params);
    let mut lanes: Vec<_> = targets
        .iter()
        .map(|target| Lane::prepare(walk_contender(plan, target, &walk)))
        .collect();
    interleave(plan.rate_blocks, &mut lanes);
    lanes.iter().map(|lane| lane.cell(p50)).collect()
}

fn walk_contender<'a>(plan: &'a Plan, target: &Target, walk: &'a Request) -> Result<Lane<'a, f64>> {
    let mut client = target.shared().connect()?;
    let answer: Value = serde_json::from_slice(client.call(walk)?.json)?;
    let entries = answer["result"]["entries"]
        .as_array()
        .context("a walk without entries")?;
    let expected = plan.files.directories * (FILES_PER_DIRECTORY + 1);
    ensure!(
        entries.len() == expected && answer["result"]["truncated"] == false,
        "{} entries instead of {expected}",
        entries.len()
    );
    // Later answers differ in their ids at most, which do not grow by more than a few digits.
    let size = client.call(walk)?.json.len();
    Ok(Lane::new(move |samples| {
        for _ in plan.files.walks.laps() {
            let began = Instant::now();
            let answer = client.call(walk)?;
            samples.push(began.elapsed().as_secs_f64());
            let differs = answer.json.len().abs_diff(size);
            ensure!(differs < 8, "a walk that differs by {differs} bytes");
        }
        Ok(())
    }))
}
