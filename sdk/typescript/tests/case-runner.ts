/** Runs the shared cases on an environment. Has nothing of Node: it also runs in a browser. */

import type {
  Environment,
  Process,
  RunOptions,
  SandboxPolicy,
  SignalName,
  SpawnOptions,
  Tunnel,
  TunnelListener,
  WatchBatch,
} from "../src/index.js";
import * as sdk from "../src/exports.js";

/** What a case may need of its place. */
export interface CasePlace {
  library: "node" | "browser";
  offers: ReadonlySet<string>;
  connect(): Promise<Environment>;
  cut(): Promise<void>;
}

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type Step = { do: string; [name: string]: Json };

/** A case of `sdk/cases`. */
export interface Case {
  name: string;
  steps: Step[];
  only?: string[];
  needs?: string[];
  stock?: boolean;
}

/** Whether a case applies to a place. */
export function applies(test: Case, place: CasePlace): boolean {
  const { only, needs = [] } = test;
  return (
    (only === undefined || only.includes(place.library)) &&
    needs.every((need) => place.offers.has(need))
  );
}

const STEP_MS = 20_000;

/** Reads a stream by counts and delimiters. */
class StreamReader {
  #reader: ReadableStreamDefaultReader<Uint8Array>;
  #buffer: Uint8Array = new Uint8Array();

  constructor(stream: ReadableStream<Uint8Array>) {
    this.#reader = stream.getReader();
  }

