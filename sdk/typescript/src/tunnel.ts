/**
 * Tunnels: TCP connections of the environment as byte streams (extension `tunnels`).
 *
 * Each end keeps its events until the other one acknowledges them, and repeats them on the next
 * connection; duplicates are dropped by number.
 *
 * @module
 */

import { AsyncEvents } from "./async-events.js";
import { Deferred } from "./deferred.js";
import { abortReason, ClosedError, ExecServerError, UnsupportedError } from "./errors.js";
import { dataMember, type RpcMessage } from "./message.js";
import { OutputQueue } from "./output-queue.js";
import { type Bytes, toBytes } from "./process.js";
import type { ConnectionListener, SessionClient } from "./session-client.js";
import type { SandboxPolicy } from "./wire.js";

/** A tunnel broke: one side of the TCP connection was reset, or its session has ended. */
export class TunnelClosedError extends ExecServerError {
  /** @internal */
  constructor(reason: string) {
    super(`tunnel closed: ${reason}`, "server");
  }
}

/** Where a tunnel leads. */
export interface TunnelTarget {
  /** TCP port. */
  port: number;
  /** Name or address, resolved on the host; for a listener an address. Default: its loopback. */
  host?: string;
  /** Uses the network of this process of the session. */
  processId?: string;
  /** Policy that must allow the connection. */
  sandbox?: SandboxPolicy;
}

/** Size of an event in addition to its bytes. */
const EVENT_BYTES = 128;
/** Maximum unacknowledged bytes of a tunnel. */
const WINDOW_BYTES = 1 << 20;
/** Part of the window that each tunnel keeps when all tunnels together reach the shared limit. */
const RESERVED_BYTES = 64 << 10;
/** Unacknowledged bytes of all tunnels at which each tunnel has only its reserved part. */
const SHARED_BYTES = 64 << 20;
/** One event fits in the reserved part. */
const CHUNK_BYTES = RESERVED_BYTES - EVENT_BYTES;
/** An acknowledgement is due after these bytes. */
const ACK_BYTES = 64 << 10;
const ACK_DRAINED_BYTES = 16 << 10;
const ACK_EVENTS = 64;
const MAX_INCOMING = 1024;
/** Maximum tunnels and listeners of a session. */
const MAX_CLOSES = 1024 + 64;

interface SentEvent {
  seq: number;
  /** Absent: the shutdown. */
  bytes: Uint8Array | undefined;
}

/** A TCP connection of the environment. */
export class Tunnel {
  /** Bytes from the other end. The end of this stream is the end of that direction only. */
  readonly readable: ReadableStream<Uint8Array>;
  /** Bytes to the other end. Closing this stream ends that direction only. */
  readonly writable: WritableStream<Bytes>;

  #table: TunnelTable;
  #id: string;
  /** Nothing is sent about a tunnel before it is open. */
  #open: boolean;
  #received = 0;
  #input: OutputQueue;
  /** Events that the program has not taken, with the position of their last byte. */
  #arrived: { seq: number; end: number }[] = [];
  #delivered = 0;
  #acknowledged = 0;
  #acknowledgedBytes = 0;
  #inputShutdown: number | undefined;
  #sent = 0;
  #unacknowledged: SentEvent[] = [];
  #unacknowledgedBytes = 0;
  #outputShutdown: number | undefined;
  #changed: Deferred<void> | undefined;
  #error: Error | undefined;
  #ended = false;
  #closed = new Deferred<void>();

  /** @internal */
  constructor(table: TunnelTable, id: string, open: boolean) {
    this.#table = table;
    this.#id = id;
    this.#open = open;
    this.#closed.promise.catch(() => {});
    this.#input = new OutputQueue(() => this.#advance());
    this.readable = this.#input.stream();
    this.writable = new WritableStream<Bytes>({
      write: (chunk) => this.#write(toBytes(chunk)),
      close: () => this.#end(),
      abort: () => this.close("its writer gave up"),
    });
  }

  /** Resolves when both directions have ended, and rejects if the tunnel breaks. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  /** Ends both directions at once; what is not delivered is lost. */
  close(reason?: string): void {
    if (!this.#ended) {
      this.#table.sendClose(this.#id, reason);
      this.fail(new ClosedError("the tunnel is closed"));
    }
  }

