//! Large files: read whole, read by blocks, written whole; as JSON text and as binary messages.
//!
//! The files are in the page cache, so servers are measured and not disks. Returned content is
//! checked by its length and by samples, outside of timed code where the check would count.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use crate::base64;
use crate::bench_dir::{Scratch, check_content, content_at, file_uri};
use crate::bench_plan::Plan;
use crate::bench_target::{OURS, Target};
use crate::contender::{Lane, interleave, p50};
use crate::measures::BINARY;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc_client::{Client, Request};
use crate::rpc_message::{Data, Refusal};

/// Bytes of a block: the most that the protocol allows.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// Measures large transfers.
pub(crate) fn measure_transfer(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let rows = Scratch::new().and_then(|scratch| {
        let mut rows = Vec::new();
        rows.extend(measure_reads(plan, targets, &scratch)?);
        rows.extend(measure_writes(plan, targets, &scratch));
        Ok(rows)
    });
    rows.unwrap_or_else(|error| {
        let cells = vec![Cell::without(&error); targets.len()];
        vec![Row::new("fs-bulk", "large files", Unit::BytesPerSecond).cells(&cells)]
    })
}

fn measure_reads(plan: &Plan, targets: &[Target], scratch: &Scratch) -> Result<Vec<Row>> {
    let bytes = plan.files.read_bytes;
    let mib = bytes >> 20;
    let path = file_uri(&scratch.file("read", bytes)?);
    let whole = Request::new("fs/readFile", &json!({"path": path}));
    let whole = compare_transfers(plan, targets, bytes, |_, mut client| {
        let whole = &whole;
        run_once(move || read_whole(&mut client, whole, bytes))
    });
    let blocks = compare_transfers(plan, targets, bytes, |_, mut client| {
        let path = &path;
        run_once(move || read_blocks(&mut client, path, bytes))
    });
    Ok([
        whole.rows(
            ["fs-read", "fs-read-binary"],
            &format!("fs/readFile {mib} MiB"),
            |row| row.against_stock(targets).reach(Reach::StockAtLeast(5.0)),
        ),
        blocks.rows(
            ["fs-read-blocks", "fs-read-blocks-binary"],
            &format!("{mib} MiB by fs/readBlock"),
            |row| row.against_stock(targets).reach(Reach::StockAtLeast(2.5)),
        ),
    ]
    .concat())
}

fn measure_writes(plan: &Plan, targets: &[Target], scratch: &Scratch) -> Vec<Row> {
    let bytes = plan.files.write_bytes;
    let path = scratch.path().join("write");
    // Both forms are the same for all targets and outlive the lanes, so that none is timed.
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    let data = content_at(0, len);
    let params = json!({"path": file_uri(&path), "dataBase64": base64::encode(&data)});
    let text = Request::new("fs/writeFile", &params);
    let binary = Request::binary("fs/writeFile", &json!({"path": file_uri(&path)}), data);
    let written = compare_transfers(plan, targets, bytes, |form, mut client| {
        let (path, request) = match form {
            Form::Json => (&path, &text),
            Form::Binary => (&path, &binary),
        };
        run_once(move || {
            // A file that is there is flushed to the disk by some filesystems when it is replaced.
            drop(fs::remove_file(path));
            client.queue_request(request);
            let began = Instant::now();
            client.flush()?;
            client.next_answer()?;
            let took = began.elapsed();
            check_content(0, len, Data::Raw(&fs::read(path)?))?;
            Ok(took)
        })
    });
    written.rows(
        ["fs-write", "fs-write-binary"],
        &format!("fs/writeFile {} MiB, one frame", bytes >> 20),
        |row| row.reach(Reach::AtLeast(300e6)),
    )
}

/// Reads a whole file and returns how long the answer took to be here.
fn read_whole(client: &mut Client, request: &Request, bytes: u64) -> Result<Duration> {
    let began = Instant::now();
    let answer = client.call(request)?;
    let took = began.elapsed();
    let len = usize::try_from(bytes)?;
    check_content(0, len, answer.data("dataBase64", len)?)?;
    Ok(took)
}