  async #fill(): Promise<boolean> {
    const { done, value } = await this.#reader.read();
    if (done) {
      return false;
    }
    this.#buffer = join([this.#buffer, value]);
    return true;
  }

  async read(count: number): Promise<Uint8Array> {
    while (this.#buffer.byteLength < count && (await this.#fill())) {
      // until there is enough
    }
    return this.#take(Math.min(count, this.#buffer.byteLength));
  }

  async readUntil(mark: Uint8Array): Promise<Uint8Array> {
    for (;;) {
      const at = find(this.#buffer, mark);
      if (at >= 0) {
        return this.#take(at + mark.byteLength);
      }
      if (!(await this.#fill())) {
        const text = new TextDecoder().decode(this.#buffer);
        throw new Error(`the stream ended before the mark: ${JSON.stringify(text)}`);
      }
    }
  }

  async readAll(): Promise<Uint8Array> {
    const parts = [this.#buffer];
    this.#buffer = new Uint8Array();
    for (;;) {
      const { done, value } = await this.#reader.read();
      if (done) {
        return join(parts);
      }
      parts.push(value);
    }
  }

  #take(count: number): Uint8Array {
    const taken = this.#buffer.slice(0, count);
    this.#buffer = this.#buffer.slice(count);
    return taken;
  }
}

interface ProcessHandle {
  process: Process;
  stdout: StreamReader;
  stderr: StreamReader;
}

interface TunnelHandle {
  tunnel: Tunnel;
  reader: StreamReader;
  writer: WritableStreamDefaultWriter<Uint8Array>;
}

interface ListenerHandle {
  listener: TunnelListener;
  incoming: AsyncIterator<Tunnel>;
}

interface WatchHandle {
  watch: AsyncIterableIterator<WatchBatch>;
  pending: WatchBatch["changes"];
}

/** Runs one case; throws if it fails. */
export async function runCase(test: Case, place: CasePlace): Promise<void> {
  const run = new CaseRun(await place.connect(), place);
  try {
    await run.start();
    await run.steps(test.steps);
  } finally {
    await run.finish();
  }
}

class CaseRun {
  #env: Environment;
  #place: CasePlace;
  #dir = "";
  #processes = new Map<string, ProcessHandle>();
  #watches = new Map<string, WatchHandle>();
  #tunnels = new Map<string, TunnelHandle>();
  #listeners = new Map<string, ListenerHandle>();

  constructor(env: Environment, place: CasePlace) {
    this.#env = env;
    this.#place = place;
  }

  async start(): Promise<void> {
    const argv = ["mktemp", "-d", "/tmp/exec-server-case-XXXXXXXX"];
    this.#dir = (await this.#env.run(argv, { check: true })).stdout.trim();
  }

  async finish(): Promise<void> {
    try {
      if (this.#env.state === "closed") {
        this.#env = await this.#place.connect();
      }
      if (this.#dir !== "") {
        const script = 'chmod -R u+rwX "$1"; rm -rf "$1"';
        await this.#env.run(["sh", "-c", script, "sh", this.#dir]);
      }
    } finally {
      await this.#env.close();
    }
  }

  async steps(steps: Step[]): Promise<void> {
    for (const [index, raw] of steps.entries()) {
      const step = this.#substitute(raw) as Step;
      try {
        await this.#step(step);
      } catch (error) {
        const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
        throw new Error(`step ${index + 1} (${step.do}): ${text}`);
      }
    }
  }

  async #step(step: Step): Promise<void> {
    let result: unknown;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error("the step takes more than 20 s")), STEP_MS);
    });
    try {
      result = await Promise.race([this.#perform(step), late]);
    } catch (error) {
      const kind = errorKind(error);
      if (step["error"] !== undefined && kind === step["error"]) {
        return;
      }
      if (step["error"] !== undefined) {
        const text = error instanceof Error ? error.stack : String(error);
        throw new Error(`failed as \`${kind}\` instead of \`${String(step["error"])}\`: ${text}`);
      }
      throw error;
    } finally {
      clearTimeout(timer);
    }
    if (step["error"] !== undefined) {
      throw new Error(`succeeded instead of failing with \`${String(step["error"])}\``);
    }
    if (step["expect"] !== undefined) {
      const mismatch = await matchValue(step["expect"], result);
      if (mismatch !== undefined) {
        throw new Error(mismatch);
      }
    }
  }

  #substitute(value: Json): Json {
    if (typeof value === "string") {
      return value.replaceAll("$DIR", this.#dir);
    }
    if (Array.isArray(value)) {
      return value.map((item) => this.#substitute(item));
    }
    if (typeof value === "object" && value !== null) {
      const members = Object.entries(value).map(([name, item]) => [name, this.#substitute(item)]);
      return Object.fromEntries(members) as Json;
    }
    return value;
  }

  #process(step: Step): ProcessHandle {
    const handle = this.#processes.get(String(step["on"]));
    if (handle === undefined) {
      throw new Error(`no process \`${String(step["on"])}\``);
    }
    return handle;
  }

  #keep(step: Step, process: Process): void {
    const { stdout, stderr } = process;
    this.#processes.set(String(step["as"]), {
      process,
      stdout: new StreamReader(stdout),
      stderr: new StreamReader(stderr),
    });
  }

  #tunnel(step: Step): TunnelHandle {
    const handle = this.#tunnels.get(String(step["on"]));
    if (handle === undefined) {
      throw new Error(`no tunnel \`${String(step["on"])}\``);
    }
    return handle;
  }

  #keepTunnel(step: Step, tunnel: Tunnel): void {
    this.#tunnels.set(String(step["as"]), {
      tunnel,
      reader: new StreamReader(tunnel.readable),
      writer: tunnel.writable.getWriter(),
    });
  }

  #listener(name: unknown): ListenerHandle {
    const handle = this.#listeners.get(String(name));
    if (handle === undefined) {
      throw new Error(`no listener \`${String(name)}\``);
    }
    return handle;
  }

  async #perform(step: Step): Promise<unknown> {
    const env = this.#env;
    const text = (name: string): string => String(step[name]);
    const path = (name = "path"): string => pathOf(step[name] as Json);
    const flag = (name: string): boolean => step[name] === true;
    const number = (name: string): number | undefined => step[name] as number | undefined;
    const string = (name: string): string | undefined => step[name] as string | undefined;
    switch (step.do) {
      case "info":
        return { ...env.info, cwd: env.cwd };
      case "run": {
        const options: RunOptions & { encoding: "bytes" } = {
          ...(commandOptions(step, env) as object),
          encoding: "bytes",
        };
        if (step["input"] !== undefined) {
          options.input = bytesOf(step["input"]);
        }
        if (step["timeoutMs"] !== undefined) {
          options.timeoutMs = step["timeoutMs"] as number;
        }
        options.check = flag("check");
        return await env.run(argvOf(step), options);
      }
      case "spawn": {
        const stdin = step["stdin"] === "pipe" ? "pipe" : "ignore";
        const options = { ...commandOptions(step, env), stdin } as SpawnOptions;
        this.#keep(step, await env.spawn(argvOf(step), options));
        return null;
      }
      case "write": {
        const { stdin } = this.#process(step).process;
        if (stdin === undefined) {
          throw Object.assign(new Error("no stdin"), { name: "StdinClosedError" });
        }
        await stdin.write(bytesOf(step["data"] as Json));
        await stdin.flush();
        return null;
      }
      case "closeStdin":
        await this.#process(step).process.stdin?.end();
        return null;
      case "read":
        return await this.#stream(step).read(number("count") ?? 0);
      case "readUntil":
        return await this.#stream(step).readUntil(bytesOf(step["until"] as Json));
      case "readAll":
        return await this.#stream(step).readAll();
      case "communicate": {
        const { process, stdout, stderr } = this.#process(step);
        if (step["input"] !== undefined) {
          await process.stdin?.write(bytesOf(step["input"]));
        }
        await process.stdin?.end();
        const [out, err] = await Promise.all([stdout.readAll(), stderr.readAll()]);
        return { ...(await process.wait()), stdout: out, stderr: err };
      }
      case "wait": {
        const { process } = this.#process(step);
        const timeoutMs = number("timeoutMs");
        if (timeoutMs !== undefined) {
          return await process.wait({ signal: AbortSignal.timeout(timeoutMs) });
        }
        return await process.wait();
      }
      case "signal":
        await this.#process(step).process.kill(text("signal") as SignalName);
        return null;
      case "terminate": {
        const graceMs = number("timeoutMs");
        await this.#process(step).process.terminate(graceMs === undefined ? {} : { graceMs });
        return null;
      }
      case "resize": {
        const size = { rows: number("rows") ?? 0, cols: number("cols") ?? 0 };
        await this.#process(step).process.resize(size);
        return null;
      }
      case "attach": {
        const afterEvent = number("afterSeq") ?? 0;
        this.#keep(step, await env.attach(text("id"), { afterEvent }));
        return null;
      }
      case "list":
        return (await env.processes()).map((process) => ({ ...process, id: process.processId }));
      case "readFile":
        return await env.fs.readFile(path());
      case "writeFile":
        await env.fs.writeFile(path(), bytesOf(step["data"] as Json), {
          atomic: flag("atomic"),
          createParents: flag("createParents"),
          ...optional({ mode: number("mode") }),
        });
        return null;
      case "readStream": {
        const stream = env.fs.readStream(path(), { start: number("offset") ?? 0 });
        const reader = new StreamReader(stream);
        const length = number("length");
        return length === undefined ? await reader.readAll() : await reader.read(length);
      }
      case "writeStream": {
        const writer = env.fs.writeStream(path()).getWriter();
        for (const chunk of step["chunks"] as Json[]) {
          await writer.write(bytesOf(chunk));
        }
        await writer.close();
        return null;
      }
      case "metadata": {
        const isOwn = step["followSymlinks"] === false;
        const metadata = await env.fs.stat(path(), isOwn ? { details: true } : {});
        const kind =
          isOwn && metadata.isSymlink
            ? "symlink"
            : metadata.isDirectory
              ? "directory"
              : metadata.isFile
                ? "file"
                : "other";
        return { linkTarget: null, mode: null, ...metadata, kind };
      }
      case "exists":
        return await env.fs.exists(path());
      case "setMetadata":
        await env.fs.setMetadata(
          path(),
          optional({ mode: number("mode"), modifiedAtMs: number("modifiedAtMs") }),
        );
        return null;
      case "makeDirectory":
        await env.fs.mkdir(path(), { recursive: step["parents"] !== false });
        return null;
      case "remove":
        await env.fs.rm(path(), { recursive: flag("recursive"), force: flag("missingOk") });
        return null;
      case "rename":
        await env.fs.rename(path("source"), path("destination"), { overwrite: flag("overwrite") });
        return null;
      case "copy":
        await env.fs.cp(path("source"), path("destination"), { recursive: flag("recursive") });
        return null;
      case "symlink": {
        const { target } = step;
        await env.fs.symlink(typeof target === "string" ? target : bytesOf(target as Json), path());
        return null;
      }
      case "realpath":
        return await env.fs.realpath(path());
      case "readDirectory":
        return (await env.fs.readdir(path(), { details: env.server !== undefined })).map((entry) => ({
          name: entry.name,
          kind:
            entry.linkTarget !== undefined
              ? "symlink"
              : entry.isDirectory
                ? "directory"
                : entry.isFile
                  ? "file"
                  : "other",
        }));
      case "walk":
        return (await env.fs.walk(path(), optional({ maxDepth: number("maxDepth") }))).entries;
      case "search":
        return await env.fs.search(
          path(),
          text("pattern"),
          optional({
            regex: step["regex"] as boolean | undefined,
            caseSensitive: step["caseSensitive"] as boolean | undefined,
            glob: string("glob"),
            maxMatches: number("maxMatches"),
            contextLines: number("contextLines"),
          }),
        );
      case "find": {
        const what = optional({ glob: string("glob"), query: string("query") });
        const options = optional({ maxResults: number("maxResults") });
        return await env.fs.find(path(), what as { glob: string }, options);
      }
      case "watch": {
        const watch = await env.fs.watch(path(), { recursive: step["recursive"] !== false });
        this.#watches.set(text("as"), { watch, pending: [] });
        return null;
      }
      case "awaitChange":
        return await this.#awaitChange(step, path());
      case "closeWatch": {
        await this.#watches.get(text("on"))?.watch.return?.();
        return null;
      }
      case "cut":
        await this.#place.cut();
        return null;
      case "listen": {
        const listener = await env.listen({ port: 0 });
        const incoming = listener[Symbol.asyncIterator]();
        this.#listeners.set(text("as"), { listener, incoming });
        return null;
      }
      case "accept": {
        const { done, value } = await this.#listener(step["on"]).incoming.next();
        if (done === true) {
          throw new Error("the listener has ended");
        }
        this.#keepTunnel(step, value);
        return null;
      }
      case "openTunnel": {
        const target = step["port"] as number | { portOf: string };
        const port =
          typeof target === "number" ? target : this.#listener(target.portOf).listener.port;
        this.#keepTunnel(step, await env.openTunnel({ port }));
        return null;
      }
      case "tunnelWrite":
        await this.#tunnel(step).writer.write(bytesOf(step["data"] as Json));
        return null;
      case "tunnelRead":
        return await this.#tunnel(step).reader.read(number("count") ?? 0);
      case "tunnelReadAll":
        return await this.#tunnel(step).reader.readAll();
      case "tunnelEnd":
        await this.#tunnel(step).writer.close();
        return null;
      case "tunnelClose":
        this.#tunnel(step).tunnel.close();
        return null;
      case "listenerClose":
        this.#listener(step["on"]).listener.close();
        return null;
      case "close":
        await env.close();
        return null;
      case "reconnect":
        await env.close();
        this.#env = await this.#place.connect();
        return null;
      case "parallel": {
        const branches = step["branches"] as Step[][];
        await Promise.all(branches.map((steps) => this.steps(steps)));
        return null;
      }
      default:
        throw new Error(`unknown operation \`${step.do}\``);
    }
  }

  #stream(step: Step): StreamReader {
    const { stdout, stderr } = this.#process(step);
    return step["stream"] === "stderr" ? stderr : stdout;
  }

  async #awaitChange(step: Step, path: string): Promise<null> {
    const handle = this.#watches.get(String(step["on"]));
    if (handle === undefined) {
      throw new Error(`no watch \`${String(step["on"])}\``);
    }
    for (;;) {
      const found = handle.pending.findIndex(
        (change) =>
          change.path === path && (step["kind"] === undefined || change.kind === step["kind"]),
      );
      if (found >= 0) {
        handle.pending.splice(0, found + 1);
        return null;
      }
      handle.pending = [];
      const batch = await handle.watch.next();
      if (batch.done === true) {
        throw new Error("the watch has ended");
      }
      handle.pending = batch.value.changes;
    }
  }
}

