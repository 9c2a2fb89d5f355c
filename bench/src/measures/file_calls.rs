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
use crate::bench_dir::{BenchDir, check_content, content_at, file_uri};
use crate::bench_plan::{BenchPlan, SampleBudget};
use crate::bench_target::BenchTarget;
use crate::contender::{Contender, interleave, p50};
use crate::helper_process::{CpuCore, ExchangeFloor};
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::{PreparedRequest, RpcClient};
use crate::rpc_message::{DataMember, ResponseView};

/// Bytes of each file.
const FILE_BYTES: usize = 4096;

/// Number of calls in flight, and of files that they cycle through.
const WIDTH: usize = 32;

/// Unmeasured calls of each contender.
const WARM_UP: usize = 200;

/// Measures small calls.
pub(crate) fn measure_calls(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let rows = BenchDir::new().and_then(|dir| {
        Ok([
            measure_one_at_a_time(plan, targets, &dir)?,
            measure_in_flight(plan, targets, &dir),
        ]
        .concat())
    });
    rows.unwrap_or_else(|error| {
        let cells = vec![ReportCell::from_error(&error); targets.len()];
        vec![ReportRow::new("fs-calls", "small file calls", ValueUnit::PerSecond).cells(&cells)]
    })
}

fn measure_one_at_a_time(
    plan: &BenchPlan,
    targets: &[BenchTarget],
    dir: &BenchDir,
) -> Result<Vec<ReportRow>> {
    let budget = plan.files.calls;
    let path = dir.file("one", FILE_BYTES as u64)?;
    let request = PreparedRequest::new("fs/readFile", &json!({"path": file_uri(&path)}));
    let exchange = || ExchangeFloor::start(request.wire_size(), RESPONSE_BYTES);
    let unpinned =
        exchange().map(|mut exchange| rate_contender(budget, move || exchange.round_trip()));
    let pinned = CpuCore::Last.run(exchange).map(|mut exchange| {
        Contender::new(move |samples: &mut Vec<f64>| {
            samples.push(CpuCore::First.run(|| call_rate(budget, || exchange.round_trip()))?);
            Ok(())
        })
    });
    let mut contenders = vec![
        Contender::from_result(unpinned),
        Contender::from_result(pinned),
    ];
    contenders.extend(targets.iter().map(|target| {
        let client = target.shared_instance().connect().and_then(|mut client| {
            let data = client.call(&request)?.data("dataBase64", FILE_BYTES)?;
            check_content(0, FILE_BYTES, data)?;
            for _ in 0..WARM_UP {
                FileCall::Read.check(client.call(&request)?)?;
            }
            Ok(client)
        });
        let request = &request;
        Contender::from_result(client.map(|mut client| {
            rate_contender(budget, move || FileCall::Read.check(client.call(request)?))
        }))
    }));
    interleave(plan.blocks, &mut contenders);

    let cells: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let title = "fs/readFile 4 KiB, one at a time";
    Ok(vec![
        ReportRow::new("fs-read-small", title, ValueUnit::PerSecond)
            .floor(&cells[0])
            .goal(RowGoal::RatioAtLeast(0.6))
            .cells(&cells[2..]),
        ReportRow::new(
            "fs-read-small-apart",
            "(floor: bare exchange, on two cores)",
            ValueUnit::PerSecond,
        )
        .floor(&cells[1]),
    ])
}

/// Approximate size of a 4 KiB file on the wire: base64, the JSON around it, and a frame header.
const RESPONSE_BYTES: usize =
    base64::encoded_len(FILE_BYTES) + r#"{"id":1000,"result":{"dataBase64":""}}"#.len() + 4;

/// Creates a contender that samples one rate per turn.
fn rate_contender<'a>(
    budget: SampleBudget,
    mut operation: impl FnMut() -> Result<()> + 'a,
) -> Contender<'a, f64> {
    Contender::new(move |samples| {
        samples.push(call_rate(budget, &mut operation)?);
        Ok(())
    })
}

/// Returns how often per second `operation` completes.
fn call_rate(budget: SampleBudget, mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    let (mut iterations, started_at) = (0_u32, Instant::now());
    for _ in budget.iterations() {
        operation()?;
        iterations += 1;
    }
    Ok(f64::from(iterations) / started_at.elapsed().as_secs_f64())
}