/// Reads a whole file by blocks, one after the other, and returns how long that took.
pub(super) fn read_blocks(client: &mut Client, path: &str, bytes: u64) -> Result<Duration> {
    let open = Request::new("fs/open", &json!({"handleId": "bench", "path": path}));
    let close = Request::new("fs/close", &json!({"handleId": "bench"}));
    let began = Instant::now();
    client.call(&open)?;
    let mut offset = 0;
    while offset < bytes {
        let params = json!({"handleId": "bench", "offset": offset, "len": BLOCK_BYTES});
        let answer = client.call(&Request::new("fs/readBlock", &params))?;
        let len = usize::try_from(bytes - offset).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
        check_content(offset, len, answer.data("chunk", len)?)?;
        offset += len as u64;
    }
    client.call(&close)?;
    Ok(began.elapsed())
}

/// How content travels.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// As base64 in JSON.
    Json,
    /// As it is, after the grant of `binaryData`.
    Binary,
}

/// The rates of all targets in both forms.
#[derive(Debug)]
struct TransferComparison {
    json: Vec<Cell>,
    binary: Vec<Cell>,
}

impl TransferComparison {
    /// Makes the row that is judged, and one below it for the binary form.
    fn rows(self, ids: [&'static str; 2], title: &str, judged: impl Fn(Row) -> Row) -> Vec<Row> {
        let row = |id, form| Row::new(id, &format!("{title}, {form}"), Unit::BytesPerSecond);
        vec![
            judged(row(ids[0], "JSON")).cells(&self.json),
            row(ids[1], BINARY).cells(&self.binary),
        ]
    }
}

/// Lets all targets move `bytes` bytes in both forms, in turns.
///
/// `prepare` makes the transfer of a connection; it returns the time that counts.
fn compare_transfers<'a, T>(
    plan: &Plan,
    targets: &[Target],
    bytes: u64,
    prepare: impl Fn(Form, Client) -> Result<T>,
) -> TransferComparison
where
    T: FnMut() -> Result<Duration> + 'a,
{
    let mut lanes = Vec::new();
    for form in [Form::Json, Form::Binary] {
        for target in targets {
            let client = match form {
                Form::Json => target.shared().connect(),
                Form::Binary => target.shared().connect_with(BINARY),
            };
            let lane = client.and_then(|client| {
                if matches!(form, Form::Binary) && !client.granted(BINARY) {
                    return Ok(Lane::skipped("binaryData not granted"));
                }
                match prepare(form, client) {
                    Ok(transfer) => Ok(transfer_contender(bytes, transfer)),
                    // A limit of an external server is only worth a note.
                    Err(error) if target.name() != OURS && !error.is::<Refusal>() => {
                        Ok(Lane::skipped(&format!("{error:#}")))
                    }
                    Err(error) => Err(error),
                }
            });
            lanes.push(Lane::prepare(lane));
        }
    }
    interleave(plan.rate_blocks, &mut lanes);
    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let (json, binary) = cells.split_at(targets.len());
    TransferComparison {
        json: json.to_vec(),
        binary: binary.to_vec(),
    }
}

/// Returns a transfer that was done once, so that buffers have their size and pages are there.
fn run_once<T: FnMut() -> Result<Duration>>(mut transfer: T) -> Result<T> {
    transfer()?;
    Ok(transfer)
}

fn transfer_contender<'a>(
    bytes: u64,
    mut transfer: impl FnMut() -> Result<Duration> + 'a,
) -> Lane<'a, f64> {
    Lane::new(move |samples| {
        let took = transfer()?;
        if took.is_zero() {
            bail!("a transfer took no time");
        }
        samples.push(bytes as f64 / took.as_secs_f64());
        Ok(())
    })
}
