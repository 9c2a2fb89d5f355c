//! The two documents, as text.

use schemars::{Schema, generate::SchemaSettings};
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value, json};

use crate::{
    error::{ErrorCode, RpcError},
    message::{RequestId, TraceContext},
    method::{
        MessageSender, MethodName, NETWORK_POLICY_REQUEST, notification, notification_schemas,
    },
    network::{PolicyRequest, PolicyResponse},
};

const DESCRIPTION: &str = "JSON-RPC 2.0 without the `jsonrpc` member. Parameters are objects, and \
    unknown members are ignored. A member that carries bytes is absent where these are sent raw \
    (extension `binaryData`). PROTOCOL.md is normative.";

/// Returns the JSON Schema of all messages, as text.
///
/// The root accepts every message of either end. `x-requests` and `x-notifications` map names to
/// the definitions of parameters and results.
pub fn json_schema() -> String {
    let mut protocol = ProtocolSchemas::generate();
    let entries = |has_result: bool| -> Map<String, Value> {
        let calls = protocol.calls.iter();
        calls
            .filter(|call| call.result.is_some() == has_result)
            .map(|call| (call.name.to_owned(), call.entry()))
            .collect()
    };
    let (requests, notifications) = (entries(true), entries(false));
    for (name, end, other) in [
        ("ClientMessage", "client", MessageSender::Server),
        ("ServerMessage", "server", MessageSender::Client),
    ] {
        let calls = protocol.calls.iter().filter(|call| call.sender != other);
        let mut messages: Vec<Value> = calls
            .map(|call| call.message(&protocol.definitions))
            .collect();
        messages.push(json!({ "$ref": "#/$defs/Response" }));
        messages.push(json!({ "$ref": "#/$defs/ErrorResponse" }));
        let message = json!({
            "description": format!("Message that a {end} sends."),
            "anyOf": messages,
        });
        protocol.definitions.insert(name.to_owned(), message);
    }
    pretty(&json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Messages of the exec-server protocol",
        "description": DESCRIPTION,
        "anyOf": [{ "$ref": "#/$defs/ClientMessage" }, { "$ref": "#/$defs/ServerMessage" }],
        "x-requests": requests,
        "x-notifications": notifications,
        "$defs": protocol.definitions,
    }))
}

/// Returns the OpenRPC document, as text. `version` is that of the program.
pub fn openrpc(version: &str) -> String {
    let ProtocolSchemas {
        calls,
        mut definitions,
    } = ProtocolSchemas::generate();
    let methods: Vec<Value> = calls
        .iter()
        .map(|call| call.openrpc_method(&definitions))
        .collect();
    remove_unused(&mut definitions, &methods);
    let mut document = json!({
        "openrpc": "1.3.2",
        "info": {
            "title": "exec-server",
            "version": version,
            "description": DESCRIPTION,
            "license": { "name": "Apache-2.0" },
        },
        "methods": methods,
        "components": { "schemas": definitions, "errors": errors() },
    });
    adapt_to_openrpc(&mut document);
    pretty(&document)
}

/// Request or notification.
struct CallSchemas {
    name: &'static str,
    summary: &'static str,
    sender: MessageSender,
    params: Schema,
    /// Absent for a notification.
    result: Option<Schema>,
    /// Absent for a notification, and for a request that the server sends.
    method: Option<MethodName>,
}

impl CallSchemas {
    /// Returns the schema of the whole message.
    fn message(&self, definitions: &Map<String, Value>) -> Value {
        let mut properties = Map::new();
        let mut required = vec!["method"];
        properties.insert("method".to_owned(), json!({ "const": self.name }));
        properties.insert("params".to_owned(), json!(self.params));
        // Only parameters that may be null may be absent.
        let params = resolve(&self.params, definitions);
        if params.is_object() && !is_nullable(params) {
            required.push("params");
        }
        if self.result.is_some() {
            let trace =
                json!({ "anyOf": [{ "$ref": "#/$defs/TraceContext" }, { "type": "null" }] });
            properties.insert("id".to_owned(), json!({ "$ref": "#/$defs/RequestId" }));
            properties.insert("trace".to_owned(), trace);
            required.push("id");
        }
        let mut message =
            json!({ "type": "object", "properties": properties, "required": required });
        if self.result.is_none() {
            // With an id it would be a request.
            message["not"] = json!({ "required": ["id"] });
        }
        message
    }

    /// Returns the entry in `x-requests` or `x-notifications`.
    fn entry(&self) -> Value {
        // `initialized` takes anything.
        let params = self.params.as_object().cloned().unwrap_or_default();
        let mut entry = json!({
            "summary": self.summary,
            "sender": sender_name(self.sender),
            "params": params,
        });
        if let Some(result) = &self.result {
            entry["result"] = json!(result);
        }
        if let Some(method) = self.method {
            entry["family"] = json!(method.family());
            entry["ordering"] = json!(method.ordering().as_str());
        }
        entry
    }

