/**
 * An environment: a place that runs commands and has files.
 *
 * @module
 */

import { AsyncEvents } from "./async-events.js";
import { EnvironmentFiles } from "./files.js";
import {
  abortReason,
  InvalidArgumentError,
  LimitError,
  RemoteError,
  StdinClosedError,
  UnsupportedError,
} from "./errors.js";
import type { Connector } from "./link.js";
import { decodeText } from "./message.js";
import { concatBytes, type OutputQueue } from "./output-queue.js";
import { fromPathUri, type HostPath, toPathUri } from "./path-uri.js";
import {
  type Bytes,
  CommandFailedError,
  CommandTimeoutError,
  Process,
  ProcessInput,
  type RunResult,
  toBytes,
} from "./process.js";
import { ProcessEvents } from "./process-events.js";
import type {
  EnvironmentInfo,
  EnvPolicy,
  ListeningPort,
  ProcessSummary,
  Requests,
  ProcessLimits,
  SandboxPolicy,
  StartProcess,
} from "./wire.js";
import {
  type ConnectionState,
  type NetworkPolicyHandler,
  SessionClient,
} from "./session-client.js";
import { type Tunnel, type TunnelListener, TunnelTable, type TunnelTarget } from "./tunnel.js";

/** Settings of a connection. */
export interface ConnectOptions {
  /** Bearer token. Browsers cannot send one; see the documentation. */
  token?: string;
  /** Name of this client in the server's logs. Default: `exec-server-typescript`. */
  clientName?: string;
  /** Limit of opening a connection with its handshake. Default: 10 s. */
  connectTimeoutMs?: number;
  /** Limit of restoring a lost connection. Default: as long as the server keeps the session. */
  reconnectTimeoutMs?: number;
  /** Aborts the first connection attempt. */
  signal?: AbortSignal;
  /** Called when the connection is lost or restored. */
  onState?: (state: ConnectionState) => void;
}

/** Options of a command. */
export interface CommandOptions {
  /** Working directory. Default: that of the server. */
  cwd?: HostPath;
  /** The whole environment, as in `child_process`; nothing is inherited. */
  env?: Record<string, string | undefined>;
  /** Variables in addition to the inherited ones, or to `env`. */
  extraEnv?: Record<string, string | undefined>;
  /**
   * Which variables of the server are inherited without `env`. Default: `all`, even those whose
   * names look like secrets. The server never passes on its own credentials.
   */
  inheritEnv?: "all" | "core" | "none" | EnvPolicy;
  /** Runs on a terminal; `true` is 24 × 80. */
  pty?: boolean | { rows: number; cols: number };
  /** Confines the command. */
  sandbox?: SandboxPolicy;
  /** Limits of time, memory and others. */
  limits?: ProcessLimits;
  /** `argv[0]` as the program sees it. */
  argv0?: string;
  /** Id of the process. Default: a random one. */
  id?: string;
  /** Managed network: members of `process/start`, and a handler that decides about other hosts. */
  network?: {
    enforceManagedNetwork?: boolean;
    managedNetwork?: object;
    networkProxy?: object;
    decide?: NetworkPolicyHandler;
  };
  /** Ends the command with its whole tree. */
  signal?: AbortSignal;
}

/** Options of `spawn`. */
export interface SpawnOptions extends CommandOptions {
  /** Whether stdin can be written. Default: `pipe`. */
  stdin?: "pipe" | "ignore";
  /** Whether output is kept for the program. Default: `pipe`. */
  stdout?: "pipe" | "ignore";
  /** Whether error output is kept for the program. Default: `pipe`. */
  stderr?: "pipe" | "ignore";
  /** Whether it belongs to the server and outlives this session. */
  detached?: boolean;
  /** Whether it outlives its server. Default: as the server is configured. */
  durable?: boolean;
}

