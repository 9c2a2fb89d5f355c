/**
 * The numbered events of one process: puts them in order, notices gaps, and decides what may be
 * acknowledged.
 *
 * @module
 */

import { decodeBase64 } from "./base64.js";
import { Deferred } from "./deferred.js";
import { type ExecServerError, OutputLostError, ProtocolError } from "./errors.js";
import { OutputQueue } from "./output-queue.js";
import type { OutputPage, OutputStream, ResourceUsage } from "./wire.js";

/** How a process ended. */
export interface ProcessExit {
  /** Status of the command, or 128 + n if signal n killed it; -1 if it is unknown (`lost`). */
  exitCode: number;
  /** POSIX name of the signal that killed it, such as `SIGKILL`. */
  signal: string | null;
  /** Why: `exit`, `signal`, `terminated`, `wallLimit`, `lost` …; `undefined` on stock servers. */
  cause: string | undefined;
  /** Resources that it used. */
  usage: ResourceUsage | undefined;
  /** Whether its sandbox probably denied something. */
  sandboxDenied: boolean;
}

/** An event of a process. */
export type ProcessEvent =
  | { seq: number; type: "output"; stream: OutputStream; data: Uint8Array }
  | { seq: number; type: "exited"; exit: ProcessExit }
  | { seq: number; type: "closed" };

/** Who owns a process: this session, or the server (detached). */
export type ProcessOwner = "session" | "server";

/** Events that may wait for earlier ones; as in the stock client. */
const MAX_EARLY_EVENTS = 256;
const MAX_EARLY_BYTES = 1 << 20;
/** Output of each stream that is acknowledged before the program has taken it. */
const WINDOW_BYTES = 1 << 20;
/** Maximum output that waits for the program. Output beyond it is dropped and read again later. */
const MAX_UNREAD_BYTES = 8 << 20;
/** Without `acknowledge` there is one window for the whole connection. */
export const LAG_BYTES = 1 << 20;
/** An acknowledgement is due after these bytes, so that the process never waits for one. */
const ACK_BYTES = 64 << 10;
const ACK_EVENTS = 256;

/** The connection of a process, as its events see it. */
export interface EventsOwner {
  /** Something was acknowledged, or a gap was noticed. */
  progress(events: ProcessEvents): void;
  /** Bytes were queued (positive) or taken (negative). */
  lag(bytes: number): void;
  /** The program begins (1) or ceases (-1) to wait for events of one more process. */
  awaited(change: 1 | -1): void;
  /** Whether unread output pauses the connection. */
  readonly pausesConnection: boolean;
}

/** State of one process on this client. */
export class ProcessEvents {
  readonly id: string;
  readonly owner: ProcessOwner;
  readonly stdout: OutputQueue;
  readonly stderr: OutputQueue;
  /** When it started; known of servers with the extension `lifecycle`. */
  startedAtMs: number | undefined;
  osPid: number | undefined;
  /** Events of a server-owned process that were evicted before this client could read them. */
  missed = 0;
  exit: ProcessExit | undefined;
  failure: ExecServerError | undefined;
  closed = false;
  /** A `process/read` is in flight. */
  reading = false;
  /** How many connections ended by a malformed message during the last `process/read`. */
  violations = 0;
  /** The last read was interrupted: read smaller pages. */
  readInterrupted = false;
  /** A read is needed whether or not there is a gap. */
  readDue = false;
  /** Detached from a server-owned process, because the program does not read its output. */
  suspended = false;
  /** A `process/attach` is in flight. */
  attaching = false;
  /** Its start or its first attach is not answered yet. */
  opening = true;
  /** The handle is released: keep nothing. */
  released = false;

