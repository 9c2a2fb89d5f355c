//! Large files: read whole, read by blocks, written whole; as JSON text and as binary messages.
//!
//! The files are in the page cache, so servers are measured and not disks. Returned content is
//! checked by its length and by samples, outside of timed code where the check would count.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use crate::base64;
use crate::bench_dir::{BenchDir, check_content, content_at, file_uri};
use crate::bench_plan::BenchPlan;
use crate::bench_target::{BenchTarget, OURS};
use crate::contender::{Contender, interleave, p50};
use crate::measures::BINARY;
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::{PreparedRequest, RpcClient};
use crate::rpc_message::{CallRefusal, DataMember};

/// Bytes of a block: the protocol's maximum.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// Measures large transfers.
pub(crate) fn measure_transfer(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let rows = BenchDir::new().and_then(|dir| {
        let mut rows = Vec::new();
        rows.extend(measure_reads(plan, targets, &dir)?);
        rows.extend(measure_writes(plan, targets, &dir));
        Ok(rows)
    });
    rows.unwrap_or_else(|error| {
        let cells = vec![ReportCell::from_error(&error); targets.len()];
        vec![ReportRow::new("fs-bulk", "large files", ValueUnit::BytesPerSecond).cells(&cells)]
    })
}

fn measure_reads(
    plan: &BenchPlan,
    targets: &[BenchTarget],
    dir: &BenchDir,
) -> Result<Vec<ReportRow>> {
    let bytes = plan.files.read_bytes;
    let mib = bytes >> 20;
    let path = file_uri(&dir.file("read", bytes)?);
    let request = PreparedRequest::new("fs/readFile", &json!({"path": path}));
    let whole = compare_transfers(plan, targets, bytes, |_, mut client| {
        let request = &request;
        run_once(move || read_whole(&mut client, request, bytes))
    });
    let blocks = compare_transfers(plan, targets, bytes, |_, mut client| {
        let path = &path;
        run_once(move || read_blocks(&mut client, path, bytes))
    });
    Ok([
        whole.rows(
            ["fs-read", "fs-read-binary"],
            &format!("fs/readFile {mib} MiB"),
            |row| {
                row.relative_to_stock(targets)
                    .goal(RowGoal::StockAtLeast(5.0))
            },
        ),
        blocks.rows(
            ["fs-read-blocks", "fs-read-blocks-binary"],
            &format!("{mib} MiB by fs/readBlock"),
            |row| {
                row.relative_to_stock(targets)
                    .goal(RowGoal::StockAtLeast(2.5))
            },
        ),
    ]
    .concat())
}

fn measure_writes(plan: &BenchPlan, targets: &[BenchTarget], dir: &BenchDir) -> Vec<ReportRow> {
    let bytes = plan.files.write_bytes;
    let path = dir.path().join("write");
    // Both encodings are prepared once for all targets, so that preparing them is not timed.
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    let data = content_at(0, len);
    let params = json!({"path": file_uri(&path), "dataBase64": base64::encode(&data)});
    let text = PreparedRequest::new("fs/writeFile", &params);
    let binary = PreparedRequest::binary("fs/writeFile", &json!({"path": file_uri(&path)}), data);
    let written = compare_transfers(plan, targets, bytes, |encoding, mut client| {
        let (path, request) = match encoding {
            TransferEncoding::Json => (&path, &text),
            TransferEncoding::Binary => (&path, &binary),
        };
        run_once(move || {
            // Some filesystems flush a file to disk when it is replaced, so remove it first.
            drop(fs::remove_file(path));
            client.queue_request(request);
            let started_at = Instant::now();
            client.flush()?;
            client.next_response()?;
            let elapsed = started_at.elapsed();
            check_content(0, len, DataMember::Raw(&fs::read(path)?))?;
            Ok(elapsed)
        })
    });
    written.rows(
        ["fs-write", "fs-write-binary"],
        &format!("fs/writeFile {} MiB, one frame", bytes >> 20),
        |row| row.goal(RowGoal::AtLeast(300e6)),
    )
}

/// Reads a whole file and returns the time until the response arrived.
fn read_whole(client: &mut RpcClient, request: &PreparedRequest, bytes: u64) -> Result<Duration> {
    let started_at = Instant::now();
    let response = client.call(request)?;
    let elapsed = started_at.elapsed();
    let len = usize::try_from(bytes)?;
    check_content(0, len, response.data("dataBase64", len)?)?;
    Ok(elapsed)
}

