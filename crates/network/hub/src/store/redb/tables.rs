//! What is in the file, and how records are read from it and written to it.

use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table, TableDefinition,
};

use crate::store::{EnvironmentId, Owned, Record, StoreError};

/// Facts about the file itself.
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// Environment id to [`Record`], as JSON.
pub(super) const ENVIRONMENTS: TableDefinition<'_, &str, &[u8]> =
    TableDefinition::new("environments");

/// The table of environments within a write transaction.
pub(super) type Environments<'txn> = Table<'txn, &'static str, &'static [u8]>;

pub(super) fn get(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    environment: &EnvironmentId,
) -> Result<Option<Record>, StoreError> {
    let found = table
        .get(environment.as_str())
        .map_err(StoreError::unavailable)?;
    found
        .map(|value| decode(environment.as_str(), value.value()))
        .transpose()
}

pub(super) fn put(
    table: &mut Environments<'_>,
    environment: &EnvironmentId,
    record: &Record,
) -> Result<(), StoreError> {
    let json = serde_json::to_vec(record).map_err(StoreError::unavailable)?;
    table
        .insert(environment.as_str(), json.as_slice())
        .map_err(StoreError::unavailable)?;
    Ok(())
}

pub(super) fn count(table: &Environments<'_>) -> Result<u64, StoreError> {
    table.len().map_err(StoreError::unavailable)
}

/// Reads one environment outside of any write.
pub(super) fn read(
    database: &Database,
    environment: &EnvironmentId,
) -> Result<Option<Record>, StoreError> {
    let reading = database.begin_read().map_err(StoreError::unavailable)?;
    let table = reading
        .open_table(ENVIRONMENTS)
        .map_err(StoreError::unavailable)?;
    get(&table, environment)
}

/// Reads up to `limit` environments, those after `after`, in order.
pub(super) fn page(
    database: &Database,
    after: Option<&EnvironmentId>,
    limit: usize,
) -> Result<Vec<Owned>, StoreError> {
    use std::ops::Bound::{Excluded, Unbounded};
    let reading = database.begin_read().map_err(StoreError::unavailable)?;
    let table = reading
        .open_table(ENVIRONMENTS)
        .map_err(StoreError::unavailable)?;
    let from = after.map_or(Unbounded, |after| Excluded(after.as_str()));
    let rows = table
        .range::<&str>((from, Unbounded))
        .map_err(StoreError::unavailable)?;
    rows.take(limit)
        .map(|row| {
            let (id, value) = row.map_err(StoreError::unavailable)?;
            let record = decode(id.value(), value.value())?;
            let environment = id.value().parse().map_err(|_| damaged(id.value()))?;
            Ok(Owned {
                environment,
                owner: record.owner,
                current: record.current,
            })
        })
        .collect()
}

fn decode(environment: &str, json: &[u8]) -> Result<Record, StoreError> {
    serde_json::from_slice(json).map_err(|_| damaged(environment))
}

fn damaged(environment: &str) -> StoreError {
    StoreError::Damaged {
        what: format!("environment `{environment}`"),
    }
}