  #owner: EventsOwner;
  #next = 1;
  #early = new Map<number, ProcessEvent>();
  #earlyBytes = 0;
  #droppedThrough = 0;
  /**
   * Events above the window, oldest first. Each can be acknowledged once its stream has been taken
   * up to `below`.
   */
  #held: { seq: number; queue: OutputQueue; below: number; bytes: number }[] = [];
  #ackable = 0;
  #ackableBytes = 0;
  #acked = 0;
  #ackedBytes = 0;
  #ackUnconfirmed = false;
  #lagBytes = 0;
  /** Output that the program has not taken. */
  #unread = 0;
  #lagReleased = false;
  /** Callers that wait for an event. */
  #waiters = 0;
  #isAwaited = false;
  #exited = new Deferred<ProcessExit>();
  #ended = new Deferred<ProcessExit>();

  constructor(id: string, owner: ProcessOwner, eventsOwner: EventsOwner, after = 0) {
    this.id = id;
    this.owner = owner;
    this.#owner = eventsOwner;
    this.#next = after + 1;
    this.#ackable = after;
    this.#acked = after;
    const taken = (bytes: number): void => {
      this.#unread -= bytes;
      if (!this.#lagReleased) {
        this.#lagBytes -= bytes;
        eventsOwner.lag(-bytes);
        this.#updateAwaited();
      }
      if (this.#held.length > 0) {
        this.#advance();
      }
      if ((this.readDue || this.suspended) && this.hasRoom) {
        eventsOwner.progress(this);
      }
    };
    const wait = (change: 1 | -1): void => this.#countWaiter(change);
    this.stdout = new OutputQueue(taken, wait);
    this.stderr = new OutputQueue(taken, wait);
    // An unobserved rejection must not end the program.
    this.#exited.promise.catch(() => {});
    this.#ended.promise.catch(() => {});
  }

  /** Resolves when the command has exited. */
  get exited(): Promise<ProcessExit> {
    return this.#exited.promise;
  }

  /** Resolves when the command has exited and its output has ended. */
  get ended(): Promise<ProcessExit> {
    return this.#ended.promise;
  }

  /** Notes that the program waits for an event until a promise is settled. Returns the promise. */
  awaiting<T>(promise: Promise<T>): Promise<T> {
    this.#countWaiter(1);
    const settled = (): void => this.#countWaiter(-1);
    promise.then(settled, settled);
    return promise;
  }

