//! How many environments each principal owns. Changed in one transaction with the environments, so
//! that nothing has to be counted when somebody comes.

use redb::{ReadableTable as _, Table, TableDefinition};

use crate::{principal::PrincipalName, store::StoreError};

/// Principal to the number of its environments. Those without any are not in it.
pub(super) const OWNED: TableDefinition<'_, &str, u64> = TableDefinition::new("owned");

/// The table within a write transaction.
pub(super) type Counts<'txn> = Table<'txn, &'static str, u64>;

pub(super) fn count(table: &Counts<'_>, principal: &PrincipalName) -> Result<u64, StoreError> {
    let found = table.get(principal.as_str());
    let found = found.map_err(StoreError::unavailable)?;
    Ok(found.map_or(0, |count| count.value()))
}

pub(super) fn add(table: &mut Counts<'_>, principal: &PrincipalName) -> Result<(), StoreError> {
    let count = count(table, principal)?.saturating_add(1);
    let added = table.insert(principal.as_str(), count);
    added.map_err(StoreError::unavailable)?;
    Ok(())
}

pub(super) fn subtract(
    table: &mut Counts<'_>,
    principal: &PrincipalName,
) -> Result<(), StoreError> {
    let left = count(table, principal)?.saturating_sub(1);
    if left == 0 {
        table.remove(principal.as_str())
    } else {
        table.insert(principal.as_str(), left)
    }
    .map_err(StoreError::unavailable)?;
    Ok(())
}
