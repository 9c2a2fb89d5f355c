//! Cost of a sandbox policy: starting a process and reading a file under one.
//!
//! Each target is compared with itself: the same operation without a policy is measured in
//! alternating turns.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::bench_dir::{BenchDir, check_content, content_at, file_uri};
use crate::bench_plan::BenchPlan;
use crate::bench_target::BenchTarget;
use crate::contender::{Contender, interleave, p50};
use crate::measures::difference;
use crate::measures::process_start::PROGRAM;
use crate::process_usage::memory_by_name;
use crate::report::{ReportCell, ReportRow, RowGoal, ValueUnit};
use crate::rpc_client::{PreparedRequest, PreparedStart, StdioMode};

/// Unmeasured runs of each contender.
const WARM_UP: usize = 5;
/// Bytes of the file that is read.
const FILE_BYTES: usize = 4096;

/// Measures the cost of policies.
pub(crate) fn measure_sandbox(plan: &BenchPlan, targets: &[BenchTarget]) -> Vec<ReportRow> {
    let rows = BenchDir::new().and_then(|dir| {
        let workspace = dir.directory("workspace")?;
        fs::create_dir(workspace.join(".git"))?;
        let workspace = file_uri(&workspace);
        Ok([
            measure_starts(plan, targets, &workspace),
            measure_reads(plan, targets, &dir, &workspace)?,
        ]
        .concat())
    });
    rows.unwrap_or_else(|error| {
        let cells = vec![ReportCell::from_error(&error); targets.len()];
        vec![ReportRow::new("sandbox", "under a policy", ValueUnit::Seconds).cells(&cells)]
    })
}

fn measure_starts(plan: &BenchPlan, targets: &[BenchTarget], workspace: &str) -> Vec<ReportRow> {
    let policies = [None, Some(read_only()), Some(workspace_write(workspace))];
    let mut contenders = Vec::new();
    for policy in &policies {
        contenders.extend(
            targets.iter().map(|target| {
                Contender::from_result(start_contender(plan, target, policy.as_ref()))
            }),
        );
    }
    interleave(plan.blocks, &mut contenders);
    let cells: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let (plain, sandboxed) = cells.split_at(targets.len());
    let (allowed, workspace_write) = sandboxed.split_at(targets.len());
    let overhead = |sandboxed: &[ReportCell]| {
        sandboxed
            .iter()
            .zip(plain)
            .map(difference)
            .collect::<Vec<_>>()
    };
    vec![
        ReportRow::new(
            "sandbox-allow",
            "start under a policy that only allows: more",
            ValueUnit::Seconds,
        )
        .goal(RowGoal::AtMost(0.0003))
        .cells(&overhead(allowed)),
        ReportRow::new(
            "sandbox-carve",
            "start in a workspace, no network: more",
            ValueUnit::Seconds,
        )
        .goal(RowGoal::AtMost(0.0015))
        .cells(&overhead(workspace_write)),
        ReportRow::new(
            "sandbox-none",
            "  in all: without a policy",
            ValueUnit::Seconds,
        )
        .cells(plain),
        ReportRow::new(
            "sandbox-allow-all",
            "  in all: only allows",
            ValueUnit::Seconds,
        )
        .cells(allowed),
        ReportRow::new(
            "sandbox-carve-all",
            "  in all: workspace, no network",
            ValueUnit::Seconds,
        )
        .cells(workspace_write),
    ]
}

fn start_contender<'a>(
    plan: &'a BenchPlan,
    target: &BenchTarget,
    policy: Option<&Value>,
) -> Result<Contender<'a, f64>> {
    let mut client = target.shared_instance().connect()?;
    let mut start = PreparedStart::new(&[PROGRAM], StdioMode::Pipes);
    if let Some(policy) = policy {
        start = start.with_member("sandbox", policy);
    }
    for _ in 0..WARM_UP {
        client.run_to_close(&start)?;
    }
    Ok(Contender::new(move |samples| {
        for _ in plan.spawns.iterations() {
            samples.push(client.run_to_close(&start)?.as_secs_f64());
        }
        Ok(())
    }))
}