function commandOptions(step: Step, environment: Environment): SpawnOptions {
  const { cwd, env, extraEnv, terminal, limits, detached, durable, id } = step;
  const directory = cwd === undefined ? environment.cwd : pathOf(cwd);
  return optional({
    cwd: cwd === undefined ? undefined : pathOf(cwd),
    env: env as Record<string, string> | undefined,
    extraEnv: extraEnv as Record<string, string> | undefined,
    pty: terminal as { rows: number; cols: number } | undefined,
    sandbox: step["sandbox"] === undefined ? undefined : sandboxOf(step["sandbox"], directory),
    limits: limits as SpawnOptions["limits"],
    detached: detached as boolean | undefined,
    durable: durable as boolean | undefined,
    id: id as string | undefined,
  });
}

function sandboxOf(value: Json, directory: string): SandboxPolicy {
  const { preset, writable, network } = value as {
    preset: string;
    writable?: Json[];
    network?: boolean;
  };
  const access = network === true ? "enabled" : "restricted";
  if (preset === "read-only") {
    return sdk.readOnlySandbox({ network: access });
  }
  const workspace = [directory, ...(writable ?? []).map(pathOf)];
  return sdk.workspaceWriteSandbox({ workspace, network: access });
}

function argvOf(step: Step): string[] {
  return (step["argv"] as Json[]).map((arg) => {
    if (typeof arg !== "string") {
      throw new Error("arguments that are not text cannot be sent as JSON");
    }
    return arg;
  });
}