/** Options of `run`. */
export interface RunOptions extends CommandOptions {
  /** Input of the command. Default: none. */
  input?: Bytes | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array | string>;
  /** Type of stdout and stderr in the result. Default: `utf8`, which replaces invalid bytes. */
  encoding?: "utf8" | "bytes";
  /** Throws a `CommandFailedError` unless the status is 0. */
  check?: boolean;
  /** Ends the command after this time, with a `CommandTimeoutError`. */
  timeoutMs?: number;
  /** Maximum bytes of each stream; then the command is ended. Default: 64 MiB. */
  maxBuffer?: number;
}

/** Options of `request`. */
export interface RequestOptions {
  /** Sends it again if the connection breaks before the answer. Default: false. */
  retry?: boolean;
  /** Stops waiting for the answer. The request may still take effect. */
  signal?: AbortSignal;
}

const MAX_BUFFER = 64 << 20;
const MAX_PROCESS_ID_BYTES = 1024;
const DEFAULT_CONNECT_TIMEOUT_MS = 10_000;

/** A connected environment. Close it when done: its commands end with it. */
export class Environment {
  /** Files of the environment. */
  readonly fs: EnvironmentFiles;
  /** @internal */
  readonly client: SessionClient;

  #prefix = randomHex();
  #count = 0;
  #tunnels: TunnelTable;

  private constructor(client: SessionClient) {
    this.client = client;
    this.fs = new EnvironmentFiles(client);
    this.#tunnels = new TunnelTable(client);
  }

  /** Connects through a connector; use `connect` instead. */
  static async open(connector: Connector, options: ConnectOptions = {}): Promise<Environment> {
    const client = new SessionClient(connector, {
      clientName: options.clientName ?? "exec-server-typescript",
      connectTimeoutMs: options.connectTimeoutMs ?? DEFAULT_CONNECT_TIMEOUT_MS,
      reconnectTimeoutMs: options.reconnectTimeoutMs,
      onState: options.onState,
    });
    await client.open(options.signal);
    return new Environment(client);
  }

  /** Description of the server's host. */
  get info(): EnvironmentInfo {
    return this.client.info;
  }

  /** Working directory of the server, where relative paths start. */
  get cwd(): string {
    return this.info.cwd == null ? "/" : fromPathUri(this.info.cwd);
  }

  /** Name and version of the server; `undefined` for a stock server. */
  get server(): { name: string; version: string } | undefined {
    return this.client.server;
  }

  /** State of the connection. */
  get state(): ConnectionState {
    return this.client.state;
  }

  /** Id of the session. Anyone who knows it can resume the session: keep it secret. */
  get sessionId(): string {
    return this.client.sessionId;
  }

