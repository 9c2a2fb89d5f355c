/** What goes wrong ends in a typed error, with bounded memory and nothing left running. */

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import {
  mkdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";

import {
  connect,
  Environment,
  EnvironmentFiles,
  InterruptedError,
  LimitError,
  program,
  ProtocolError,
  RemoteError,
} from "../src/node.js";
import {
  CuttingProxy,
  SERVER,
  startServer,
  temporaryDirectory,
  type TestServer,
  until,
  untilNothingRuns,
} from "./support.js";

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
  await env.fs.writeFile(path, bytes, { createParents: true, mode: 0o4440, followSymlinks: true });
  assert.ok(readFileSync(path).equals(bytes));
  assert.equal(statSync(path).mode & 0o7777, 0o4440);
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

test("large files travel both ways over stdio", { timeout: 60_000 }, async () => {
  const other = await program([SERVER, "--listen", "stdio"]);
  const path = join(directory, "over-stdio");
  const bytes = Buffer.alloc(48 << 20);
  for (let offset = 0; offset < bytes.length; offset += 4096) {
    bytes.writeUInt32LE(offset, offset);
  }
  await other.writeFile(path, bytes);
  assert.ok(readFileSync(path).equals(bytes));
  assert.ok(bytes.equals(await other.readFile(path)));
  await other.close();
});

test("streamed file of 256 MiB needs bounded memory both ways", { timeout: 60_000 }, async () => {
  const path = join(directory, "huge");
  const size = 256 << 20;
  writeFileSync(path, "");
  truncateSync(path, size);
  let most = 0;
  const measure = (): void => {
    most = Math.max(most, process.memoryUsage().arrayBuffers);
  };
  const before = process.memoryUsage().arrayBuffers;
  let read = 0;
  for await (const chunk of env.fs.readStream(path)) {
    read += chunk.byteLength;
    measure();
  }
  assert.equal(read, size);
  const writer = env.fs.writeStream(path).getWriter();
  const block = new Uint8Array(4 << 20);
  for (let written = 0; written < size / 2; written += block.byteLength) {
    await writer.write(block);
    measure();
  }
  await writer.close();
  assert.equal(statSync(path).size, size / 2);
  assert.ok(most - before < 96 << 20, `${most - before} bytes were kept`);
});

test("1000 live processes at once are served and ended", { timeout: 60_000 }, async () => {
  const indices = Array.from({ length: 1000 }, (_, index) => index);
  const processes = await Promise.all(indices.map(() => env.spawn(["cat"])));
  const running = (await env.processes()).filter((entry) => entry.running);
  assert.equal(running.length, 1000);
  await Promise.all(
    processes.map(async (cat, index) => {
      await cat.stdin?.write(`${index}\n`);
      const { value } = await cat.stdout.getReader().read();
      assert.equal(Buffer.from(value ?? []).toString(), `${index}\n`);
      await cat.stdin?.end();
      assert.equal((await cat.wait()).exitCode, 0);
    }),
  );
  await untilNothingRuns(env);
});

/** Calls by the names of their methods; several of one method have a number. */
type Call = (env: Environment, path: string, signal?: AbortSignal) => Promise<unknown>;

const CALLS: Record<string, Call> = {
  run: (env, _, signal) => env.run(["sleep", "0.05"], aborted(signal)),
  run2: (env, _, signal) => env.run(["cat"], { input: "x".repeat(300_000), ...aborted(signal) }),
  spawn: (env, _, signal) => env.spawn(["true"], aborted(signal)),
  spawn2: (env, _, signal) => env.spawn(["sleep", "60"], { stdin: "ignore", ...aborted(signal) }),
  spawn3: (env) => env.spawn(["true"], { detached: true }),
  attach: (env, _, signal) => env.attach("no such process", aborted(signal)),
  processes: (env) => env.processes(),
  history: (env) => env.history(),
  purgeHistory: (env) => env.purgeHistory(),
  ports: (env) => env.ports(),
  listen: async (env) => (await env.listen({ port: 0 })).close(),
  openTunnel: async (env, _, signal) => {
    const tunnel = await env.openTunnel({ port: Number(new URL(server.url).port), ...aborted(signal) });
    tunnel.close();
  },
  request: (env, _, signal) => env.request("environment/status", {}, aborted(signal)),
  readFile: (env, path, signal) => env.fs.readFile(join(path, "big"), aborted(signal)),
  writeFile: (env, path, signal) => env.fs.writeFile(join(path, "a"), "x", aborted(signal)),
  writeFile2: (env, path, signal) =>
    env.fs.writeFile(join(path, "b"), BLOCKS, { atomic: true, mode: 0o600, ...aborted(signal) }),
  readStream: async (env, path, signal) => {
    for await (const _ of env.fs.readStream(join(path, "big"), aborted(signal))) {
      // to its end
    }
  },
  writeStream: async (env, path, signal) => {
    const writer = env.fs.writeStream(join(path, "c"), aborted(signal)).getWriter();
    await writer.write(BLOCKS);
    await writer.close();
  },
  stat: (env, path, signal) => env.fs.stat(path, aborted(signal)),
  exists: (env, path, signal) => env.fs.exists(path, aborted(signal)),
  setMetadata: (env, path, signal) =>
    env.fs.setMetadata(join(path, "big"), { mode: 0o644 }, aborted(signal)),
  realpath: (env, path, signal) => env.fs.realpath(path, aborted(signal)),
  mkdir: (env, path, signal) => env.fs.mkdir(join(path, "d"), aborted(signal)),
  rm: (env, path, signal) => env.fs.rm(join(path, "none"), { force: true, ...aborted(signal) }),
  cp: (env, path, signal) => env.fs.cp(join(path, "big"), join(path, "copy"), aborted(signal)),
  rename: (env, path, signal) => env.fs.rename(join(path, "none"), join(path, "x"), aborted(signal)),
  symlink: (env, path, signal) =>
    env.fs.symlink("big", join(path, "link"), { overwrite: true, ...aborted(signal) }),
  readdir: (env, path, signal) => env.fs.readdir(path, { details: true, ...aborted(signal) }),
  entries: (env, path, signal) => env.fs.entries(path, aborted(signal)).next(),
  walk: (env, path, signal) => env.fs.walk(path, aborted(signal)),
  search: (env, path, signal) => env.fs.search(path, "x", aborted(signal)),
  find: (env, path, signal) => env.fs.find(path, { glob: "*" }, aborted(signal)),
  watch: async (env, path, signal) => {
    const watch = await env.fs.watch(path, aborted(signal));
    await watch.return?.();
  },
};

const BLOCKS = new Uint8Array(9 << 20);

function aborted(signal: AbortSignal | undefined): { signal?: AbortSignal } {
  return signal === undefined ? {} : { signal };
}

test("every call is cut and aborted", () => {
  const methods = [Environment, EnvironmentFiles].flatMap((kind) =>
    Object.entries(Object.getOwnPropertyDescriptors(kind.prototype))
      .filter(([, { value }]) => typeof value === "function")
      .map(([name]) => name),
  );
  const others = ["constructor", "start", "uri", "states", "close"];
  const missing = methods.filter((name) => !others.includes(name) && !(name in CALLS));
  assert.deepEqual(missing, []);
});

test("cut in a call ends in a result or a typed error", { concurrency: 4 }, async (context) => {
  const own = await startServer(["--state-dir", join(directory, "state")]);
  const proxy = await CuttingProxy.start(own.url);
  const tests = Object.entries(CALLS).map(([name, call]) =>
    context.test(name, { timeout: 30_000 }, async () => {
      const path = join(directory, `cut-${name}`);
      mkdirSync(path);
      writeFileSync(join(path, "big"), BLOCKS.subarray(0, 2 << 20));
      const other = await connect(`${proxy.url}/?tag=${name}`);
      for (const pause of [0, 1, 4, 20]) {
        const result = call(other, path).catch((error: unknown) => {
          const isTyped = error instanceof InterruptedError || error instanceof RemoteError;
          assert.ok(isTyped, String(error));
        });
        await new Promise((resolve) => setTimeout(resolve, pause));
        proxy.cut(name);
        await result;
      }
      // This call finds the last cut; a start could not be repeated.
      await other.processes();
      assert.equal((await other.run(["echo", "fine"])).stdout, "fine\n");
      await other.close();
    }),
  );
  await Promise.all(tests);
  await proxy.stop();
  await own.stop();
});

test("storm of aborted calls leaves nothing behind", { timeout: 60_000 }, async () => {
  const own = await startServer(["--state-dir", join(directory, "state2")]);
  const other = await connect(own.url);
  const path = join(directory, "storm");
  mkdirSync(path);
  writeFileSync(join(path, "big"), BLOCKS.subarray(0, 2 << 20));
  const calls = Object.entries(CALLS).filter(([, call]) => call.length > 2);
  const reason = new Error("enough");
  const listeners = other.client.listeners.size;
  let aborts = 0;
  for (let round = 0; round < 10; round += 1) {
    const controllers = calls.map(() => new AbortController());
    const results = calls.map(async ([name, call], index) => {
      try {
        await call(other, path, controllers[index]?.signal);
      } catch (error) {
        aborts += error === reason ? 1 : 0;
        assert.ok(error === reason || error instanceof RemoteError, `${name}: ${String(error)}`);
      }
    });
    // Some before anything is sent, some when it is, some while the answers arrive.
    for (const [index, controller] of controllers.entries()) {
      if (index % 3 === round % 3) {
        await new Promise((resolve) => setTimeout(resolve, round % 4));
      }
      controller.abort(reason);
      assert.equal(getEventListeners(controller.signal, "abort").length, 0);
    }
    await Promise.all(results);
  }
  assert.ok(aborts > calls.length, `${aborts} calls were aborted`);
  await untilNothingRuns(other);
  assert.equal(other.client.listeners.size, listeners);
  await until(() => other.client.processes.size === 0, "the client forgets the processes");
  assert.ok(!(await readdir(path)).some((name) => name.endsWith(".tmp")));
  assert.equal((await other.run(["echo", "fine"])).stdout, "fine\n");
  await other.close();
  await own.stop();
});