fn measure_reads(
    plan: &BenchPlan,
    targets: &[BenchTarget],
    dir: &BenchDir,
    workspace: &str,
) -> Result<Vec<ReportRow>> {
    let file = dir.path().join("workspace/file");
    fs::write(&file, content_at(0, FILE_BYTES))?;
    let requests = [json!({"path": file_uri(&file)}), {
        json!({"path": file_uri(&file), "sandbox": workspace_read(workspace)})
    }]
    .map(|params| PreparedRequest::new("fs/readFile", &params));
    let mut contenders = Vec::new();
    for request in &requests {
        contenders.extend(
            targets
                .iter()
                .map(|target| Contender::from_result(read_contender(plan, target, request))),
        );
    }
    interleave(plan.blocks, &mut contenders);
    let cells: Vec<_> = contenders
        .iter()
        .map(|contender| contender.cell(p50))
        .collect();
    let (plain, sandboxed) = cells.split_at(targets.len());
    let helpers: Vec<_> = targets.iter().map(helper_memory).collect();
    let title = "fs/readFile 4 KiB under a narrow policy, p50";
    let mut rows = vec![
        ReportRow::new("sandbox-read", title, ValueUnit::Seconds)
            .goal(RowGoal::RatioAtMost(2.0))
            .cells(sandboxed),
        ReportRow::new(
            "sandbox-read-plain",
            "  without a policy",
            ValueUnit::Seconds,
        )
        .cells(plain),
        ReportRow::new(
            "sandbox-helper",
            "memory of one helper for files",
            ValueUnit::Bytes,
        )
        .goal(RowGoal::AtMost(f64::from(3 << 20)))
        .cells(&helpers),
    ];
    if let Some(first) = plain.first() {
        // The first target without a policy is the floor of the row.
        rows[0] = rows[0].clone().floor(first);
    }
    Ok(rows)
}

fn read_contender<'a>(
    plan: &'a BenchPlan,
    target: &BenchTarget,
    request: &'a PreparedRequest,
) -> Result<Contender<'a, f64>> {
    let mut client = target.shared_instance().connect()?;
    for _ in 0..WARM_UP {
        let data = client.call(request)?.data("dataBase64", FILE_BYTES)?;
        check_content(0, FILE_BYTES, data)?;
    }
    Ok(Contender::new(move |samples| {
        for _ in plan.files.calls.iterations() {
            let started_at = Instant::now();
            client.call(request)?.data("dataBase64", FILE_BYTES)?;
            samples.push(started_at.elapsed().as_secs_f64());
        }
        Ok(())
    }))
}

/// Longest search for a helper.
const HELPER_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the proportional memory of the largest fs worker.
fn helper_memory(target: &BenchTarget) -> ReportCell {
    let found = target
        .shared_instance()
        .pid()
        .context("server process not found on this machine")
        .map(|server| {
            let started_at = Instant::now();
            loop {
                let largest = memory_by_name(server, "exec-server-files").max();
                if largest.is_some() || started_at.elapsed() > HELPER_TIMEOUT {
                    return largest;
                }
            }
        });
    match found {
        Ok(Some(bytes)) => ReportCell::Value(bytes as f64),
        Ok(None) => ReportCell::Skipped("no helper is running".to_owned()),
        Err(error) => ReportCell::Failed(format!("{error:#}")),
    }
}

/// Returns a policy that allows reading everything, no writes, and the host's network.
fn read_only() -> Value {
    policy(json!([special("root", "read")]), "enabled", None)
}

/// Returns the stock client's default policy: a writable workspace with a read-only `.git`, and no
/// network.
fn workspace_write(workspace: &str) -> Value {
    let entries = json!([
        special("root", "read"),
        special("project_roots", "write"),
        {"path": {"type": "special", "value": {"kind": "project_roots", "subpath": ".git"}},
         "access": "read", "missing_path_behavior": "skip"},
    ]);
    policy(entries, "restricted", Some(workspace))
}

/// Returns a policy that allows only reading the workspace.
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