/** Omits undefined members. */
function optional<T extends object>(members: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  const entries = Object.entries(members).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as { [K in keyof T]?: Exclude<T[K], undefined> };
}

/** The bytes that a member of a case means. */
export function bytesOf(value: Json): Uint8Array {
  if (typeof value === "string") {
    return new TextEncoder().encode(value);
  }
  if (Array.isArray(value)) {
    return join(value.map(bytesOf));
  }
  if (typeof value === "object" && value !== null) {
    if (typeof value["hex"] === "string") {
      const pairs = value["hex"].match(/../g) ?? [];
      return Uint8Array.from(pairs, (pair) => Number.parseInt(pair, 16));
    }
    if (typeof value["base64"] === "string") {
      return Uint8Array.from(atob(value["base64"]), (char) => char.charCodeAt(0));
    }
    if (value["repeat"] !== undefined) {
      const unit = bytesOf(value["repeat"]);
      const times = value["times"] as number;
      const bytes = new Uint8Array(unit.byteLength * times);
      for (let index = 0; index < times; index += 1) {
        bytes.set(unit, index * unit.byteLength);
      }
      return bytes;
    }
  }
  throw new Error(`not bytes: ${JSON.stringify(value)}`);
}

/** A path; one that is not UTF-8 becomes a URI. */
function pathOf(value: Json): string {
  if (typeof value === "string") {
    return value;
  }
  const bytes = bytesOf(value);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    const isPlain = (byte: number): boolean => /[A-Za-z0-9/._~-]/.test(String.fromCharCode(byte));
    const hex = (byte: number): string => `%${byte.toString(16).padStart(2, "0").toUpperCase()}`;
    const encoded = Array.from(bytes, (byte) =>
      isPlain(byte) ? String.fromCharCode(byte) : hex(byte),
    );
    return `file://${encoded.join("")}`;
  }
}