  /** Runs a command to its end. A status other than 0 is not an error unless `check` is set. */
  run(argv: readonly string[], options?: RunOptions & { encoding?: "utf8" }): Promise<RunResult>;
  /** The same with stdout and stderr as bytes. */
  run(
    argv: readonly string[],
    options: RunOptions & { encoding: "bytes" },
  ): Promise<RunResult<Uint8Array>>;
  async run(
    argv: readonly string[],
    options: RunOptions = {},
  ): Promise<RunResult<string | Uint8Array>> {
    const { input, encoding = "utf8", maxBuffer = MAX_BUFFER, timeoutMs, signal } = options;
    if (input !== undefined && this.client.isStock && options.pty === undefined) {
      throw UnsupportedError.feature("end of stdin");
    }
    const stdin = input === undefined ? "ignore" : "pipe";
    const { process, events } = await this.#start(argv, { ...options, stdin });
    const end = (): void => this.client.abandon(events);
    let timedOut = false;
    const timer =
      timeoutMs === undefined
        ? undefined
        : setTimeout(() => {
            timedOut = true;
            process.terminate().catch(() => {});
          }, timeoutMs);
    try {
      const outputs = Promise.all([
        collect(events.stdout, "stdout", maxBuffer, end),
        collect(events.stderr, "stderr", maxBuffer, end),
      ]);
      outputs.catch(() => {});
      if (input !== undefined) {
        await feed(process, input, events);
      }
      const [out, err] = await outputs;
      const exit = await events.ended;
      if (signal?.aborted === true) {
        throw abortReason(signal);
      }
      const convert = (chunks: Uint8Array[]): string | Uint8Array =>
        encoding === "bytes" ? concatBytes(chunks) : decodeText(concatBytes(chunks));
      const result = { ...exit, stdout: convert(out), stderr: convert(err) };
      if (timedOut && timeoutMs !== undefined) {
        throw new CommandTimeoutError(argv, timeoutMs, result);
      }
      if (options.check === true && result.exitCode !== 0) {
        throw new CommandFailedError(argv, result);
      }
      return result;
    } catch (error) {
      if (!events.closed && events.failure === undefined) {
        end();
      }
      throw signal?.aborted === true ? abortReason(signal) : error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Starts a process; resolves when it runs. Its streams are Web Streams. */
  async spawn(argv: readonly string[], options: SpawnOptions = {}): Promise<Process> {
    const { process } = await this.#start(argv, options);
    return process;
  }

  /** @internal Starts a process and returns its events as well. */
  start(
    argv: readonly string[],
    options: SpawnOptions,
  ): Promise<{ process: Process; events: ProcessEvents }> {
    return this.#start(argv, options);
  }

  async #start(
    argv: readonly string[],
    options: SpawnOptions,
  ): Promise<{ process: Process; events: ProcessEvents }> {
    const params = this.#startParams(argv, options);
    const { signal, network } = options;
    const { client } = this;
    const owner = options.detached === true ? "server" : "session";
    const events = new ProcessEvents(params.processId, owner, client);
    if (options.stdout === "ignore") {
      events.stdout.discard();
    }
    if (options.stderr === "ignore") {
      events.stderr.discard();
    }
    if (network?.decide !== undefined) {
      client.networkPolicies.set(params.processId, network.decide);
    }
    const started = await client.start(events, params, signal);
    if (signal !== undefined && owner === "session") {
      const abort = (): void => {
        const failed = (): void => {};
        client.terminate(events.id, client.isStock ? undefined : { type: "force" }).catch(failed);
      };
      signal.addEventListener("abort", abort, { once: true });
      const settle = (): void => signal.removeEventListener("abort", abort);
      events.ended.then(settle, settle);
    }
    const writable = params.tty || params.pipeStdin === true;
    const stdin = writable
      ? new ProcessInput(client, events.id, `${this.#prefix}-`, params.tty)
      : undefined;
    const process = new Process(client, events, stdin, started.sandboxType ?? undefined);
    return { process, events };
  }

  #startParams(argv: readonly string[], options: SpawnOptions): StartProcess {
    if (!Array.isArray(argv) || argv.length === 0 || argv.some((arg) => typeof arg !== "string")) {
      throw new InvalidArgumentError(
        "a command is a list of strings; for a shell use [\"sh\", \"-c\", command]",
      );
    }
    const { isStock } = this.client;
    const { pty = false, limits, detached, durable, sandbox, network, argv0 } = options;
    const env: Record<string, string> = {};
    if (pty !== false && options.env === undefined) {
      env["TERM"] = "xterm-256color";
    }
    for (const [name, value] of Object.entries({ ...options.env, ...options.extraEnv })) {
      if (value !== undefined) {
        env[name] = value;
      }
    }
    const params: StartProcess = {
      processId: this.#newId(options.id),
      argv: [...argv],
      cwd: this.uri(options.cwd ?? "."),
      env,
      tty: pty !== false,
    };
    if (options.env === undefined) {
      params.envPolicy = envPolicy(options.inheritEnv ?? "all");
    }
    if (pty === false && (options.stdin ?? "pipe") === "pipe") {
      params.pipeStdin = true;
    }
    if (typeof pty === "object") {
      if (isStock && (pty.rows !== 24 || pty.cols !== 80)) {
        throw UnsupportedError.feature("size of a terminal");
      }
      params.size = { rows: pty.rows, cols: pty.cols };
    }
    const extras = { limits, detached, durable };
    for (const [name, value] of Object.entries(extras)) {
      if (isStock && value !== undefined && value !== false) {
        throw UnsupportedError.feature(name);
      }
    }
    if (limits !== undefined) {
      params.limits = limits;
    }
    if (detached === true) {
      params.detached = true;
    }
    if (durable !== undefined && !isStock) {
      params.durable = durable;
    }
    if (sandbox !== undefined) {
      params.sandbox = sandbox;
    }
    if (argv0 !== undefined) {
      params.arg0 = argv0;
    }
    if (network !== undefined) {
      const { decide: _, ...members } = network;
      Object.assign(params, members);
    }
    return params;
  }