  /** @internal The request to open it was answered. */
  opened(): void {
    this.#open = true;
    this.#advance();
  }

  async #write(bytes: Uint8Array): Promise<void> {
    for (let offset = 0; offset < bytes.byteLength; offset += CHUNK_BYTES) {
      // A copy: it may have to be sent again after the caller has reused its memory.
      const chunk = bytes.slice(offset, offset + CHUNK_BYTES);
      await this.#waitForRoom(chunk.byteLength + EVENT_BYTES);
      this.#sent += 1;
      this.#account(chunk.byteLength + EVENT_BYTES);
      const event = { seq: this.#sent, bytes: chunk };
      this.#unacknowledged.push(event);
      this.#send(event);
    }
  }

  async #waitForRoom(bytes: number): Promise<void> {
    for (;;) {
      this.#check();
      const own = this.#unacknowledgedBytes + bytes;
      const all = this.#table.unacknowledgedBytes + bytes;
      if (own <= WINDOW_BYTES && (all <= SHARED_BYTES || own <= RESERVED_BYTES)) {
        return;
      }
      this.#table.waiting.add(this);
      await this.#wait();
    }
  }

  #account(bytes: number): void {
    this.#unacknowledgedBytes += bytes;
    this.#table.unacknowledgedBytes += bytes;
  }

  async #end(): Promise<void> {
    this.#check();
    this.#sent += 1;
    this.#outputShutdown = this.#sent;
    const event = { seq: this.#sent, bytes: undefined };
    this.#unacknowledged.push(event);
    this.#send(event);
    while (this.#unacknowledged.length > 0 && !this.#ended) {
      await this.#wait();
    }
    this.#check();
  }

  #send({ seq, bytes }: SentEvent): void {
    const params = { tunnelId: this.#id, seq };
    if (bytes === undefined) {
      this.#table.client.notify("tunnel/shutdown", params);
    } else {
      this.#table.client.notify("tunnel/data", params, { name: "chunk", bytes });
    }
  }

  /** @internal */
  data(seq: number, bytes: Uint8Array): void {
    if (this.#isNext(seq)) {
      this.#input.push(bytes);
      this.#arrived.push({ seq, end: this.#input.received });
      this.#advance();
    }
  }

  /** @internal */
  shutdown(seq: number): void {
    if (this.#isNext(seq)) {
      this.#inputShutdown = seq;
      this.#arrived.push({ seq, end: this.#input.received });
      this.#input.end();
      this.#advance();
    }
  }

  /** Whether an event is new; breaks the tunnel if its number is wrong. */
  #isNext(seq: number): boolean {
    if (seq <= this.#received) {
      return false;
    }
    if (seq !== this.#received + 1 || this.#inputShutdown !== undefined) {
      const reason = `event ${seq} is out of order`;
      this.#table.sendClose(this.#id, reason);
      this.fail(new TunnelClosedError(reason));
      return false;
    }
    this.#received = seq;
    return true;
  }

  /** Acknowledges the events that the program has taken, if an acknowledgement is due. */
  #advance(): void {
    while ((this.#arrived[0]?.end ?? Infinity) <= this.#input.taken) {
      this.#delivered = this.#arrived.shift()?.seq ?? this.#delivered;
    }
    const events = this.#delivered - this.#acknowledged;
    if (events === 0 || !this.#open || this.#ended) {
      return;
    }
    const bytes = this.#input.taken - this.#acknowledgedBytes;
    const due =
      bytes >= ACK_BYTES ||
      events >= ACK_EVENTS ||
      (bytes >= ACK_DRAINED_BYTES && this.#arrived.length === 0) ||
      this.#delivered === this.#inputShutdown;
    if (due) {
      this.#acknowledge();
      this.#finish();
    }
  }

  #acknowledge(): void {
    this.#acknowledged = this.#delivered;
    this.#acknowledgedBytes = this.#input.taken;
    const params = { tunnelId: this.#id, seq: this.#acknowledged };
    this.#table.client.notify("tunnel/acknowledge", params);
  }

  /** @internal */
  acknowledged(seq: number): void {
    let count = 0;
    for (const event of this.#unacknowledged) {
      if (event.seq > seq) {
        break;
      }
      if (event.bytes !== undefined) {
        this.#account(-event.bytes.byteLength - EVENT_BYTES);
      }
      count += 1;
    }
    if (count > 0) {
      this.#unacknowledged.splice(0, count);
      this.#finish();
      this.#table.wake();
      this.wake();
    }
  }

  /** Ends the tunnel when both shutdowns are acknowledged. */
  #finish(): void {
    const isSent = this.#outputShutdown !== undefined && this.#unacknowledged.length === 0;
    const isRead = this.#inputShutdown !== undefined && this.#acknowledged === this.#inputShutdown;
    if (isSent && isRead) {
      this.#settle();
      this.#closed.resolve();
    }
  }

  /** @internal Repeats the acknowledgement, and the events that may have been lost. */
  resume(): void {
    if (this.#open) {
      this.#acknowledge();
      for (const event of this.#unacknowledged) {
        this.#send(event);
      }
    }
  }

  /** @internal */
  peerClosed(reason: string | undefined): void {
    if (this.#inputShutdown !== undefined && this.#outputShutdown !== undefined) {
      this.#settle();
      this.#closed.resolve();
    } else {
      this.fail(new TunnelClosedError(reason ?? "the other side has ended it"));
    }
  }

  /** @internal */
  fail(error: Error): void {
    if (!this.#ended) {
      this.#error = error;
      this.#settle();
      this.#input.fail(error);
      this.#closed.reject(error);
    }
  }

  #settle(): void {
    this.#ended = true;
    this.#table.waiting.delete(this);
    this.#table.forget(this.#id);
    this.#unacknowledged = [];
    this.#account(-this.#unacknowledgedBytes);
    this.#table.wake();
    this.wake();
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

  /** @internal Wakes a writer: there may be room. */
  wake(): void {
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

interface TunnelClose {
  tunnelId: string;
  reason?: string;
}

interface TunnelEvent {
  tunnelId: string;
  seq: number;
}

/** The tunnels of one environment. */
export class TunnelTable {
  readonly client: SessionClient;
  /** Unacknowledged bytes of all tunnels. */
  unacknowledgedBytes = 0;
  /** Tunnels that wait for room. */
  readonly waiting = new Set<Tunnel>();
  #tunnels = new Map<string, Tunnel>();
  #listeners = new Map<string, AsyncEvents<Tunnel>>();
  /** Closes that may not have arrived, with the number of calls sent before each. */
  #closes = new Map<string, { params: TunnelClose; callsSent: number }>();
  #ids = 0;
  #prefix = crypto.getRandomValues(new Uint32Array(1))[0]?.toString(36) ?? "";

  constructor(client: SessionClient) {
    this.client = client;
    const { notifications } = client;
    const on = <P>(method: string, act: (params: P, message: RpcMessage) => void): void => {
      notifications.set(method, act as (params: never, message: RpcMessage) => void);
    };
    on<TunnelEvent>("tunnel/data", (params, message) => {
      const chunk = dataMember(message, params as never as Record<string, unknown>, "chunk");
      this.#find(params.tunnelId)?.data(params.seq, chunk);
    });
    on<TunnelEvent>("tunnel/acknowledge", ({ tunnelId, seq }) => {
      this.#find(tunnelId)?.acknowledged(seq);
    });
    on<TunnelEvent>("tunnel/shutdown", ({ tunnelId, seq }) => {
      this.#find(tunnelId)?.shutdown(seq);
    });
    on<TunnelClose>("tunnel/close", ({ tunnelId, reason }) => {
      this.#tunnels.get(tunnelId)?.peerClosed(reason);
      const incoming = this.#listeners.get(tunnelId);
      this.#listeners.delete(tunnelId);
      incoming?.fail(new TunnelClosedError(reason ?? "the listener has ended"));
    });
    on<{ listenId: string; tunnelId: string }>("tunnel/incoming", (params) => {
      this.#accept(params.listenId, params.tunnelId);
    });
    client.listeners.add(this.#connectionListener());
  }

  /** Connects to a port. */
  async open(options: TunnelTarget & { signal?: AbortSignal }): Promise<Tunnel> {
    this.#require();
    const { signal, ...target } = options;
    const tunnelId = this.#newId();
    const tunnel = this.#add(tunnelId, false);
    try {
      const params = { tunnelId, ...target };
      const onLateResult = (): void => this.sendClose(tunnelId);
      await this.client.call("tunnel/open", params, { retry: true, signal, onLateResult });
      tunnel.opened();
      return tunnel;
    } catch (error) {
      if (signal?.aborted === true) {
        // Cancels the request, or ends what it has opened.
        tunnel.close();
        throw abortReason(signal);
      }
      tunnel.fail(error as Error);
      throw error;
    }
  }

  /** Listens on a port. */
  async listen(options: TunnelTarget): Promise<TunnelListener> {
    this.#require();
    const listenId = this.#newId();
    const incoming = new AsyncEvents<Tunnel>(MAX_INCOMING);
    this.#listeners.set(listenId, incoming);
    try {
      const params = { listenId, ...options };
      const answer = await this.client.call("tunnel/listen", params, { retry: true });
      return new TunnelListener(answer.result.port, incoming, () => {
        if (this.#listeners.delete(listenId)) {
          this.sendClose(listenId);
        }
      });
    } catch (error) {
      this.#listeners.delete(listenId);
      throw error;
    }
  }

  /** Removes a tunnel that has ended. */
  forget(id: string): void {
    this.#tunnels.delete(id);
  }

  /** Lets writers check again whether there is room. */
  wake(): void {
    const waiting = [...this.waiting];
    this.waiting.clear();
    for (const tunnel of waiting) {
      tunnel.wake();
    }
  }

  /** Closes a tunnel or listener of the server; again on the next connection if it may be lost. */
  sendClose(tunnelId: string, reason?: string): void {
    const params = reason === undefined ? { tunnelId } : { tunnelId, reason };
    this.#confirmCloses();
    const [oldest] = this.#closes.keys();
    if (oldest !== undefined && this.#closes.size >= MAX_CLOSES) {
      this.#closes.delete(oldest);
    }
    const { callsSent } = this.client;
    const isSent = this.client.notify("tunnel/close", params);
    this.#closes.set(tunnelId, { params, callsSent: isSent ? callsSent : Infinity });
  }

  /** Drops the closes that have arrived. */
  #confirmCloses(): void {
    for (const [id, { callsSent }] of this.#closes) {
      if (!this.client.hasArrived(callsSent)) {
        return;
      }
      this.#closes.delete(id);
    }
  }

  #connectionListener(): ConnectionListener {
    const failAll = (error: ExecServerError): void => {
      this.#closes.clear();
      for (const tunnel of [...this.#tunnels.values()]) {
        tunnel.fail(error);
      }
      for (const incoming of this.#listeners.values()) {
        incoming.fail(error);
      }
      this.#listeners.clear();
    };
    return {
      disconnected: () => this.#confirmCloses(),
      connected: (sameSession) => {
        if (!sameSession) {
          failAll(new TunnelClosedError("its session has ended"));
        }
        for (const { params } of [...this.#closes.values()]) {
          this.sendClose(params.tunnelId, params.reason);
        }
        for (const tunnel of [...this.#tunnels.values()]) {
          tunnel.resume();
        }
      },
      lost: failAll,
    };
  }

  #accept(listenId: string, tunnelId: string): void {
    if (this.#tunnels.has(tunnelId)) {
      // The server repeats it until our first acknowledgement arrives.
      this.#tunnels.get(tunnelId)?.resume();
      return;
    }
    const incoming = this.#listeners.get(listenId);
    const tunnel = incoming === undefined ? undefined : this.#add(tunnelId, true);
    if (incoming === undefined || tunnel === undefined) {
      // The listener is closed; the server may not have its close yet.
      this.sendClose(tunnelId);
      this.sendClose(listenId);
    } else if (incoming.push(tunnel)) {
      tunnel.resume();
    } else {
      tunnel.close("too many connections wait");
    }
  }

  /** Finds a tunnel. Sends a close to the server if it has ended. */
  #find(tunnelId: string): Tunnel | undefined {
    const tunnel = this.#tunnels.get(tunnelId);
    if (tunnel === undefined) {
      this.client.notify("tunnel/close", { tunnelId });
    }
    return tunnel;
  }

  #add(id: string, open: boolean): Tunnel {
    const tunnel = new Tunnel(this, id, open);
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