fn measure_in_flight(plan: &BenchPlan, targets: &[BenchTarget], dir: &BenchDir) -> Vec<ReportRow> {
    let mut contenders = Vec::new();
    for call in FileCall::ALL {
        for (index, target) in targets.iter().enumerate() {
            let directory = format!("{}-{index}", call.method().replace('/', "-"));
            let pipeline = CallPipeline::prepare(call, target, dir, &directory);
            contenders.push(Contender::from_result(pipeline.map(|mut pipeline| {
                Contender::new(move |samples: &mut Vec<f64>| {
                    samples.push(pipeline.run_block(plan.files.in_flight)?);
                    Ok(())
                })
            })));
        }
    }
    interleave(plan.rate_blocks, &mut contenders);

    let cells: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let calls = FileCall::ALL.iter().enumerate();
    calls
        .map(|(index, call)| {
            ReportRow::new(call.id(), call.title(), ValueUnit::PerSecond)
                .relative_to_stock(targets)
                .goal(RowGoal::StockAtLeast(3.0))
                .cells(&cells[index * targets.len()..][..targets.len()])
        })
        .collect()
}

/// A method that is called many times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FileCall {
    Read,
    Stat,
    Write,
}

impl FileCall {
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

    fn request(self, path: &str) -> PreparedRequest {
        let mut params = json!({"path": path});
        if self == Self::Write {
            params["dataBase64"] = json!(base64::encode(&content_at(0, FILE_BYTES)));
        }
        PreparedRequest::new(self.method(), &params)
    }

    /// Checks a response. All files have the same content, so it does not matter which one it is.
    fn check(self, response: ResponseView<'_>) -> Result<()> {
        match self {
            Self::Read => {
                let DataMember::Base64(text) = response.data("dataBase64", FILE_BYTES)? else {
                    anyhow::bail!("unrequested binary data");
                };
                // One sample is enough: the warm-up compared the others.
                let first = base64::encode(&content_at(0, 12));
                ensure!(text.starts_with(first.as_bytes()), "wrong file content");
            }
            Self::Stat => ensure!(
                memmem::find(response.json, b"\"size\":4096").is_some(),
                "wrong size: {}",
                String::from_utf8_lossy(response.json)
            ),
            Self::Write => {}
        }
        Ok(())
    }
}

/// A connection with many calls in flight, and the files of the calls.
#[derive(Debug)]
struct CallPipeline {
    call: FileCall,
    client: RpcClient,
    requests: Vec<PreparedRequest>,
    paths: Vec<PathBuf>,
}

impl CallPipeline {
    fn prepare(
        call: FileCall,
        target: &BenchTarget,
        dir: &BenchDir,
        directory: &str,
    ) -> Result<Self> {
        dir.directory(directory)?;
        let paths: Vec<PathBuf> = (0..WIDTH)
            .map(|index| dir.file(&format!("{directory}/{index}"), FILE_BYTES as u64))
            .collect::<Result<_>>()?;
        let mut pipeline = Self {
            call,
            client: target.shared_instance().connect()?,
            requests: paths
                .iter()
                .map(|path| call.request(&file_uri(path)))
                .collect(),
            paths,
        };
        for request in &pipeline.requests {
            let response = pipeline.client.call(request)?;
            if call == FileCall::Read {
                check_content(0, FILE_BYTES, response.data("dataBase64", FILE_BYTES)?)?;
            }
        }
        Ok(pipeline)
    }

