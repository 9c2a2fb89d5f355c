/**
 * A process in an environment, and what `run` returns.
 *
 * @module
 */

import {
  ExecServerError,
  InvalidArgumentError,
  RemoteError,
  StdinClosedError,
  UnsupportedError,
} from "./errors.js";
import type { ProcessEvents, ProcessExit } from "./process-events.js";
import type { ProcessSignal, TerminateMode } from "./wire.js";
import type { SessionClient } from "./session-client.js";

/** Signals as POSIX names or as the protocol writes them. They go to the process group. */
export type SignalName =
  | "SIGINT"
  | "SIGTERM"
  | "SIGKILL"
  | "SIGHUP"
  | "SIGQUIT"
  | "SIGSTOP"
  | "SIGCONT"
  | "SIGUSR1"
  | "SIGUSR2"
  | ProcessSignal;

const SIGNALS: Record<string, ProcessSignal> = {
  SIGINT: "interrupt",
  SIGTERM: "terminate",
  SIGKILL: "kill",
  SIGHUP: "hangup",
  SIGQUIT: "quit",
  SIGSTOP: "stop",
  SIGCONT: "continue",
  SIGUSR1: "user1",
  SIGUSR2: "user2",
};

/** Bytes, or text that is sent as UTF-8. */
export type Bytes = Uint8Array | ArrayBuffer | string;

/** Result of `run`. */
export interface RunResult<T = string> extends ProcessExit {
  /** Output of the command to stdout, or to its terminal. */
  stdout: T;
  /** Output of the command to stderr. */
  stderr: T;
}

/** A command failed, and `check` asked for an error. */
export class CommandFailedError extends ExecServerError {
  /** The complete result. */
  readonly result: RunResult<string | Uint8Array>;

  /** @internal */
  constructor(argv: readonly string[], result: RunResult<string | Uint8Array>) {
    const how = result.signal === null ? `status ${result.exitCode}` : `signal ${result.signal}`;
    const text = typeof result.stderr === "string" ? result.stderr.trim().split("\n").at(-1) : "";
    super(`\`${argv.join(" ")}\` ended with ${how}${text === "" ? "" : `: ${text}`}`, "caller");
    this.result = result;
  }
}

/** A command was ended because its time was up. */
export class CommandTimeoutError extends ExecServerError {
  /** Result with the output until then. */
  readonly result: RunResult<string | Uint8Array>;

  /** @internal */
  constructor(
    argv: readonly string[],
    timeoutMs: number,
    result: RunResult<string | Uint8Array>,
  ) {
    super(`\`${argv.join(" ")}\` did not end within ${timeoutMs} ms`, "caller");
    this.result = result;
  }
}

/** Maximum bytes of one write: the server's queue holds 128 writes and 8 MiB. */
const WRITE_BYTES = 256 << 10;
/** Unanswered bytes of stdin. */
const WINDOW_BYTES = 2 << 20;

const encoder = new TextEncoder();

/** Converts to bytes. */
export function toBytes(data: Bytes): Uint8Array {
  if (typeof data === "string") {
    return encoder.encode(data);
  }
  return data instanceof Uint8Array ? data : new Uint8Array(data);
}

/** Standard input of a process. Every write has an id, so that nothing is written twice. */
export class ProcessInput {
  #client: SessionClient;
  #processId: string;
  #writeIdPrefix: string;
  #writes = 0;
  #unanswered = 0;
  #failure: unknown;
  #ended: Promise<void> | undefined;
  #room: (() => void)[] = [];
  #stream: WritableStream<Bytes> | undefined;
  #pty: boolean;

  /** @internal */
  constructor(client: SessionClient, processId: string, writeIdPrefix: string, pty: boolean) {
    this.#client = client;
    this.#processId = processId;
    this.#writeIdPrefix = writeIdPrefix;
    this.#pty = pty;
  }