  /**
   * Follows a detached process from its first retained output, or after an event. With
   * `startedAtMs`, also takes over a process of another session, which makes it a detached one.
   */
  async attach(
    id: string,
    options: { startedAtMs?: number; afterEvent?: number; signal?: AbortSignal } = {},
  ): Promise<Process> {
    this.#requireOurs("process/attach");
    const { startedAtMs, afterEvent = 0, signal } = options;
    const { client } = this;
    const known = (await this.processes({ all: startedAtMs !== undefined })).find(
      (process) =>
        process.processId === id && (startedAtMs ?? process.startedAtMs) === process.startedAtMs,
    );
    const events = new ProcessEvents(id, "server", client, afterEvent);
    events.startedAtMs = startedAtMs;
    events.osPid = known?.osPid ?? undefined;
    await client.attach(events, signal);
    events.startedAtMs ??= known?.startedAtMs;
    const stdin = new ProcessInput(client, id, `${this.#prefix}-${this.#newId()}-`, known?.tty ?? false);
    return new Process(client, events, stdin, undefined);
  }

  /** Lists the processes of this session and the detached ones; with `all`, also of others. */
  async processes(options: { all?: boolean } = {}): Promise<ProcessSummary[]> {
    this.#requireOurs("process/list");
    const params = options.all === true ? { all: true } : {};
    return (await this.#list("process/list", params)).processes;
  }

  /** Lists the processes that the server's state directory records, also those that have ended. */
  async history(): Promise<ProcessSummary[]> {
    this.#requireOurs("history/list");
    return (await this.#list("history/list", {})).processes;
  }

  async #list(
    method: "process/list" | "history/list",
    params: { all?: boolean },
  ): Promise<{ processes: ProcessSummary[] }> {
    const answer = await this.client.call(method, params, { retry: true });
    for (const process of answer.result.processes) {
      process.cwd = fromPathUri(process.cwd);
    }
    return answer.result;
  }

  /** Removes ended processes from the history: all, or those that match. Returns how many. */
  async purgeHistory(which: { processId?: string; startedAtMs?: number } = {}): Promise<number> {
    this.#requireOurs("history/purge");
    const answer = await this.client.call("history/purge", which);
    return answer.result.purged;
  }

  /** Reads a file as bytes; with an encoding, as text. The same as `fs.readFile`. */
  readFile(path: HostPath): Promise<Uint8Array>;
  /** Reads a file as text. */
  readFile(path: HostPath, encoding: "utf8"): Promise<string>;
  readFile(path: HostPath, encoding?: "utf8"): Promise<Uint8Array | string> {
    return encoding === undefined ? this.fs.readFile(path) : this.fs.readFile(path, { encoding });
  }

  /** Writes a file. The same as `fs.writeFile`. */
  writeFile(path: HostPath, data: Bytes): Promise<void> {
    return this.fs.writeFile(path, data);
  }

  /** Connects to a TCP port of the environment, or of a process's own network. */
  openTunnel(options: TunnelTarget & { signal?: AbortSignal }): Promise<Tunnel> {
    return this.#tunnels.open(options);
  }

  /** Listens on a TCP port of the environment. */
  listen(options: TunnelTarget): Promise<TunnelListener> {
    return this.#tunnels.listen(options);
  }

  /** Lists the TCP ports that listen in the environment, or in a process's own network. */
  async ports(options: { processId?: string } = {}): Promise<ListeningPort[]> {
    const answer = await this.client.call("ports/list", options, { retry: true });
    return answer.result.ports;
  }

  /** Sends any request of the protocol. With `retry`, it is sent again after a disconnect. */
  request<M extends keyof Requests>(
    method: M,
    params: Requests[M]["params"],
    options?: RequestOptions,
  ): Promise<Requests[M]["result"]>;
  /** The same for a method that the schema does not have. */
  request<T = unknown>(method: string, params?: object, options?: RequestOptions): Promise<T>;
  async request(
    method: string,
    params: object | null = {},
    options: RequestOptions = {},
  ): Promise<unknown> {
    return (await this.client.callUnchecked(method, params ?? {}, options)).result;
  }

  /** Follows the state of the connection until it is closed. */
  async *states(): AsyncGenerator<ConnectionState> {
    const events = new AsyncEvents<ConnectionState>(STATES_QUEUE);
    const listener = {
      disconnected: () => events.push("reconnecting"),
      connected: () => events.push("connected"),
      lost: () => {
        events.push(this.state);
        if (this.state === "closed") {
          events.end();
        }
      },
    };
    this.client.listeners.add(listener);
    try {
      yield* events;
    } finally {
      this.client.listeners.delete(listener);
    }
  }

  /** Ends the commands of this session and the connection. Detached processes run on. */
  close(): Promise<void> {
    return this.client.close();
  }

  /** The same as {@link close}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal */
  uri(path: HostPath): string {
    const uri = toPathUri(path, this.info.cwd);
    return uri.endsWith("/.") ? uri.slice(0, -1) : uri;
  }

  #newId(id?: string): string {
    if (id !== undefined) {
      const { byteLength } = toBytes(id);
      if (byteLength === 0 || byteLength > MAX_PROCESS_ID_BYTES) {
        throw new InvalidArgumentError(`a process id has 1 to ${MAX_PROCESS_ID_BYTES} bytes`);
      }
      return id;
    }
    this.#count += 1;
    return `${this.#prefix}-${this.#count}`;
  }