    fn openrpc_method(&self, definitions: &Map<String, Value>) -> Value {
        let params = resolve(&self.params, definitions);
        let required = params["required"].as_array();
        let is_required = |name: &str| required.is_some_and(|names| names.contains(&json!(name)));
        let parameter = |(name, schema): (&String, &Value)| {
            let mut parameter =
                json!({ "name": name, "required": is_required(name), "schema": schema });
            if let Some(description) = schema.get("description") {
                parameter["description"] = description.clone();
            }
            parameter
        };
        let properties = params["properties"].as_object();
        let mut parameters: Vec<Value> = properties.into_iter().flatten().map(parameter).collect();
        parameters.sort_by_key(|parameter| parameter["required"] == false);
        let mut method = json!({
            "name": self.name,
            "summary": self.summary,
            "x-sender": sender_name(self.sender),
            "paramStructure": "by-name",
            "params": parameters,
        });
        if let Some(result) = &self.result {
            method["result"] = json!({ "name": "result", "schema": result });
        }
        if let Some(family) = self.method.map(MethodName::family) {
            method["tags"] = json!([{ "name": family }]);
        }
        method
    }
}

/// All requests and notifications, and the definitions that they refer to.
struct ProtocolSchemas {
    calls: Vec<CallSchemas>,
    definitions: Map<String, Value>,
}

impl ProtocolSchemas {
    fn generate() -> Self {
        let mut generator = SchemaSettings::draft2020_12().into_generator();
        let mut calls = Vec::new();
        for &method in MethodName::ALL {
            let (params, result) = method.schemas(&mut generator);
            calls.push(CallSchemas {
                name: method.as_str(),
                summary: method.summary(),
                sender: MessageSender::Client,
                params,
                result: Some(result),
                method: Some(method),
            });
        }
        calls.push(CallSchemas {
            name: NETWORK_POLICY_REQUEST,
            summary: "asks whether a process may connect to a host",
            sender: MessageSender::Server,
            params: generator.subschema_for::<PolicyRequest>(),
            result: Some(generator.subschema_for::<PolicyResponse>()),
            method: None,
        });
        let params = notification_schemas(&mut generator);
        for (entry, params) in notification::ALL.iter().zip(params) {
            calls.push(CallSchemas {
                name: entry.name,
                summary: entry.summary,
                sender: entry.sender,
                params,
                result: None,
                method: None,
            });
        }
        generator.subschema_for::<RequestId>();
        generator.subschema_for::<TraceContext>();
        generator.subschema_for::<RpcError>();
        let mut definitions = generator.take_definitions(true);
        definitions.values_mut().for_each(refine);
        insert_responses(&mut definitions);
        Self { calls, definitions }
    }
}

/// Adds the two kinds of response.
fn insert_responses(definitions: &mut Map<String, Value>) {
    let response = |description: &str, member: &str, schema: Value| {
        json!({
            "description": description,
            "type": "object",
            "properties": { "id": { "$ref": "#/$defs/RequestId" }, member: schema },
            "required": ["id", member],
            "not": { "required": ["method"] },
        })
    };
    let result = response(
        "Response with the result of a request.",
        "result",
        json!({}),
    );
    let error = response(
        "Response with an error. Its id is -1 if it belongs to no request.",
        "error",
        json!({ "$ref": "#/$defs/RpcError" }),
    );
    definitions.insert("Response".to_owned(), result);
    definitions.insert("ErrorResponse".to_owned(), error);
}

const fn sender_name(sender: MessageSender) -> &'static str {
    match sender {
        MessageSender::Client => "client",
        MessageSender::Server => "server",
        MessageSender::Both => "both",
    }
}

/// Returns the definition that the schema refers to, or the schema.
fn resolve<'a>(schema: &'a Schema, definitions: &'a Map<String, Value>) -> &'a Value {
    let name = schema.get("$ref").and_then(Value::as_str);
    name.and_then(|name| definitions.get(name.strip_prefix("#/$defs/")?))
        .unwrap_or(schema.as_value())
}

fn is_nullable(schema: &Value) -> bool {
    let types = schema["type"].as_array();
    types.is_some_and(|types| types.contains(&json!("null")))
}

