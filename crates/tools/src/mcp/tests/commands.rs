//! Commands, as an agent calls them.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::stage::Stage;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_pattern_that_would_be_slow_is_refused_and_common_ones_are_not() {
    let stage = Stage::new();
    let wait = |pattern: &str| json!({"cmd": "true", "wait_for": {"pattern": pattern}});
    let slow = wait("(?-u)a[^z]{9000}c");
    let refused = stage.refused("exec_command", slow).await;
    assert!(refused.contains("too large"), "{refused}");
    for pattern in [
        r"(?i)listening on https?://\S+:\d{2,5}",
        r"^\s*\[\w+\]\s+\w+@\w+(\.\w+)+$",
        r"(error|warning|note)(\[E\d{4}\])?: .{1,80}",
        r"\$ $",
        r"(?s)BEGIN.{0,200}END",
    ] {
        stage.told("exec_command", wait(pattern)).await;
    }
}