  #requireOurs(method: string): void {
    if (this.client.isStock) {
      throw UnsupportedError.feature(method);
    }
  }
}

const STATES_QUEUE = 64;

function randomHex(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function envPolicy(inherit: "all" | "core" | "none" | EnvPolicy): EnvPolicy {
  if (typeof inherit === "object") {
    return inherit;
  }
  return { inherit, ignoreDefaultExcludes: true, exclude: [], set: {}, includeOnly: [] };
}

async function collect(
  queue: OutputQueue,
  name: string,
  maxBuffer: number,
  end: () => void,
): Promise<Uint8Array[]> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for (;;) {
    const chunk = queue.take() ?? (await queue.next());
    if (chunk === undefined) {
      return chunks;
    }
    bytes += chunk.byteLength;
    if (bytes > maxBuffer) {
      end();
      throw new LimitError(
        `${name} of the command has more than ${maxBuffer} bytes; raise \`maxBuffer\`, or use \`spawn\``,
      );
    }
    chunks.push(chunk);
  }
}

/** Writes the input. A command that does not read it to its end is not an error. */
async function feed(
  process: Process,
  input: NonNullable<RunOptions["input"]>,
  events: ProcessEvents,
): Promise<void> {
  const { stdin } = process;
  if (stdin === undefined) {
    return;
  }
  const exited = events.exited.then(
    () => true,
    () => true,
  );
  const write = async (): Promise<boolean> => {
    if (typeof input === "string" || input instanceof Uint8Array || input instanceof ArrayBuffer) {
      await stdin.write(input);
    } else {
      for await (const chunk of input) {
        if (events.exit !== undefined) {
          break;
        }
        await stdin.write(chunk);
      }
    }
    await stdin.end();
    return true;
  };
  const written = write().catch((error: unknown) => {
    if (events.exit === undefined && !isInputClosed(error)) {
      throw error;
    }
    return true;
  });
  written.catch(() => {});
  await Promise.race([written, exited]);
}

function isInputClosed(error: unknown): boolean {
  return (error instanceof RemoteError && error.code === -32603) || error instanceof StdinClosedError;
}