/// Adds the range of numbers and turns descriptions into plain text, in a schema and all schemas
/// within it.
fn refine(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(refine),
        Value::Object(members) => {
            if let Some(Value::String(description)) = members.get_mut("description") {
                *description = plain_text(description);
            }
            let format = members.get("format").and_then(Value::as_str);
            let range = match format {
                Some("int32") => Some(("int32", json!(i32::MIN), json!(i32::MAX))),
                Some("int64") => Some(("int64", json!(i64::MIN), json!(i64::MAX))),
                Some("uint32") => Some(("uint32", json!(0), json!(u32::MAX))),
                Some("uint" | "uint64") => Some(("uint64", json!(0), json!(u64::MAX))),
                _ => None,
            };
            if let Some((format, minimum, maximum)) = range {
                members.insert("format".to_owned(), json!(format));
                members.entry("minimum").or_insert(minimum);
                members.entry("maximum").or_insert(maximum);
            }
            members.values_mut().for_each(refine);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Joins wrapped lines, and removes the targets of links to code.
fn plain_text(description: &str) -> String {
    let mut text = String::new();
    for paragraph in description.split("\n\n") {
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(&paragraph.replace('\n', " "));
    }
    while let Some(start) = text.find("[`") {
        let Some(length) = text[start..].find("`]") else {
            break;
        };
        let end = start + length + 2;
        let target = text[end..]
            .strip_prefix('(')
            .and_then(|rest| rest.find(')'))
            .map_or(0, |close| close + 2);
        let code = text[start + 1..end - 1].to_owned();
        text.replace_range(start..end + target, &code);
    }
    text
}

/// Removes definitions that neither a method nor another definition refers to.
fn remove_unused(definitions: &mut Map<String, Value>, methods: &[Value]) {
    let mut used = Vec::new();
    methods
        .iter()
        .for_each(|method| collect_references(method, &mut used));
    let mut next = 0;
    while let Some(name) = used.get(next).cloned() {
        next += 1;
        if let Some(definition) = definitions.get(&name) {
            collect_references(definition, &mut used);
        }
    }
    definitions.retain(|name, _| used.contains(name));
}

fn collect_references(schema: &Value, names: &mut Vec<String>) {
    match schema {
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect_references(item, names)),
        Value::Object(members) => {
            let reference = members.get("$ref").and_then(Value::as_str);
            if let Some(name) = reference.and_then(|name| name.strip_prefix("#/$defs/"))
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
            members
                .values()
                .for_each(|member| collect_references(member, names));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Changes references to `components`, and wraps those with siblings in `allOf`: OpenRPC uses draft
/// 7 of JSON Schema, which ignores the siblings of `$ref`.
fn adapt_to_openrpc(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(adapt_to_openrpc),
        Value::Object(members) => {
            if let Some(Value::String(name)) = members.remove("$ref") {
                let name = name.replace("#/$defs/", "#/components/schemas/");
                let reference = json!({ "$ref": name });
                if members.is_empty() {
                    *schema = reference;
                    return;
                }
                members.insert("allOf".to_owned(), json!([reference]));
                return;
            }
            members.values_mut().for_each(adapt_to_openrpc);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the errors of all methods.
fn errors() -> Value {
    let error = |code: ErrorCode, message: &str| json!({ "code": code, "message": message });
    json!({
        "InvalidRequest": error(
            ErrorCode::INVALID_REQUEST,
            "malformed message, lifecycle violation, unknown process, duplicate id, refused path",
        ),
        "MethodNotFound": error(ErrorCode::METHOD_NOT_FOUND, "unknown method"),
        "InvalidParams": error(
            ErrorCode::INVALID_PARAMS,
            "the parameters do not decode or are out of range",
        ),
        "Internal": error(ErrorCode::INTERNAL, "host failure: spawn or I/O error"),
        "NotFound": error(ErrorCode::NOT_FOUND, "a path or handle does not exist"),
        "SessionAttached": error(
            ErrorCode::SESSION_ATTACHED,
            "the session to resume has a live connection",
        ),
    })
}

/// Encodes a document. Names and descriptions come first in each object; the order does not depend
/// on the features of `serde_json`.
fn pretty(document: &Value) -> String {
    let mut text = serde_json::to_string_pretty(&OrderedValue(document)).unwrap_or_default();
    text.push('\n');
    text
}

/// Value whose members are encoded in a fixed order.
struct OrderedValue<'a>(&'a Value);

const FIRST_MEMBERS: &[&str] = &[
    "$schema",
    "openrpc",
    "info",
    "title",
    "name",
    "version",
    "summary",
    "description",
    "code",
    "message",
    "required",
    "type",
    "const",
    "format",
];

impl Serialize for OrderedValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => serializer.collect_seq(items.iter().map(OrderedValue)),
            Value::Object(members) => {
                let rank = |name: &str| {
                    let position = FIRST_MEMBERS.iter().position(|first| *first == name);
                    position.unwrap_or(FIRST_MEMBERS.len())
                };
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by_key(|(name, _)| (rank(name), *name));
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members {
                    map.serialize_entry(name, &OrderedValue(value))?;
                }
                map.end()
            }
            value @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                value.serialize(serializer)
            }
        }
    }
}
