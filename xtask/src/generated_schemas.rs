//! Schemas of the protocol that are generated from `exec-wire`: `cargo xtask docs`.

use exec_wire::schema;

/// Returns path and text of each schema.
pub(crate) fn all() -> [(&'static str, String); 2] {
    [
        ("docs/schema/exec-server.schema.json", schema::json_schema()),
        (
            "docs/schema/openrpc.json",
            schema::openrpc(env!("CARGO_PKG_VERSION")),
        ),
    ]
}