  /**
   * Writes bytes. Resolves when there is room for more; a failed write is reported by the next one
   * and by {@link end}.
   */
  async write(data: Bytes): Promise<void> {
    if (this.#ended !== undefined && !this.#pty) {
      throw new StdinClosedError(this.#processId, "this program ended it");
    }
    const bytes = toBytes(data);
    for (let offset = 0; offset < bytes.byteLength; offset += WRITE_BYTES) {
      while (this.#unanswered >= WINDOW_BYTES && this.#failure === undefined) {
        await this.#changed();
      }
      this.#check();
      // A copy: it may have to be sent again after the caller has reused its memory.
      this.#send(bytes.slice(offset, offset + WRITE_BYTES));
    }
    this.#check();
  }

  /** Ends stdin after all writes. A terminal gets its end-of-file character. */
  end(): Promise<void> {
    this.#ended ??= this.#end();
    return this.#ended;
  }

  async #end(): Promise<void> {
    if (this.#client.isStock) {
      throw UnsupportedError.feature("end of stdin");
    }
    const params = { processId: this.#processId, writeId: this.#nextWriteId() };
    const { result } = await this.#client.call("process/closeStdin", params, {
      retry: true,
    });
    if (result.status === "starting") {
      throw new StdinClosedError(this.#processId, result.status);
    }
    await this.flush();
  }

  /** Waits until the server has accepted everything. */
  async flush(): Promise<void> {
    while (this.#unanswered > 0 && this.#failure === undefined) {
      await this.#changed();
    }
    this.#check();
  }

  /** The same as a Web Stream: closing it ends stdin. */
  get stream(): WritableStream<Bytes> {
    this.#stream ??= new WritableStream<Bytes>({
      write: (chunk) => this.write(chunk),
      close: () => this.end(),
      abort: () => this.end().catch(() => {}),
    });
    return this.#stream;
  }

  #nextWriteId(): string {
    this.#writes += 1;
    return `${this.#writeIdPrefix}${this.#writes}`;
  }

  #send(bytes: Uint8Array): void {
    const params = { processId: this.#processId, writeId: this.#nextWriteId() };
    this.#unanswered += bytes.byteLength;
    const data = { name: "chunk", bytes };
    this.#client
      .call("process/write", params, { retry: true, data })
      .then(({ result: { status } }) => {
        if (status !== "accepted") {
          this.#failure ??= new StdinClosedError(this.#processId, status);
        }
      })
      .catch((error: unknown) => {
        this.#failure ??= error;
      })
      .finally(() => {
        this.#unanswered -= bytes.byteLength;
        for (const wake of this.#room.splice(0)) {
          wake();
        }
      });
  }

  #changed(): Promise<void> {
    return new Promise((resolve) => this.#room.push(resolve));
  }

  #check(): void {
    if (this.#failure !== undefined) {
      throw this.#failure;
    }
  }
}

/**
 * A process. Its output waits here until the program reads it. Unread output pauses the process at
 * about 2 MiB of each stream.
 */
export class Process {
  /** Id of the process on the server. Not a pid. */
  readonly id: string;
  /** Mechanism of its sandbox: `none`, `linuxSeccomp` …, if the server says so. */
  readonly sandboxType: string | undefined;
  /** Standard input; `undefined` if it was started without. */
  readonly stdin: ProcessInput | undefined;

  #client: SessionClient;
  #events: ProcessEvents;
  #stdout: ReadableStream<Uint8Array> | undefined;
  #stderr: ReadableStream<Uint8Array> | undefined;

  /** @internal */
  constructor(
    client: SessionClient,
    events: ProcessEvents,
    stdin: ProcessInput | undefined,
    sandboxType: string | undefined,
  ) {
    this.id = events.id;
    this.#client = client;
    this.#events = events;
    this.stdin = stdin;
    this.sandboxType = sandboxType;
  }

  /** Output, or that of the terminal. */
  get stdout(): ReadableStream<Uint8Array> {
    this.#stdout ??= this.#events.stdout.stream();
    return this.#stdout;
  }

  /** Error output; empty on a terminal. */
  get stderr(): ReadableStream<Uint8Array> {
    this.#stderr ??= this.#events.stderr.stream();
    return this.#stderr;
  }

  /** Pid on the server's host; `undefined` on servers that do not report it. */
  get pid(): number | undefined {
    return this.#events.osPid;
  }

  /** When it started, in Unix milliseconds; `undefined` on servers that do not report it. */
  get startedAtMs(): number | undefined {
    return this.#events.startedAtMs;
  }

  /** Whether it belongs to the server instead of this session. */
  get detached(): boolean {
    return this.#events.owner === "server";
  }