/// Reads a whole file by blocks, one after the other, and returns the time.
pub(super) fn read_blocks(client: &mut RpcClient, path: &str, bytes: u64) -> Result<Duration> {
    let open = PreparedRequest::new("fs/open", &json!({"handleId": "bench", "path": path}));
    let close = PreparedRequest::new("fs/close", &json!({"handleId": "bench"}));
    let started_at = Instant::now();
    client.call(&open)?;
    let mut offset = 0;
    while offset < bytes {
        let params = json!({"handleId": "bench", "offset": offset, "len": BLOCK_BYTES});
        let response = client.call(&PreparedRequest::new("fs/readBlock", &params))?;
        let len = usize::try_from(bytes - offset)
            .map_or(BLOCK_BYTES, |remaining| remaining.min(BLOCK_BYTES));
        check_content(offset, len, response.data("chunk", len)?)?;
        offset += len as u64;
    }
    client.call(&close)?;
    Ok(started_at.elapsed())
}

/// Encoding of content on the wire.
#[derive(Clone, Copy, Debug)]
enum TransferEncoding {
    /// Base64 in JSON.
    Json,
    /// Raw bytes, with the extension `binaryData`.
    Binary,
}

/// Rates of all targets in both encodings.
#[derive(Debug)]
struct TransferComparison {
    json: Vec<ReportCell>,
    binary: Vec<ReportCell>,
}

impl TransferComparison {
    /// Returns the row with the goal, and one below it for the binary encoding.
    fn rows(
        self,
        ids: [&'static str; 2],
        title: &str,
        with_goal: impl Fn(ReportRow) -> ReportRow,
    ) -> Vec<ReportRow> {
        let row = |id, encoding| {
            ReportRow::new(
                id,
                &format!("{title}, {encoding}"),
                ValueUnit::BytesPerSecond,
            )
        };
        vec![
            with_goal(row(ids[0], "JSON")).cells(&self.json),
            row(ids[1], BINARY).cells(&self.binary),
        ]
    }
}

/// Transfers `bytes` bytes with all targets in both encodings, in turns.
///
/// `prepare` creates the transfer of a connection, which returns the measured time.
fn compare_transfers<'a, T>(
    plan: &BenchPlan,
    targets: &[BenchTarget],
    bytes: u64,
    prepare: impl Fn(TransferEncoding, RpcClient) -> Result<T>,
) -> TransferComparison
where
    T: FnMut() -> Result<Duration> + 'a,
{
    let mut contenders = Vec::new();
    for encoding in [TransferEncoding::Json, TransferEncoding::Binary] {
        for target in targets {
            let client = match encoding {
                TransferEncoding::Json => target.shared_instance().connect(),
                TransferEncoding::Binary => target.shared_instance().connect_with(BINARY),
            };
            let contender = client.and_then(|client| {
                if matches!(encoding, TransferEncoding::Binary) && !client.granted(BINARY) {
                    return Ok(Contender::skipped("binaryData not granted"));
                }
                match prepare(encoding, client) {
                    Ok(transfer) => Ok(transfer_contender(bytes, transfer)),
                    // A limit of an external server only causes a note.
                    Err(error) if target.name() != OURS && !error.is::<CallRefusal>() => {
                        Ok(Contender::skipped(&format!("{error:#}")))
                    }
                    Err(error) => Err(error),
                }
            });
            contenders.push(Contender::from_result(contender));
        }
    }
    interleave(plan.rate_blocks, &mut contenders);
    let cells: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let (json, binary) = cells.split_at(targets.len());
    TransferComparison {
        json: json.to_vec(),
        binary: binary.to_vec(),
    }
}

/// Runs a transfer once, so that buffers are grown and pages are mapped, and returns it.
fn run_once<T: FnMut() -> Result<Duration>>(mut transfer: T) -> Result<T> {
    transfer()?;
    Ok(transfer)
}

fn transfer_contender<'a>(
    bytes: u64,
    mut transfer: impl FnMut() -> Result<Duration> + 'a,
) -> Contender<'a, f64> {
    Contender::new(move |samples| {
        let elapsed = transfer()?;
        if elapsed.is_zero() {
            bail!("a transfer took no time");
        }
        samples.push(bytes as f64 / elapsed.as_secs_f64());
        Ok(())
    })
}