  #countWaiter(change: 1 | -1): void {
    this.#waiters += change;
    this.#updateAwaited();
  }

  /**
   * Reports whether the program waits for this process. A process whose own unread output pauses
   * the connection does not count: its reader has to go on first, as with `acknowledge`.
   */
  #updateAwaited(): void {
    const isAwaited = this.#waiters > 0 && this.#lagBytes < LAG_BYTES && !this.#lagReleased;
    if (isAwaited !== this.#isAwaited) {
      this.#isAwaited = isAwaited;
      this.#owner.awaited(isAwaited ? 1 : -1);
    }
  }

  /** Number of the last event in order. */
  get last(): number {
    return this.#next - 1;
  }

  /** Whether events are missing that the server should have. */
  get hasGap(): boolean {
    return this.#early.size > 0 || this.#droppedThrough >= this.#next;
  }

  /** Whether output was dropped that has to be read again. */
  get isBehind(): boolean {
    return this.suspended || this.#droppedThrough >= this.#next;
  }

  /** Whether the program reads fast enough to ask for more. */
  get hasRoom(): boolean {
    const maximum = this.#maxUnread;
    return this.#unread < (this.isBehind ? maximum / 2 : maximum);
  }

  /** Without `acknowledge` the server evicts sent output: it cannot be dropped and read again. */
  get #maxUnread(): number {
    const keepsAll = this.owner === "session" && this.#owner.pausesConnection;
    return keepsAll ? Infinity : MAX_UNREAD_BYTES;
  }

  /** Handles an event of the connection. */
  handle(event: ProcessEvent): void {
    if (this.failure !== undefined || this.closed || this.suspended) {
      return;
    }
    if (event.type === "output" && this.#unread >= this.#maxUnread) {
      // The server does not pause detached and durable processes. It keeps the output.
      if (this.owner === "server") {
        this.suspended = true;
      } else {
        this.#droppedThrough = Math.max(this.#droppedThrough, event.seq);
        this.readDue = true;
      }
      this.#owner.progress(this);
      return;
    }
    if (!Number.isSafeInteger(event.seq)) {
      throw new ProtocolError(`server sent an event of process \`${this.id}\` without a number`);
    }
    if (event.seq > this.#next) {
      if (this.owner === "server") {
        // Sent in order; what is missing was evicted.
        this.missed += event.seq - this.#next;
        this.#next = event.seq;
      } else if (this.#early.size >= MAX_EARLY_EVENTS || this.#earlyBytes >= MAX_EARLY_BYTES) {
        this.#droppedThrough = Math.max(this.#droppedThrough, event.seq);
        return;
      }
    }
    this.#insert(event);
    this.#owner.progress(this);
  }

  #insert(event: ProcessEvent): void {
    if (event.type === "closed" && event.seq === 0) {
      // The oldest servers do not number it: it follows everything else.
      event.seq = Math.max(this.last, ...this.#early.keys()) + 1;
    }
    if (event.seq < this.#next || this.#early.has(event.seq)) {
      return;
    }
    if (event.seq > this.#next) {
      this.#early.set(event.seq, event);
      this.#earlyBytes += eventBytes(event);
      return;
    }
    this.#deliver(event);
    for (;;) {
      const next = this.#early.get(this.#next);
      if (next === undefined) {
        return;
      }
      this.#early.delete(this.#next);
      this.#earlyBytes -= eventBytes(next);
      this.#deliver(next);
    }
  }

  #deliver(event: ProcessEvent): void {
    this.#next = event.seq + 1;
    switch (event.type) {
      case "output": {
        const queue = event.stream === "stderr" ? this.stderr : this.stdout;
        const bytes = event.data.byteLength;
        const before = queue.taken;
        queue.push(event.data);
        if (queue.taken === before) {
          this.#unread += bytes;
        }
        if (queue.taken === before && !this.#lagReleased) {
          this.#lagBytes += bytes;
          this.#owner.lag(bytes);
          this.#updateAwaited();
        }
        const below = queue.received - WINDOW_BYTES;
        if (this.#held.length === 0 && queue.taken >= below) {
          this.#ackable = event.seq;
          this.#ackableBytes += bytes;
        } else {
          this.#held.push({ seq: event.seq, queue, below, bytes });
        }
        return;
      }
      case "exited":
        this.exit = event.exit;
        this.#exited.resolve(event.exit);
        this.#hold(event.seq);
        return;
      case "closed":
        this.closed = true;
        this.#hold(event.seq);
        this.stdout.end();
        this.stderr.end();
        if (this.exit === undefined) {
          this.fail(new ProtocolError(`process \`${this.id}\` closed before it exited`));
        } else {
          this.#ended.resolve(this.exit);
        }
    }
  }

  #hold(seq: number): void {
    if (this.#held.length === 0) {
      this.#ackable = seq;
    } else {
      this.#held.push({ seq, queue: this.stdout, below: 0, bytes: 0 });
    }
  }

  #advance(): void {
    let count = 0;
    for (const { seq, queue, below, bytes } of this.#held) {
      if (queue.taken < below) {
        break;
      }
      count += 1;
      this.#ackable = seq;
      this.#ackableBytes += bytes;
    }
    if (count > 0) {
      this.#held.splice(0, count);
      this.#owner.progress(this);
    }
  }

  /** Returns the number to acknowledge, if an acknowledgement is due. */
  takeAck(): number | undefined {
    const ended = this.exit !== undefined && this.#ackable === this.last;
    const due =
      (this.#ackUnconfirmed && this.#ackable > 0) ||
      (ended && this.#ackable > this.#acked) ||
      this.#ackable - this.#acked >= ACK_EVENTS ||
      this.#ackableBytes - this.#ackedBytes >= ACK_BYTES;
    if (!due) {
      return undefined;
    }
    this.#acked = this.#ackable;
    this.#ackedBytes = this.#ackableBytes;
    this.#ackUnconfirmed = false;
    return this.#acked;
  }

  /** Whether everything up to the close is acknowledged. */
  get isDone(): boolean {
    return this.closed && this.#acked === this.last;
  }

  /** Drops the output that is here and that will come. */
  discard(): void {
    this.stdout.discard();
    this.stderr.discard();
  }

  /** Stops counting what is not taken: nothing more will come. */
  releaseLag(): void {
    if (!this.#lagReleased) {
      this.#lagReleased = true;
      this.#owner.lag(-this.#lagBytes);
      this.#updateAwaited();
    }
  }

  /** Prepares for another connection. */
  disconnect(): void {
    this.#ackUnconfirmed = true;
    if (this.reading) {
      this.reading = false;
      this.readInterrupted = true;
    }
    this.readDue = true;
    this.attaching = false;
  }

  /**
   * Handles the response to `process/read` after {@link last}. Returns whether more pages have to
   * be read.
   */
  handlePage(page: OutputPage, maxBytes: number | undefined): boolean {
    let bytes = 0;
    for (const { seq, stream, chunk } of page.chunks) {
      const data = decodeBase64(chunk);
      bytes += data.byteLength;
      this.#insert({ seq, type: "output", stream, data });
    }
    // A page is cut at `maxBytes`, and at about 8 MiB if it comes from a journal.
    const cut = maxBytes !== undefined || bytes >= CUT_PAGE_BYTES;
    const exit = exitOf(page);
    if (page.chunks.length > 0 && cut) {
      if (exit !== undefined && page.exitSeq != null && this.exit === undefined) {
        this.#insert({ seq: page.exitSeq, type: "exited", exit });
      }
      return true;
    }
    const end = page.nextSeq - 1;
    if (exit !== undefined && this.exit === undefined) {
      const seq = page.exitSeq ?? this.#onlyMissing(page.closed ? end - 1 : end);
      if (seq !== undefined) {
        this.#insert({ seq, type: "exited", exit });
      }
    }
    if (page.closed) {
      this.#insert({ seq: end, type: "closed" });
    }
    if (this.last < end) {
      const early = Math.min(...this.#early.keys(), end + 1);
      this.fail(new OutputLostError(this.id, this.#next, early - 1));
    }
    return this.hasGap && this.failure === undefined;
  }

  /** Older servers do not number the exit in a page: it is the only number that is missing. */
  #onlyMissing(end: number): number | undefined {
    const missing: number[] = [];
    for (let seq = this.#next; seq <= end && missing.length < 2; seq += 1) {
      if (!this.#early.has(seq)) {
        missing.push(seq);
      }
    }
    return missing.length === 1 ? missing[0] : undefined;
  }

  /** Fails everything that waits for this process. */
  fail(error: ExecServerError): void {
    if (this.failure !== undefined || (this.closed && this.exit !== undefined)) {
      return;
    }
    this.failure = error;
    this.#early.clear();
    this.#exited.reject(error);
    this.#ended.reject(error);
    this.stdout.fail(error);
    this.stderr.fail(error);
  }
}

const CUT_PAGE_BYTES = 4 << 20;

function eventBytes(event: ProcessEvent): number {
  return event.type === "output" ? event.data.byteLength : 0;
}

function exitOf(page: OutputPage): ProcessExit | undefined {
  if (typeof page.exitCode !== "number") {
    return undefined;
  }
  return {
    exitCode: page.exitCode,
    signal: page.signal ?? null,
    cause: page.cause ?? undefined,
    usage: page.usage ?? undefined,
    sandboxDenied: page.sandboxDenied ?? false,
  };
}
