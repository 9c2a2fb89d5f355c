/**
 * Tunnels: TCP connections of the environment as byte streams (extension `tunnels`).
 *
 * @module
 */

import { AsyncEvents } from "./async-events.js";
import { Deferred } from "./deferred.js";
import { ClosedError, ExecServerError, UnsupportedError } from "./errors.js";
import { dataMember, type RpcMessage } from "./message.js";
import { OutputQueue } from "./output-queue.js";
import { type Bytes, toBytes } from "./process.js";
import type { ConnectionListener, SessionClient } from "./session-client.js";

/** A tunnel was ended by the other side before its streams were. */
export class TunnelClosedError extends ExecServerError {
  /** @internal */
  constructor(reason: string) {
    super(`tunnel closed: ${reason}`, "server");
  }
}

/** A TCP port of an environment. */
export interface ListeningPort {
  port: number;
  /** Address that it is bound to. */
  address: string;
  /** Process of the session that has it open, itself or in its tree. */
  processId?: string | null;
  /** Pid of the program that has it open, if the server may know it. */
  osPid?: number | null;
  /** Name of that program. */
  program?: string | null;
}

/** One event of a tunnel. */
const CHUNK_BYTES = 64 << 10;
/** What an end may have sent and the other one not delivered. */
const WINDOW_BYTES = 1 << 20;
const ACK_BYTES = 64 << 10;
const ACK_EVENTS = 64;
const MAX_INCOMING = 1024;

/** A TCP connection of the environment. */
export class Tunnel {
  /** What the other end sends. Its end is the end of that direction only. */
  readonly readable: ReadableStream<Uint8Array>;
  /** What is sent to the other end. Closing it ends that direction only. */
  readonly writable: WritableStream<Bytes>;

  #table: TunnelTable;
  #id: string;
  #received = 0;
  #acknowledged = 0;
  #held: { seq: number; below: number }[] = [];
  #deliverable = 0;
  #ackedBytes = 0;
  #input: OutputQueue;
  #inputEnd: number | undefined;
  #sent = 0;
  #unacknowledged: { seq: number; bytes: Uint8Array }[] = [];
  #unacknowledgedBytes = 0;
  #shutdown: number | undefined;
  #shutdownDone = false;
  #changed: Deferred<void> | undefined;
  #error: Error | undefined;
  #closed = new Deferred<void>();

  /** @internal */
  constructor(table: TunnelTable, id: string) {
    this.#table = table;
    this.#id = id;
    this.#input = new OutputQueue(() => this.#advance());
    this.readable = this.#input.stream();
    this.writable = new WritableStream<Bytes>({
      write: (chunk) => this.#write(toBytes(chunk)),
      close: () => this.#end(),
      abort: () => this.close(),
    });
  }

  /** Resolves when both directions have ended, and rejects if the tunnel breaks. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  /** Ends both directions at once. */
  close(reason?: string): void {
    if (this.#error === undefined) {
      const params = { tunnelId: this.#id, ...(reason === undefined ? {} : { reason }) };
      this.#table.client.notify("tunnel/close", params);
      this.fail(new ClosedError("the tunnel is closed"));
    }
  }

  async #write(bytes: Uint8Array): Promise<void> {
    for (let offset = 0; offset < bytes.byteLength; offset += CHUNK_BYTES) {
      while (this.#unacknowledgedBytes >= WINDOW_BYTES && this.#error === undefined) {
        await this.#wait();
      }
      this.#check();
      const chunk = bytes.slice(offset, offset + CHUNK_BYTES);
      this.#sent += 1;
      this.#unacknowledged.push({ seq: this.#sent, bytes: chunk });
      this.#unacknowledgedBytes += chunk.byteLength;
      this.#send(this.#sent, chunk);
    }
  }