  /**
   * Number of output events of a detached process that were evicted before this client could read
   * them. Output of other processes is never evicted unread; if that fails, reading it fails.
   */
  get missedEvents(): number {
    return this.#events.missed;
  }

  /** How the command exited; `undefined` while it runs. */
  get exit(): ProcessExit | undefined {
    return this.#events.exit;
  }

  /** Resolves when the command has exited. Its output may follow. */
  get exited(): Promise<ProcessExit> {
    return this.#events.awaiting(this.#events.exited);
  }

  /**
   * Waits until the command has exited and its output has ended. Unread output pauses the process:
   * read it, or start the process with `stdout: "ignore"`.
   */
  wait(options: { signal?: AbortSignal } = {}): Promise<ProcessExit> {
    return this.#events.awaiting(withSignal(this.#events.ended, options.signal));
  }

  /**
   * Sends a signal to the process group; without an argument, SIGTERM. To end everything that the
   * command started, use {@link terminate}.
   */
  async kill(signal: SignalName = "SIGTERM"): Promise<void> {
    const name = SIGNALS[signal] ?? (signal as ProcessSignal);
    if (!Object.values(SIGNALS).includes(name)) {
      throw new InvalidArgumentError(
        `unknown signal \`${signal}\`; known are ${Object.keys(SIGNALS).join(", ")}`,
      );
    }
    if (this.#client.isStock && name !== "interrupt") {
      if (name === "kill" || name === "terminate" || name === "hangup" || name === "quit") {
        await this.terminate();
        return;
      }
      throw UnsupportedError.feature(`signal ${signal}`);
    }
    const params = { processId: this.id, signal: name };
    const options = { retry: name === "kill", urgent: true };
    await this.#client.call("process/signal", params, options);
  }

  /**
   * Ends the command and its whole tree. With `graceMs`, SIGTERM first and SIGKILL after that
   * time. Returns whether the command was running.
   */
  terminate(options: { graceMs?: number } = {}): Promise<boolean> {
    const { graceMs } = options;
    if (this.#client.isStock) {
      return this.#client.terminate(this.id);
    }
    const mode: TerminateMode =
      graceMs === undefined ? { type: "force" } : { type: "graceful", timeoutMs: graceMs };
    return this.#client.terminate(this.id, mode);
  }

  /** Changes the size of the terminal. */
  async resize(size: { rows: number; cols: number }): Promise<void> {
    const { rows, cols } = size;
    await this.#client.call("process/resize", { processId: this.id, rows, cols }, { retry: true });
  }

  /** Returns head and tail of the output, without consuming it. */
  async snapshot(): Promise<ProcessSnapshot> {
    const params = { processId: this.id };
    const answer = await this.#client.call("process/snapshot", params, { retry: true });
    const { truncated, omittedBytes } = answer.result;
    return {
      stdout: answer.data("stdout"),
      stderr: answer.data("stderr"),
      terminal: answer.data("terminal"),
      truncated,
      omittedBytes,
    };
  }

  /**
   * Stops following a detached process, which runs on. With `forget`, a finished one is removed
   * from the server.
   */
  async release(options: { forget?: boolean } = {}): Promise<void> {
    const { forget = false } = options;
    const params = { processId: this.id, ...(forget ? { forget } : {}) };
    this.#events.released = true;
    this.#client.forget(this.#events);
    this.#events.discard();
    this.#events.stdout.end();
    this.#events.stderr.end();
    try {
      await this.#client.call("process/release", params, { retry: true });
    } catch (error) {
      if (!(error instanceof RemoteError) || forget) {
        throw error;
      }
    }
  }
}

/** Head and tail of the output of a process. */
export interface ProcessSnapshot {
  /** Standard output. */
  stdout: Uint8Array;
  /** Error output. */
  stderr: Uint8Array;
  /** Output of a terminal. */
  terminal: Uint8Array;
  /** Whether the middle was evicted. */
  truncated: boolean;
  /** Bytes of the middle. */
  omittedBytes: number;
}

/** Rejects early when the signal is aborted; the promise goes on. */
export function withSignal<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const abort = (): void =>
      reject(signal.reason ?? new DOMException("This operation was aborted", "AbortError"));
    if (signal.aborted) {
      abort();
      return;
    }
    signal.addEventListener("abort", abort, { once: true });
    promise
      .then(resolve, reject)
      .finally(() => signal.removeEventListener("abort", abort));
  });
}
