// Writes src/wire.ts: the types of the protocol, from docs/schema/exec-server.schema.json. With
// --check it fails if the file is out of date.

import { readFileSync, writeFileSync } from "node:fs";

const schema = JSON.parse(
  readFileSync(new URL("../../../docs/schema/exec-server.schema.json", import.meta.url), "utf8"),
);
const target = new URL("../src/wire.ts", import.meta.url);

/** Definitions of whole messages, which the client decodes itself. */
const OMITTED = new Set(["ClientMessage", "ServerMessage", "Response", "ErrorResponse"]);
const SCALARS = {
  string: "string",
  integer: "number",
  number: "number",
  boolean: "boolean",
  null: "null",
};

function comment(description, indent) {
  if (description === undefined) {
    return "";
  }
  const width = 100 - indent.length - 3;
  const lines = [""];
  for (const word of description.replaceAll("*/", "* /").split(/\s+/)) {
    const line = lines.at(-1);
    if (line !== "" && line.length + word.length + 1 > width) {
      lines.push(word);
    } else {
      lines[lines.length - 1] = line === "" ? word : `${line} ${word}`;
    }
  }
  if (lines.length === 1 && lines[0].length <= width - 4) {
    return `${indent}/** ${lines[0]} */\n`;
  }
  return `${indent}/**\n${lines.map((line) => `${indent} * ${line}\n`).join("")}${indent} */\n`;
}

function type(node, indent) {
  if (node === true || node === undefined || Object.keys(node).length === 0) {
    return "unknown";
  }
  if (node.$ref !== undefined) {
    return node.$ref.split("/").at(-1);
  }
  if (node.const !== undefined) {
    return JSON.stringify(node.const);
  }
  if (node.enum !== undefined) {
    return node.enum.map((value) => JSON.stringify(value)).join(" | ");
  }
  const choices = node.oneOf ?? node.anyOf;
  if (choices !== undefined) {
    const isOpen = choices.some((choice) => choice.const !== undefined);
    const types = choices.map((choice) => {
      const text = type(choice, indent);
      // Keeps the known values visible to editors.
      return isOpen && text === "string" ? "(string & {})" : text;
    });
    return [...new Set(types)].join(" | ");
  }
  if (Array.isArray(node.type)) {
    return node.type.map((name) => type({ ...node, type: name }, indent)).join(" | ");
  }
  switch (node.type) {
    case "array": {
      const item = type(node.items, indent);
      return /[ |]/.test(item) ? `Array<${item}>` : `${item}[]`;
    }
    case "object":
      if (node.properties !== undefined) {
        return `{\n${members(node, `${indent}  `)}${indent}}`;
      }
      if (typeof node.additionalProperties === "object") {
        return `Record<string, ${type(node.additionalProperties, indent)}>`;
      }
      return node.maxProperties === 0 ? "Record<string, never>" : "Record<string, unknown>";
    default:
      return SCALARS[node.type] ?? "unknown";
  }
}

function members(node, indent) {
  const required = new Set(node.required ?? []);
  return Object.entries(node.properties)
    .map(([name, member]) => {
      const mark = required.has(name) ? "" : "?";
      const text = `${indent}${name}${mark}: ${type(member, indent)};\n`;
      return comment(member.description, indent) + text;
    })
    .join("");
}

function definition([name, node]) {
  const isInterface = node.type === "object" && node.properties !== undefined && !node.oneOf;
  const body = isInterface
    ? `export interface ${name} {\n${members(node, "  ")}}\n`
    : `export type ${name} = ${type(node, "")};\n`;
  return comment(node.description, "") + body;
}

function methodMap(name, description, entries, parts) {
  const rows = Object.entries(entries).map(([method, node]) => {
    const fields = parts.map((part) => `${part}: ${type(node[part], "  ")}`).join("; ");
    return `${comment(node.summary, "  ")}  "${method}": { ${fields} };\n`;
  });
  return `/** ${description} */\nexport interface ${name} {\n${rows.join("")}}\n`;
}

const definitions = Object.entries(schema.$defs).filter(([name]) => !OMITTED.has(name));
const text = [
  "/**\n * Types of the protocol. Generated from docs/schema by scripts/generate-types.mjs.\n *\n * @module\n */\n",
  ...definitions.map(definition),
  methodMap("Requests", "Parameters and result of each method.", schema["x-requests"], [
    "params",
    "result",
  ]),
  methodMap("Notifications", "Parameters of each notification.", schema["x-notifications"], [
    "params",
  ]),
].join("\n");

if (process.argv.includes("--check")) {
  if (readFileSync(target, "utf8") !== text) {
    console.error("src/wire.ts is out of date: run `npm run generate` in sdk/typescript");
    process.exit(1);
  }
} else {
  writeFileSync(target, text);
}