  async #end(): Promise<void> {
    this.#check();
    this.#shutdown = this.#sent;
    this.#table.client.notify("tunnel/shutdown", { tunnelId: this.#id, seq: this.#sent });
    while (this.#unacknowledged.length > 0 && this.#error === undefined) {
      await this.#wait();
    }
    this.#check();
    this.#shutdownDone = true;
    this.#finish();
  }

  #send(seq: number, bytes: Uint8Array): void {
    const params = { tunnelId: this.#id, seq };
    this.#table.client.notify("tunnel/data", params, { name: "chunk", bytes });
  }

  /** @internal */
  data(seq: number, bytes: Uint8Array): void {
    if (seq !== this.#received + 1 || this.#error !== undefined) {
      return;
    }
    this.#received = seq;
    this.#input.push(bytes);
    this.#held.push({ seq, below: this.#input.received - WINDOW_BYTES });
    this.#advance();
    this.#checkInputEnd();
  }

  #advance(): void {
    while ((this.#held[0]?.below ?? Infinity) <= this.#input.taken) {
      this.#deliverable = this.#held.shift()?.seq ?? this.#deliverable;
    }
    const bytes = this.#input.taken - this.#ackedBytes;
    const events = this.#deliverable - this.#acknowledged;
    const ended = this.#inputEnd !== undefined && this.#deliverable === this.#inputEnd;
    if (events > 0 && (bytes >= ACK_BYTES || events >= ACK_EVENTS || ended)) {
      this.#acknowledge();
    }
  }

  #acknowledge(): void {
    this.#acknowledged = this.#deliverable;
    this.#ackedBytes = this.#input.taken;
    const params = { tunnelId: this.#id, seq: this.#acknowledged };
    this.#table.client.notify("tunnel/acknowledge", params);
  }

  /** @internal */
  acknowledged(seq: number): void {
    let count = 0;
    for (const chunk of this.#unacknowledged) {
      if (chunk.seq > seq) {
        break;
      }
      this.#unacknowledgedBytes -= chunk.bytes.byteLength;
      count += 1;
    }
    this.#unacknowledged.splice(0, count);
    this.#wake();
  }

  /** @internal */
  peerShutdown(seq: number): void {
    this.#inputEnd = seq;
    this.#advance();
    this.#checkInputEnd();
  }

  #checkInputEnd(): void {
    if (this.#inputEnd !== undefined && this.#received >= this.#inputEnd && !this.#input.ended) {
      this.#input.end();
      this.#finish();
    }
  }

  #finish(): void {
    if (this.#input.ended && this.#shutdownDone && this.#error === undefined) {
      this.#table.forget(this.#id);
      this.#closed.resolve();
    }
  }

  /** @internal Sends again what may have been lost. */
  resume(): void {
    for (const { seq, bytes } of this.#unacknowledged) {
      this.#send(seq, bytes);
    }
    if (this.#shutdown !== undefined) {
      this.#table.client.notify("tunnel/shutdown", { tunnelId: this.#id, seq: this.#shutdown });
    }
    this.#acknowledge();
  }

  /** @internal */
  peerClosed(reason: string | undefined): void {
    if (reason === undefined && this.#input.ended) {
      this.#shutdownDone = true;
      this.#unacknowledged = [];
      this.#unacknowledgedBytes = 0;
      this.#finish();
      this.#wake();
      return;
    }
    this.fail(new TunnelClosedError(reason ?? "the other side has ended it"));
  }

  /** @internal */
  fail(error: Error): void {
    if (this.#error === undefined) {
      this.#error = error;
      this.#table.forget(this.#id);
      this.#input.fail(error);
      this.#closed.promise.catch(() => {});
      this.#closed.reject(error);
      this.#wake();
    }
  }

  #check(): void {
    if (this.#error !== undefined) {
      throw this.#error;
    }
  }

  #wait(): Promise<void> {
    this.#changed ??= new Deferred();
    return this.#changed.promise;
  }

  #wake(): void {
    const changed = this.#changed;
    this.#changed = undefined;
    changed?.resolve();
  }
}

/** Accepts TCP connections of the environment. Iterate it; leaving the loop closes it. */
export class TunnelListener implements AsyncIterable<Tunnel> {
  /** Port that it listens on. */
  readonly port: number;
  #close: () => void;
  #incoming: AsyncEvents<Tunnel>;

  /** @internal */
  constructor(port: number, incoming: AsyncEvents<Tunnel>, close: () => void) {
    this.port = port;
    this.#incoming = incoming;
    this.#close = close;
  }

  /** Stops listening. Open tunnels stay. */
  close(): void {
    this.#close();
    this.#incoming.end();
  }

  /** Iterates over the accepted connections. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Tunnel> {
    try {
      yield* this.#incoming;
    } finally {
      this.close();
    }
  }
}

/** The tunnels of one environment. */
export class TunnelTable {
  readonly client: SessionClient;
  #tunnels = new Map<string, Tunnel>();
  #listeners = new Map<string, AsyncEvents<Tunnel>>();
  #ids = 0;
  #prefix = crypto.getRandomValues(new Uint32Array(1))[0]?.toString(36) ?? "";

