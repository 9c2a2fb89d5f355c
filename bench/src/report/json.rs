//! The numbers for machines, in base units.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::{Cell, Reach, Report, Row};
use crate::target::STOCK;

/// Renders the report as JSON.
pub(crate) fn render(report: &Report) -> Value {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    json!({
        "measuredAt": now.as_secs(),
        "quick": report.quick,
        "machine": {
            "cpu": report.machine.cpu,
            "cores": report.machine.cores,
            "memoryBytes": report.machine.memory,
            "kernel": report.machine.kernel,
        },
        "targets": report.targets,
        "rows": report.rows.iter().map(|row| render_row(report, row)).collect::<Vec<_>>(),
    })
}

fn render_row(report: &Report, row: &Row) -> Value {
    let mut values = Map::new();
    for (at, (cell, target)) in row.cells.iter().zip(&report.targets).enumerate() {
        let value = match cell {
            Cell::Value(value) => {
                json!({"value": value, "ratio": row.ratio(at), "reached": row.verdict(at)})
            }
            Cell::Skipped(why) => json!({"skipped": why}),
            Cell::Failed(why) => json!({"failed": why}),
        };
        values.insert(target.clone(), value);
    }
    json!({
        "id": row.id,
        "title": row.title.trim(),
        "unit": row.unit.name(),
        "floor": row.floor_value(),
        "ratioTo": match (&row.floor, row.stock) {
            (Some(_), _) => Some("floor"),
            (None, Some(_)) => Some(STOCK),
            (None, None) => None,
        },
        "reach": row.reach.map(|reach| match reach {
            Reach::RatioAtMost(limit) => json!({"ratioAtMost": limit}),
            Reach::RatioAtLeast(limit) => json!({"ratioAtLeast": limit}),
            Reach::StockAtMost(limit) => json!({"stockRatioAtMost": limit}),
            Reach::StockAtLeast(limit) => json!({"stockRatioAtLeast": limit}),
            Reach::AtMost(limit) => json!({"atMost": limit}),
            Reach::AtLeast(limit) => json!({"atLeast": limit}),
        }),
        "values": values,
    })
}