function errorKind(error: unknown): string {
  if (error instanceof sdk.CommandFailedError) return "exitStatus";
  if (error instanceof sdk.CommandTimeoutError) return "timeout";
  if (error instanceof sdk.NotFoundError) return "notFound";
  if (error instanceof sdk.UnsupportedError) return "unsupported";
  if (error instanceof sdk.InvalidParamsError) return "invalidParams";
  if (error instanceof sdk.InvalidArgumentError) return "invalidParams";
  if (error instanceof sdk.RefusedError) return "invalidRequest";
  if (error instanceof sdk.RemoteError) return "host";
  if (error instanceof sdk.InterruptedError) return "connectionLost";
  if (error instanceof sdk.ConnectionLostError) return "connectionLost";
  if (error instanceof sdk.SessionLostError) return "connectionLost";
  if (error instanceof sdk.ClosedError) return "closed";
  if (error instanceof Error && error.name === "StdinClosedError") return "stdinClosed";
  if (error instanceof Error && error.name === "TimeoutError") return "timeout";
  return "unknown";
}

const BYTES_MEMBERS = ["hex", "base64", "repeat"];

/** Compares; returns what is wrong. */
export async function matchValue(expected: Json, actual: unknown): Promise<string | undefined> {
  const wrong = (what: string): string => `${what}: got ${show(actual)}`;
  if (actual instanceof Uint8Array && isBytes(expected)) {
    const bytes = bytesOf(expected);
    return equal(bytes, actual) ? undefined : wrong(`expected ${show(bytes)}`);
  }
  if (Array.isArray(expected)) {
    if (!Array.isArray(actual) || actual.length !== expected.length) {
      return wrong(`expected a list of ${expected.length}`);
    }
    for (const [index, item] of expected.entries()) {
      const mismatch = await matchValue(item, actual[index]);
      if (mismatch !== undefined) {
        return `[${index}]: ${mismatch}`;
      }
    }
    return undefined;
  }
  if (typeof expected !== "object" || expected === null) {
    return expected === (actual ?? null) ? undefined : wrong(`expected ${JSON.stringify(expected)}`);
  }
  return matchObject(expected, actual, wrong);
}