  constructor(client: SessionClient) {
    this.client = client;
    const { notifications } = client;
    const on = <P>(method: string, act: (params: P, message: RpcMessage) => void): void => {
      notifications.set(method, act as (params: never, message: RpcMessage) => void);
    };
    on<TunnelEvent>("tunnel/data", ({ tunnelId, seq, ...rest }, message) => {
      const chunk = dataMember(message, rest as Record<string, unknown>, "chunk");
      this.#tunnels.get(tunnelId)?.data(seq, chunk);
    });
    on<TunnelEvent>("tunnel/acknowledge", ({ tunnelId, seq }) => {
      this.#tunnels.get(tunnelId)?.acknowledged(seq);
    });
    on<TunnelEvent>("tunnel/shutdown", ({ tunnelId, seq }) => {
      this.#tunnels.get(tunnelId)?.peerShutdown(seq);
    });
    on<{ tunnelId: string; reason?: string }>("tunnel/close", ({ tunnelId, reason }) => {
      this.#tunnels.get(tunnelId)?.peerClosed(reason);
    });
    on<{ listenId: string; tunnelId: string }>("tunnel/incoming", ({ listenId, tunnelId }) => {
      const incoming = this.#listeners.get(listenId);
      if (incoming === undefined || this.#tunnels.has(tunnelId)) {
        return;
      }
      const tunnel = this.#add(tunnelId);
      if (!incoming.push(tunnel)) {
        tunnel.close("too many connections wait");
      }
    });
    const listener: ConnectionListener = {
      disconnected: () => {},
      connected: (sameSession) => {
        for (const tunnel of [...this.#tunnels.values()]) {
          if (sameSession) {
            tunnel.resume();
          } else {
            tunnel.fail(new TunnelClosedError("its session has ended"));
          }
        }
      },
      lost: (error) => {
        for (const tunnel of [...this.#tunnels.values()]) {
          tunnel.fail(error);
        }
        for (const incoming of this.#listeners.values()) {
          incoming.fail(error);
        }
        this.#listeners.clear();
      },
    };
    client.listeners.add(listener);
  }

  async open(options: {
    port: number;
    host?: string;
    processId?: string;
    signal?: AbortSignal;
  }): Promise<Tunnel> {
    this.#require();
    const { signal, ...target } = options;
    const tunnelId = this.#newId();
    const tunnel = this.#add(tunnelId);
    try {
      const onLateResult = (): void => tunnel.close();
      await this.client.callUnchecked("tunnel/open", { tunnelId, ...target }, {
        retry: true,
        signal,
        onLateResult,
      });
      return tunnel;
    } catch (error) {
      if (signal?.aborted !== true) {
        tunnel.fail(error as Error);
      }
      throw error;
    }
  }

  async listen(options: {
    port: number;
    host?: string;
    processId?: string;
  }): Promise<TunnelListener> {
    this.#require();
    const listenId = this.#newId();
    const incoming = new AsyncEvents<Tunnel>(MAX_INCOMING);
    this.#listeners.set(listenId, incoming);
    try {
      const answer = await this.client.callUnchecked<{ port: number }>(
        "tunnel/listen",
        { listenId, ...options },
        { retry: true },
      );
      return new TunnelListener(answer.result.port, incoming, () => {
        if (this.#listeners.delete(listenId)) {
          this.client.notify("tunnel/close", { tunnelId: listenId });
        }
      });
    } catch (error) {
      this.#listeners.delete(listenId);
      throw error;
    }
  }

  forget(id: string): void {
    this.#tunnels.delete(id);
  }

  #add(id: string): Tunnel {
    const tunnel = new Tunnel(this, id);
    tunnel.closed.catch(() => {});
    this.#tunnels.set(id, tunnel);
    return tunnel;
  }

  #newId(): string {
    this.#ids += 1;
    return `${this.#prefix}-${this.#ids}`;
  }

  #require(): void {
    if (!this.client.grants("tunnels")) {
      throw UnsupportedError.feature("tunnels");
    }
  }
}

interface TunnelEvent {
  tunnelId: string;
  seq: number;
}