    /// Makes calls within `budget` and returns the calls per second.
    fn run_block(&mut self, budget: SampleBudget) -> Result<f64> {
        let mut requests = self.requests.iter().cycle();
        let mut next = move |client: &mut RpcClient| {
            if let Some(request) = requests.next() {
                client.queue_request(request);
            }
        };
        if self.call == FileCall::Write {
            self.clear()?;
        }
        let mut iterations = budget.iterations();
        let mut responses = 0_u32;
        let started_at = Instant::now();
        for _ in 0..WIDTH {
            next(&mut self.client);
        }
        self.client.flush()?;
        let mut is_finished = false;
        while !is_finished {
            self.call.check(self.client.next_response()?)?;
            let mut received = 1;
            // Handle all responses that have arrived, then replace them with one write. Do not
            // delay that write: a server with Nagle's algorithm waits for our next segment.
            while let Some(response) = self.client.buffered_response()? {
                self.call.check(response)?;
                received += 1;
            }
            for _ in 0..received {
                is_finished |= iterations.next().is_none();
                next(&mut self.client);
            }
            responses += received;
            self.client.flush()?;
        }
        let rate = f64::from(responses) / started_at.elapsed().as_secs_f64();
        for _ in 0..WIDTH {
            self.call.check(self.client.next_response()?)?;
        }
        if self.call == FileCall::Write {
            for path in &self.paths {
                check_content(0, FILE_BYTES, DataMember::Raw(&fs::read(path)?))?;
            }
        }
        Ok(rate)
    }

    /// Overwrites the files with zeros, so that a later check sees only new content.
    fn clear(&self) -> Result<()> {
        for path in &self.paths {
            // In place: some filesystems flush a truncated file to disk.
            let mut file = File::options().write(true).open(path)?;
            file.write_all(&[0; FILE_BYTES])?;
        }
        Ok(())
    }
}

/// Files in each directory.
const FILES_PER_DIRECTORY: usize = 100;

/// Measures `fs/walk`.
pub(crate) fn measure_walk(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let cells = BenchDir::new().and_then(|dir| {
        create_tree(&dir, plan.files.directories)?;
        Ok(walk_times(plan, targets, &dir))
    });
    let cells = cells.unwrap_or_else(|error| vec![ReportCell::from_error(&error); targets.len()]);
    let title = format!(
        "fs/walk of {} files, p50",
        plan.files.directories * FILES_PER_DIRECTORY
    );
    vec![
        ReportRow::new("fs-walk", &title, ValueUnit::Seconds)
            .relative_to_stock(targets)
            .goal(RowGoal::StockAtMost(0.3))
            .cells(&cells),
    ]
}

/// Creates the tree.
fn create_tree(dir: &BenchDir, directories: usize) -> Result<()> {
    for directory in 0..directories {
        let path = dir.directory(&format!("directory-{directory:03}"))?;
        for file in 0..FILES_PER_DIRECTORY {
            File::create(path.join(format!("file-{file:02}.txt")))?;
        }
    }
    Ok(())
}

fn walk_times(plan: &BenchPlan, targets: &[BenchTarget], dir: &BenchDir) -> Vec<ReportCell> {
    let options = json!({
        "maxDepth": 8,
        "maxDirectories": 10_000,
        "maxEntries": 50_000,
        "followDirectorySymlinks": false,
    });
    let params = json!({"path": file_uri(dir.path()), "options": options});
    let walk = PreparedRequest::new("fs/walk", &params);
    let mut contenders: Vec<_> = targets
        .iter()
        .map(|target| Contender::from_result(walk_contender(plan, target, &walk)))
        .collect();
    interleave(plan.rate_blocks, &mut contenders);
    contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect()
}

fn walk_contender<'a>(
    plan: &'a BenchPlan,
    target: &BenchTarget,
    walk: &'a PreparedRequest,
) -> Result<Contender<'a, f64>> {
    let mut client = target.shared_instance().connect()?;
    let response: Value = serde_json::from_slice(client.call(walk)?.json)?;
    let entries = response["result"]["entries"]
        .as_array()
        .context("fs/walk returned no entries")?;
    let expected = plan.files.directories * (FILES_PER_DIRECTORY + 1);
    ensure!(
        entries.len() == expected && response["result"]["truncated"] == false,
        "{} entries instead of {expected}",
        entries.len()
    );
    // Later responses differ only in their ids, which grow by a few digits at most.
    let size = client.call(walk)?.json.len();
    Ok(Contender::new(move |samples| {
        for _ in plan.files.walks.iterations() {
            let started_at = Instant::now();
            let response = client.call(walk)?;
            samples.push(started_at.elapsed().as_secs_f64());
            let differs = response.json.len().abs_diff(size);
            ensure!(
                differs < 8,
                "the size of the walk differs by {differs} bytes"
            );
        }
        Ok(())
    }))
}