async function matchObject(
  expected: { [name: string]: Json },
  actual: unknown,
  wrong: (what: string) => string,
): Promise<string | undefined> {
  const what = JSON.stringify(expected).slice(0, 200);
  const own = (name: string): boolean => Object.hasOwn(expected, name);
  if (own("any")) {
    return undefined;
  }
  for (const name of ["contains", "startsWith", "endsWith"]) {
    if (own(name)) {
      const [value, part] = [toBytes(actual), bytesOf(expected[name] as Json)];
      const at = name === "endsWith" ? value.byteLength - part.byteLength : 0;
      const holds =
        name === "contains"
          ? find(value, part) >= 0
          : at >= 0 && equal(value.slice(at, at + part.byteLength), part);
      return holds ? undefined : wrong(`expected ${what}`);
    }
  }
  if (own("matches") && typeof expected["matches"] !== "object") {
    const text = new TextDecoder().decode(toBytes(actual));
    return new RegExp(String(expected["matches"])).test(text) ? undefined : wrong(`expected ${what}`);
  }
  if (own("length") && typeof expected["length"] !== "object") {
    const value = actual as { length: number };
    if (value.length !== expected["length"]) {
      return wrong(`expected ${what}`);
    }
    if (own("sha256")) {
      const digest = await crypto.subtle.digest("SHA-256", toBytes(actual) as Uint8Array<ArrayBuffer>);
      const hex = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0"));
      return hex.join("") === expected["sha256"] ? undefined : wrong(`expected ${what}`);
    }
    return undefined;
  }
  if (own("min") || own("max")) {
    const { min = -Infinity, max = Infinity } = expected as { min?: number; max?: number };
    const holds = typeof actual === "number" && actual >= min && actual <= max;
    return holds ? undefined : wrong(`expected ${what}`);
  }
  if (own("unordered")) {
    const wanted = expected["unordered"] as Json[];
    if (!Array.isArray(actual) || actual.length !== wanted.length) {
      return wrong(`expected ${what}`);
    }
    const rest: unknown[] = [...actual];
    for (const item of wanted) {
      let found = -1;
      for (const [index, candidate] of rest.entries()) {
        if ((await matchValue(item, candidate)) === undefined) {
          found = index;
          break;
        }
      }
      if (found < 0) {
        return wrong(`expected ${JSON.stringify(item)} in it`);
      }
      rest.splice(found, 1);
    }
    return undefined;
  }
  if (own("includes")) {
    for (const candidate of Array.isArray(actual) ? (actual as unknown[]) : []) {
      if ((await matchValue(expected["includes"] as Json, candidate)) === undefined) {
        return undefined;
      }
    }
    return wrong(`expected ${what}`);
  }
  if (typeof actual !== "object" || actual === null) {
    return wrong(`expected ${what}`);
  }
  for (const [name, item] of Object.entries(expected)) {
    const mismatch = await matchValue(item, (actual as Record<string, unknown>)[name]);
    if (mismatch !== undefined) {
      return `\`${name}\`: ${mismatch}`;
    }
  }
  return undefined;
}

function isBytes(value: Json): boolean {
  if (typeof value === "string") {
    return true;
  }
  if (Array.isArray(value)) {
    return value.every(isBytes);
  }
  return typeof value === "object" && value !== null && BYTES_MEMBERS.some((name) => name in value);
}

function toBytes(value: unknown): Uint8Array {
  return value instanceof Uint8Array ? value : new TextEncoder().encode(String(value));
}

function equal(a: Uint8Array, b: Uint8Array): boolean {
  return a.byteLength === b.byteLength && a.every((byte, index) => byte === b[index]);
}

function find(bytes: Uint8Array, part: Uint8Array): number {
  outer: for (let at = 0; at + part.byteLength <= bytes.byteLength; at += 1) {
    for (let index = 0; index < part.byteLength; index += 1) {
      if (bytes[at + index] !== part[index]) {
        continue outer;
      }
    }
    return at;
  }
  return -1;
}

function join(parts: readonly Uint8Array[]): Uint8Array {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.byteLength, 0));
  let offset = 0;
  for (const part of parts) {
    bytes.set(part, offset);
    offset += part.byteLength;
  }
  return bytes;
}

function show(value: unknown): string {
  if (value instanceof Uint8Array) {
    return `${value.byteLength} bytes ${JSON.stringify(new TextDecoder().decode(value.slice(0, 300)))}`;
  }
  return (JSON.stringify(value) ?? String(value)).slice(0, 500);
}
