//! Cost of a sandbox policy: starting a process and reading a file under one.
//!
//! Each target is compared with itself: the same operation without a policy is measured in the same
//! turns.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::bench_dir::{Scratch, check_content, content_at, file_uri};
use crate::bench_plan::Plan;
use crate::bench_target::Target;
use crate::contender::{Lane, interleave, p50};
use crate::measures::difference;
use crate::measures::process_start::PROGRAM;
use crate::process_usage::memory_by_name;
use crate::report::{Cell, Reach, Row, Unit};
use crate::rpc_client::{Request, Start, Stdio};

/// Unmeasured runs of each lane.
const WARM_UP: usize = 5;
/// Bytes of the file that is read.
const FILE_BYTES: usize = 4096;

/// Measures what policies cost.
pub(crate) fn measure_sandbox(plan: &Plan, targets: &[Target]) -> Vec<Row> {
    let rows = Scratch::new().and_then(|scratch| {
        let workspace = scratch.directory("workspace")?;
        fs::create_dir(workspace.join(".git"))?;
        let workspace = file_uri(&workspace);
        Ok([
            measure_starts(plan, targets, &workspace),
            measure_reads(plan, targets, &scratch, &workspace)?,
        ]
        .concat())
    });
    rows.unwrap_or_else(|error| {
        let cells = vec![Cell::without(&error); targets.len()];
        vec![Row::new("sandbox", "under a policy", Unit::Seconds).cells(&cells)]
    })
}

fn measure_starts(plan: &Plan, targets: &[Target], workspace: &str) -> Vec<Row> {
    let policies = [None, Some(read_only()), Some(workspace_write(workspace))];
    let mut lanes = Vec::new();
    for policy in &policies {
        lanes.extend(
            targets
                .iter()
                .map(|target| Lane::prepare(start_contender(plan, target, policy.as_ref()))),
        );
    }
    interleave(plan.blocks, &mut lanes);
    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let (plain, under) = cells.split_at(targets.len());
    let (allowing, carved) = under.split_at(targets.len());
    let more = |under: &[Cell]| under.iter().zip(plain).map(difference).collect::<Vec<_>>();
    vec![
        Row::new(
            "sandbox-allow",
            "start under a policy that only allows: more",
            Unit::Seconds,
        )
        .reach(Reach::AtMost(0.0003))
        .cells(&more(allowing)),
        Row::new(
            "sandbox-carve",
            "start in a workspace, no network: more",
            Unit::Seconds,
        )
        .reach(Reach::AtMost(0.0015))
        .cells(&more(carved)),
        Row::new("sandbox-none", "  in all: without a policy", Unit::Seconds).cells(plain),
        Row::new("sandbox-allow-all", "  in all: only allows", Unit::Seconds).cells(allowing),
        Row::new(
            "sandbox-carve-all",
            "  in all: workspace, no network",
            Unit::Seconds,
        )
        .cells(carved),
    ]
}

fn start_contender<'a>(
    plan: &'a Plan,
    target: &Target,
    policy: Option<&Value>,
) -> Result<Lane<'a, f64>> {
    let mut client = target.shared().connect()?;
    let mut start = Start::new(&[PROGRAM], Stdio::Pipes);
    if let Some(policy) = policy {
        start = start.with("sandbox", policy);
    }
    for _ in 0..WARM_UP {
        client.run_to_close(&start)?;
    }
    Ok(Lane::new(move |samples| {
        for _ in plan.spawns.laps() {
            samples.push(client.run_to_close(&start)?.as_secs_f64());
        }
        Ok(())
    }))
}

