/** What goes wrong ends in a typed error, with bounded memory and nothing left running. */

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";

import {
  connect,
  type Environment,
  LimitError,
  program,
  ProtocolError,
  RemoteError,
} from "../src/node.js";
import { startServer, temporaryDirectory, type TestServer } from "./support.js";

let server: TestServer;
let env: Environment;
const directory = temporaryDirectory();

before(async () => {
  server = await startServer();
  env = await connect(server.url);
});

after(async () => {
  await env.close();
  await server.stop();
});

/** A program that offers a session on stdio, answers `test/large` with too much, and has a file. */
const LARGE_ANSWERS = `
const seen = [];
let buffered = "";
const answer = (id, result) => process.stdout.write(JSON.stringify({ id, result }) + "\\n");
const answers = {
  "initialize": () => ({ sessionId: "s" }),
  "environment/info": () => ({ shell: { name: "sh", path: "/bin/sh" } }),
  "fs/getMetadata": () => ({ isFile: true, size: 400 << 20, modifiedAtMs: 1 }),
  "fs/open": ({ handleId }) => ({ handleId }),
  "fs/readBlock": () => ({ chunk: "eHg=", eof: true }),
  "fs/close": () => ({}),
  "test/seen": () => ({ seen }),
};
process.stdin.setEncoding("utf8").on("data", (text) => {
  const lines = (buffered + text).split("\\n");
  buffered = lines.pop();
  for (const { id, method, params } of lines.map(JSON.parse)) {
    seen.push(method);
    if (method === "test/large") {
      process.stdout.write('{"id":' + id + ',"result":{"dataBase64":"');
      const part = Buffer.alloc(1 << 20, "A");
      for (let count = 0; count < 513; count += 1) process.stdout.write(part);
      process.stdout.write('"}}\\n');
    } else if (method in answers) {
      answer(id, answers[method](params));
    }
  }
});
`;

test("answer that does not fit in a string fails its call only", { timeout: 60_000 }, async () => {
  const other = await program([process.execPath, "-e", LARGE_ANSWERS]);
  await assert.rejects(other.request("test/large", {}, { retry: true }), (error) => {
    assert.ok(error instanceof ProtocolError);
    assert.match(error.message, /message of 537\d+ bytes/);
    return true;
  });
  const { seen } = await other.request<{ seen: string[] }>("test/seen");
  assert.deepEqual(seen, ["initialize", "initialized", "environment/info", "test/large", "test/seen"]);
  await other.close();
});

test("large file is read by blocks where it would travel as text", async () => {
  const other = await program([process.execPath, "-e", LARGE_ANSWERS]);
  assert.equal(await other.readFile("/large", "utf8"), "xx");
  const { seen } = await other.request<{ seen: string[] }>("test/seen");
  assert.ok(!seen.includes("fs/readFile"), seen.join(" "));
  await assert.rejects(other.fs.readFile("/large", { followSymlinks: false }), LimitError);
  await other.close();
});

test("blocked writes of stdin do not hold up a signal", { timeout: 20_000 }, async () => {
  const process = await env.spawn(["sleep", "60"]);
  const { stdin } = process;
  assert.ok(stdin);
  // More than the pipe holds, then more writes than the server queues and the client has calls.
  await stdin.write("x".repeat(100_000));
  for (let count = 0; count < 2000; count += 1) {
    await stdin.write("x");
  }
  await process.kill("SIGKILL");
  assert.equal((await process.wait()).signal, "SIGKILL");
});

test("content above the server's message limit is written with every option", { timeout: 60_000 }, async () => {
  const bytes = new Uint8Array(70 << 20);
  bytes.fill(7, 69 << 20);
  const path = join(directory, "a", "b", "large");
  await env.fs.writeFile(path, bytes, { createParents: true, mode: 0o440, followSymlinks: true });
  assert.ok(readFileSync(path).equals(bytes));
  assert.equal(statSync(path).mode & 0o7777, 0o440);
  await assert.rejects(env.fs.writeFile(path, bytes, { followSymlinks: false }), (error) => {
    assert.ok(error instanceof LimitError);
    assert.match(error.message, /`fs\/writeFile` has more than 67108864 bytes/);
    return true;
  });
  assert.equal(env.state, "connected");
});

test("atomic write by blocks keeps the mode and the link, and leaves nothing if it fails", async () => {
  const folder = join(directory, "atomic");
  mkdirSync(folder);
  writeFileSync(join(folder, "tool"), "old", { mode: 0o751 });
  symlinkSync("tool", join(folder, "link"));
  const bytes = new Uint8Array(9 << 20).fill(1);
  await env.fs.writeFile(join(folder, "link"), bytes, { atomic: true });
  assert.ok(readFileSync(join(folder, "tool")).equals(bytes));
  assert.equal(statSync(join(folder, "tool")).mode & 0o7777, 0o751);
  mkdirSync(join(folder, "directory"));
  const failing = env.fs.writeStream(join(folder, "directory"), { atomic: true }).getWriter();
  await failing.write("new");
  await assert.rejects(failing.close(), RemoteError);
  const aborted = env.fs.writeStream(join(folder, "tool"), { atomic: true, mode: 0o600 }).getWriter();
  await aborted.write("new");
  await aborted.abort();
  assert.deepEqual((await readdir(folder)).sort(), ["directory", "link", "tool"]);
  assert.equal(statSync(join(folder, "tool")).size, bytes.length);
});
