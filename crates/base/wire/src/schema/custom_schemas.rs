//! Schemas of the types that have their own decoder.

use std::{borrow::Cow, ops::RangeInclusive};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::{
    base64_bytes::{Base64Bytes, UncheckedBase64},
    environment::{ReadEnvironmentInfo, ReadEnvironmentStatus},
    fs::DirectoryCursor,
    id::{HandleId, WriteId},
    limits,
    message::RequestId,
    path_uri::PathUri,
    process::{ListHistory, ListProcesses},
    server::ReadServerStatus,
    tunnel::TunnelHost,
};

/// Base64 with the standard alphabet and padding, whose unused bits are zero.
const BASE64: &str =
    "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

/// Implements the schema of types as an expression.
macro_rules! schemas {
    ($($name:ident = $schema:expr;)+) => {
        $(impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        })+
    };
}

schemas! {
    Base64Bytes = json_schema!({
        "description": "Bytes as base64: RFC 4648 with the standard alphabet and padding.",
        "type": "string",
        "contentEncoding": "base64",
        "pattern": BASE64,
    });
    DirectoryCursor = json_schema!({
        "description": "Position in a listing by pages. Opaque to clients.",
        "type": "string",
        "contentEncoding": "base64",
        "pattern": BASE64,
        "minLength": 4,
        "maxLength": limits::MAX_NAME_BYTES.div_ceil(3) * 4,
    });
    PathUri = json_schema!({
        "description": "Absolute path as a `file:` URI, without query, fragment, port and \
                        credentials, such as `file:///srv/a%20b`.",
        "type": "string",
        "format": "uri",
        "pattern": "^file:[^?#]*$",
    });
    RequestId = json_schema!({
        "description": "Request id, chosen by the sender.",
        "anyOf": [{ "type": "string" }, { "type": "integer", "format": "int64" }],
    });
    WriteId = text(
        "Id that the client chose for one write, which makes retries idempotent.",
        1..=limits::MAX_WRITE_ID_BYTES,
    );
    HandleId = text(
        "File handle id that the client chose in `fs/open`.",
        0..=limits::MAX_HANDLE_ID_BYTES,
    );
    TunnelHost = {
        let mut schema = text(
            "Host name or address, without spaces and control characters.",
            1..=TunnelHost::MAX_BYTES,
        );
        schema.insert("pattern".to_owned(), json!(r"^[^\s\u0000-\u001F\u007F-\u009F]+$"));
        schema
    };
    ReadEnvironmentInfo = parameterless("`environment/info`: describes the host.", true);
    ReadEnvironmentStatus = parameterless(
        "`environment/status`: checks that the connection is alive and ready.",
        true,
    );
    ReadServerStatus = parameterless("`server/status`: describes the server process.", false);
    ListHistory = parameterless("`history/list`: lists recorded processes, oldest first.", false);
    ListProcesses = {
        let mut schema = parameterless(
            "`process/list`: lists the session's processes and the detached ones.",
            false,
        );
        let all = json!({
            "description": "Includes processes of other sessions that the client may attach to.",
            "type": "boolean",
            "default": false,
        });
        schema.insert("properties".to_owned(), json!({ "all": all }));
        schema
    };
}

impl JsonSchema for UncheckedBase64 {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Base64Bytes::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Base64Bytes>()
    }
}

/// Parameters that may be absent, `null` or an object, which must be empty if `is_strict`.
fn parameterless(description: &str, is_strict: bool) -> Schema {
    let mut schema = json_schema!({ "description": description, "type": ["object", "null"] });
    if is_strict {
        schema.insert("maxProperties".to_owned(), json!(0));
    }
    schema
}

/// Text of limited length. Schemas count characters and the protocol bytes of UTF-8, so the schema
/// of text that is not ASCII allows more than a server does.
pub(crate) fn text(description: &str, bytes: RangeInclusive<usize>) -> Schema {
    let description = format!(
        "{} At most {} bytes of UTF-8.",
        description.trim(),
        bytes.end()
    );
    let mut schema = json_schema!({
        "description": description,
        "type": "string",
        "maxLength": bytes.end(),
    });
    if *bytes.start() > 0 {
        schema.insert("minLength".to_owned(), json!(bytes.start()));
    }
    schema
}

/// Allows any text for the variant that stands for values of newer peers.
pub(crate) fn open_enum(schema: &mut Schema) {
    let Some(Value::Array(mut variants)) = schema.remove("oneOf") else {
        return;
    };
    variants.retain(|variant| variant["const"] != "unknown");
    variants.push(json!({ "description": "Value of a newer peer.", "type": "string" }));
    schema.insert("anyOf".to_owned(), Value::Array(variants));
}