fn measure_reads(
    plan: &Plan,
    targets: &[Target],
    scratch: &Scratch,
    workspace: &str,
) -> Result<Vec<Row>> {
    let file = scratch.path().join("workspace/file");
    fs::write(&file, content_at(0, FILE_BYTES))?;
    let requests = [json!({"path": file_uri(&file)}), {
        json!({"path": file_uri(&file), "sandbox": workspace_read(workspace)})
    }]
    .map(|params| Request::new("fs/readFile", &params));
    let mut lanes = Vec::new();
    for request in &requests {
        lanes.extend(
            targets
                .iter()
                .map(|target| Lane::prepare(read_contender(plan, target, request))),
        );
    }
    interleave(plan.blocks, &mut lanes);
    let cells: Vec<_> = lanes.iter().map(|lane| lane.cell(p50)).collect();
    let (plain, under) = cells.split_at(targets.len());
    let helpers: Vec<_> = targets.iter().map(helper_memory).collect();
    let title = "fs/readFile 4 KiB under a narrow policy, p50";
    let mut rows = vec![
        Row::new("sandbox-read", title, Unit::Seconds)
            .reach(Reach::RatioAtMost(2.0))
            .cells(under),
        Row::new("sandbox-read-plain", "  without a policy", Unit::Seconds).cells(plain),
        Row::new(
            "sandbox-helper",
            "memory of one helper for files",
            Unit::Bytes,
        )
        .reach(Reach::AtMost(f64::from(3 << 20)))
        .cells(&helpers),
    ];
    if let Some(first) = plain.first() {
        // Ours without a policy is what ours with one is compared with.
        rows[0] = rows[0].clone().floor(first);
    }
    Ok(rows)
}

fn read_contender<'a>(
    plan: &'a Plan,
    target: &Target,
    request: &'a Request,
) -> Result<Lane<'a, f64>> {
    let mut client = target.shared().connect()?;
    for _ in 0..WARM_UP {
        let data = client.call(request)?.data("dataBase64", FILE_BYTES)?;
        check_content(0, FILE_BYTES, data)?;
    }
    Ok(Lane::new(move |samples| {
        for _ in plan.files.calls.laps() {
            let began = Instant::now();
            client.call(request)?.data("dataBase64", FILE_BYTES)?;
            samples.push(began.elapsed().as_secs_f64());
        }
        Ok(())
    }))
}

/// How long a helper is looked for.
const HELPER_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns what the largest helper for files uses: its share of what it has in common with others
/// included.
fn helper_memory(target: &Target) -> Cell {
    let found = target
        .shared()
        .pid()
        .context("server process not found on this machine")
        .map(|server| {
            let began = Instant::now();
            loop {
                let most = memory_by_name(server, "exec-server-files").max();
                if most.is_some() || began.elapsed() > HELPER_TIMEOUT {
                    return most;
                }
            }
        });
    match found {
        Ok(Some(bytes)) => Cell::Value(bytes as f64),
        Ok(None) => Cell::Skipped("keeps no helper".to_owned()),
        Err(error) => Cell::Failed(format!("{error:#}")),
    }
}

/// Everything can be read, nothing written, and the network is the host's.
fn read_only() -> Value {
    policy(json!([special("root", "read")]), "enabled", None)
}

/// What the stock client asks for by default: a workspace that can be written, with its `.git`
/// apart, and no network.
fn workspace_write(workspace: &str) -> Value {
    let entries = json!([
        special("root", "read"),
        special("project_roots", "write"),
        {"path": {"type": "special", "value": {"kind": "project_roots", "subpath": ".git"}},
         "access": "read", "missing_path_behavior": "skip"},
    ]);
    policy(entries, "restricted", Some(workspace))
}

/// Only the workspace can be read.
fn workspace_read(workspace: &str) -> Value {
    let entries = json!([{"path": {"type": "path", "path": workspace}, "access": "read"}]);
    policy(entries, "restricted", Some(workspace))
}

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn policy(entries: Value, network: &str, workspace: Option<&str>) -> Value {
    let roots: Vec<&str> = workspace.into_iter().collect();
    json!({
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": entries},
            "network": network,
        },
        "cwd": workspace.unwrap_or("file:///"),
        "workspaceRoots": roots,
        "windowsSandboxLevel": "disabled",
    })
}
