/**
 * A process with the shape of `node:child_process`.
 *
 * @module
 */

import { EventEmitter } from "node:events";
import { Readable, Writable } from "node:stream";

import type { Environment, SpawnOptions } from "./environment.js";
import { describeError } from "./errors.js";
import type { OutputQueue } from "./output-queue.js";
import type { Process, SignalName } from "./process.js";
import type { ProcessEvents, ProcessExit } from "./process-events.js";

/** Events of a {@link RemoteChildProcess}. */
export interface RemoteChildProcessEvents {
  /** The command runs. */
  spawn: [];
  /** It did not start, or its output is lost. */
  error: [error: Error];
  /** The command has exited. Output may follow. */
  exit: [code: number | null, signal: string | null];
  /** It has exited and its output has ended. */
  close: [code: number | null, signal: string | null];
}

/**
 * Starts a command like `child_process.spawn`: returns at once, emits `spawn`, `error`, `exit` and
 * `close`, and has Node streams.
 */
export function spawn(
  environment: Environment,
  command: string,
  args: readonly string[] = [],
  options: SpawnOptions = {},
): RemoteChildProcess {
  return new RemoteChildProcess(environment, [command, ...args], options);
}

/** A process of an environment with the shape of `ChildProcess`. */
export class RemoteChildProcess extends EventEmitter<RemoteChildProcessEvents> {
  /** Input; `null` if it was started with `stdin: "ignore"`. */
  readonly stdin: Writable | null;
  /** Output, or that of the terminal; `null` if it is ignored. */
  readonly stdout: Readable | null;
  /** Error output; `null` if it is ignored. */
  readonly stderr: Readable | null;
  /** The command with its arguments. */
  readonly spawnargs: readonly string[];
  /** The command. */
  readonly spawnfile: string;
  /** Status, once it has exited by itself. */
  exitCode: number | null = null;
  /** Signal that killed it. */
  signalCode: string | null = null;
  /** Whether a signal was sent. */
  killed = false;

  #started: Promise<Process>;
  #process: Process | undefined;

  /** @internal */
  constructor(environment: Environment, argv: readonly string[], options: SpawnOptions) {
    super();
    this.spawnargs = argv;
    this.spawnfile = argv[0] ?? "";
    const start = environment.start(argv, options);
    this.#started = start.then(({ process }) => process);
    this.#started.catch(() => {});
    const events = start.then(({ events }) => events);
    events.catch(() => {});
    const stdinMode = options.stdin ?? "pipe";
    this.stdin = stdinMode === "pipe" || options.pty ? this.#input() : null;
    this.stdout =
      options.stdout === "ignore" ? null : output(events.then((events) => events.stdout));
    this.stderr =
      options.stderr === "ignore" ? null : output(events.then((events) => events.stderr));
    void this.#follow(start);
  }

  /** The process with Web Streams; do not read both. Rejects if it does not start. */
  get started(): Promise<Process> {
    return this.#started;
  }

  /** Pid on the server's host, once it runs. */
  get pid(): number | undefined {
    return this.#process?.pid;
  }

  /** Sends a signal to the process group. Returns whether the process runs. */
  kill(signal: SignalName = "SIGTERM"): boolean {
    if (this.exitCode !== null || this.signalCode !== null) {
      return false;
    }
    this.killed = true;
    this.#started
      .then((process) => process.kill(signal))
      .catch((error: unknown) => {
        if (this.#process !== undefined) {
          this.emit("error", toError(error));
        }
      });
    return true;
  }

  /** Changes the size of the terminal. */
  async resize(size: { rows: number; cols: number }): Promise<void> {
    await (await this.#started).resize(size);
  }

  async #follow(start: Promise<{ process: Process; events: ProcessEvents }>): Promise<void> {
    try {
      const { process, events } = await start;
      this.#process = process;
      this.emit("spawn");
      const exit = await events.awaiting(events.exited);
      const [code, signal] = outcome(exit);
      this.exitCode = code;
      this.signalCode = signal;
      this.emit("exit", code, signal);
      for (const stream of [this.stdout, this.stderr]) {
        // As in Node: an unread stream does not delay the close.
        if (stream?.readableFlowing === null && stream.listenerCount("readable") === 0) {
          stream.resume();
        }
      }
      await events.awaiting(events.ended);
      for (const stream of [this.stdout, this.stderr]) {
        if (stream !== null && !stream.readableEnded && !stream.destroyed) {
          await new Promise((resolve) => stream.once("close", resolve));
        }
      }
      this.emit("close", code, signal);
    } catch (error) {
      this.emit("error", toError(error));
    }
  }

  #input(): Writable {
    const process = this.#started;
    return new Writable({
      write: (chunk: Buffer, _encoding, done) => {
        process.then(({ stdin }) => stdin?.write(chunk)).then(() => done(), done);
      },
      final: (done) => {
        process.then(({ stdin }) => stdin?.end()).then(() => done(), done);
      },
      destroy: (error, done) => {
        process.then(({ stdin }) => stdin?.end()).catch(() => {});
        done(error);
      },
    });
  }
}

/** A Node stream over a queue. */
function output(queue: Promise<OutputQueue>): Readable {
  let reading = false;
  queue.catch(() => {});
  const stream: Readable = new Readable({
    highWaterMark: 256 << 10,
    read() {
      if (!reading) {
        reading = true;
        void fill();
      }
    },
    destroy(error, done) {
      queue.then((queue) => queue.discard()).catch(() => {});
      done(error);
    },
  });
  const fill = async (): Promise<void> => {
    try {
      const source = await queue;
      for (;;) {
        const chunk = source.take() ?? (await source.next());
        if (chunk === undefined) {
          stream.push(null);
          return;
        }
        if (!stream.push(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength))) {
          break;
        }
      }
      reading = false;
    } catch (error) {
      // Not an end: a pipeline has to fail.
      stream.destroy(toError(error));
    }
  };
  // The process emits `error` as well; without this the program would have to handle each stream's.
  stream.on("error", () => {});
  return stream;
}

function outcome({ exitCode, signal }: ProcessExit): [number | null, string | null] {
  return signal === null ? [exitCode, null] : [null, signal];
}

function toError(error: unknown): Error {
  return error instanceof Error ? error : new Error(describeError(error));
}
