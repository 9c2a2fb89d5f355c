/**
 * Owns the connection of an environment across all links: calls, events, recovery.
 *
 * A lost link is replaced for as long as the server keeps the session. Calls that may be repeated
 * are sent again, in order and before new ones; others fail with an `InterruptedError`. Every
 * process is read after its last event, so nothing is lost, and duplicates are dropped by number.
 *
 * @module
 */

import {
  abortReason,
  ClosedError,
  ConnectError,
  ConnectionLostError,
  describeError,
  type ExecServerError,
  ExecServerError as BaseError,
  InterruptedError,
  LimitError,
  ProtocolError,
  RefusedError,
  RemoteError,
  SessionLostError,
} from "./errors.js";
import { Deferred, sleep } from "./deferred.js";
import type { Connector, Link } from "./link.js";
import {
  dataMember,
  type DataMember,
  decodeMessage,
  encodeBinary,
  encodeText,
  isWithin,
  OverlongMessageError,
  type RpcMessage,
} from "./message.js";
import { type EventsOwner, LAG_BYTES, ProcessEvents, type ProcessExit } from "./process-events.js";
import type {
  AttachProcess,
  EnvironmentInfo,
  InitializeResponse,
  NetworkDecision,
  NetworkDestination,
  OutputPage,
  OutputStream,
  Requests,
  ResourceUsage,
  StartProcess,
  TerminateMode,
} from "./wire.js";

/** State of the connection. */
export type ConnectionState = "connected" | "reconnecting" | "lost" | "closed";

/** Settings of a client. */
export interface ClientOptions {
  clientName: string;
  /** Limit of opening a link, and of the handshake on it. */
  connectTimeoutMs: number;
  /** Limit of recovery; the session's time to live if absent. */
  reconnectTimeoutMs: number | undefined;
  onState: ((state: ConnectionState) => void) | undefined;
}

/** What a call needs besides its parameters. */
export interface CallOptions {
  /** Whether the call is sent again after a disconnect. */
  retry?: boolean;
  /** Member that may travel as bytes. */
  data?: DataMember;
  signal?: AbortSignal | undefined;
  /** Called if the answer arrives after the call was aborted. */
  onLateResult?: () => void;
  /** Called if an aborted call fails, or was never sent. */
  onLateError?: () => void;
  /** Overtakes the queued calls. */
  urgent?: boolean;
  /** Number of the connection that the call belongs to. The call is not sent on another one. */
  connection?: number | undefined;
}

/** Result of a call. */
export interface CallResult<T> {
  result: T;
  /** Returns a data member of the result. */
  data(name: string): Uint8Array;
}

/** Receives the changes of the connection, for state that belongs to one. */
export interface ConnectionListener {
  /** The connection has ended; everything on it is gone. */
  disconnected(cause: string): void;
  /** A new connection is open. */
  connected(sameSession: boolean): void;
  /** There will be no connection. */
  lost(error: ExecServerError): void;
}

interface Call {
  id: number;
  method: string;
  params: object;
  options: CallOptions;
  /**
   * Events of the process that this call starts. After a disconnect, a read of the process shows
   * whether the start succeeded.
   */
  start: ProcessEvents | undefined;
  resolve: (result: CallResult<never>) => void;
  reject: (error: unknown) => void;
  /** Number of the call on its connection. */
  number: number;
  /** How many connections ended by a malformed message while the call waited. */
  violations: number;
}

interface Opened {
  link: Link;
  session: InitializeResponse;
  early: RpcMessage[];
}

interface FinalAck {
  id: string;
  seq: number;
  callsSent: number;
}

const EXTENSIONS = ["binaryData", "lifecycle", "fileDetails", "acknowledge", "tunnels"];
const SESSION_ATTACHED = -32010;
/** Recovery lasts at least as long as in the stock client, and at most 30 days. */
const MIN_RECOVERY_MS = 45_000;
const MAX_RECOVERY_MS = 30 * 24 * 3_600_000;
const ATTACHED_MS = 100;
const ATTACHED_BACKOFF_MS = 10;
const FAST_BACKOFF_MS = 100;
const SLOW_BACKOFF_MS = 1000;
const FAST_ATTEMPTS_MS = 30_000;
/** Age at which a connection counts as useful even without a response. */
const SETTLED_MS = 1000;
/** The server accepts 4096 unanswered requests, and runs 256 at once. */
const MAX_IN_FLIGHT = 1024;
const MAX_WAITING = 65_536;
const MAX_FINAL_ACKS = 8192;
const MAX_EARLY_BYTES = 64 << 20;
/** A call fails after this many malformed messages: they may be its answers. */
const MAX_VIOLATIONS = 3;
/** Largest message that a server accepts: a larger one ends the connection. */
const MAX_REQUEST_BYTES = 64 << 20;
const MAX_STOCK_REQUEST_BYTES = 16 << 20;
const INTERRUPTED_PAGE_BYTES = 256 << 10;
const BEHIND_PAGE_BYTES = 1 << 20;
/** Keepalive: a connection without messages is probed, and ends if it does not answer. */
const KEEPALIVE_MS = 20_000;
/** The window while something waits for an answer or an event that follows the data. */
const AWAITED_LAG_BYTES = 256 << 20;

/** Decides about a host that the proxy's settings do not decide about. */
export type NetworkPolicyHandler = (
  request: NetworkDestination,
) => NetworkDecision | Promise<NetworkDecision>;

/** The connection of one environment. */
export class SessionClient implements EventsOwner {
  readonly connector: Connector;
  readonly processes = new Map<string, ProcessEvents>();
  readonly listeners = new Set<ConnectionListener>();
  /** Receivers of notifications that are not about processes. */
  readonly notifications = new Map<string, (params: never, message: RpcMessage) => void>();
  readonly networkPolicies = new Map<string, NetworkPolicyHandler>();

  /** Number of the current connection: open files belong to one. */
  connection = 0;

  #options: ClientOptions;
  #state: ConnectionState = "lost";
  #link: Link | undefined;
  #session: InitializeResponse | undefined;
  #info: EnvironmentInfo | undefined;
  #extensions = new Set<string>();
  #calls = new Map<number, Call>();
  #waiting: Call[] = [];
  #nextId = 1;
  #callsSent = 0;
  #lastAnswered = 0;
  #finalAcks: FinalAck[] = [];
  #openedAt = 0;
  /** Start of the period without a useful connection. */
  #stalledSince: number | undefined;
  #closing = new AbortController();
  #lag = 0;
  /** Processes whose events the program waits for. */
  #awaited = 0;
  #paused = false;
  #keepalive: ReturnType<typeof setInterval> | undefined;
  #heard = true;
  #probing = false;

  constructor(connector: Connector, options: ClientOptions) {
    this.connector = connector;
    this.#options = options;
  }

  get state(): ConnectionState {
    return this.#state;
  }

  get sessionId(): string {
    return this.#session?.sessionId ?? "";
  }

  get info(): EnvironmentInfo {
    return this.#info ?? { shell: { name: "sh", path: "/bin/sh" } };
  }

  get server(): { name: string; version: string } | undefined {
    return this.#session?.server ?? undefined;
  }

  /** Whether the server has none of our extensions. */
  get isStock(): boolean {
    return this.#session?.server == null && this.#extensions.size === 0;
  }

  grants(extension: string): boolean {
    return this.#extensions.has(extension);
  }

  /** Whether data members travel as bytes. */
  get isBinary(): boolean {
    return this.#link?.binary === true && this.#extensions.has("binaryData");
  }

  /** Opens the first connection. */
  async open(signal?: AbortSignal): Promise<void> {
    const opened = await this.#attempt(undefined, signal);
    this.#adopt(opened);
    await this.#completeInfo();
  }

  /** Old servers do not describe themselves in the handshake. */
  async #completeInfo(): Promise<void> {
    if (this.#info === undefined) {
      const { result } = await this.call("environment/info", {}, { retry: true });
      this.#info = result;
    }
  }

  /** Sends a request and waits for the answer. */
  call<M extends keyof Requests>(
    method: M,
    params: Requests[M]["params"],
    options: CallOptions = {},
  ): Promise<CallResult<Requests[M]["result"]>> {
    return this.callUnchecked(method, params ?? {}, options);
  }

  /** The same for methods that the schema does not have. */
  callUnchecked<T>(
    method: string,
    params: object,
    options: CallOptions = {},
  ): Promise<CallResult<T>> {
    return this.#call(method, params, options, undefined) as Promise<CallResult<T>>;
  }

  #call(
    method: string,
    params: object,
    options: CallOptions,
    start: ProcessEvents | undefined,
  ): Promise<CallResult<never>> {
    const { signal } = options;
    if (this.#state === "closed") {
      return Promise.reject(new ClosedError());
    }
    if (signal?.aborted === true) {
      return Promise.reject(abortReason(signal));
    }
    if (this.#waiting.length >= MAX_WAITING) {
      return Promise.reject(new LimitError(`too many calls wait: the limit is ${MAX_WAITING}`));
    }
    return new Promise((resolve, reject) => {
      const id = this.#nextId;
      this.#nextId += 1;
      const counts = { number: 0, violations: 0 };
      const call: Call = { id, method, params, options, start, resolve, reject, ...counts };
      if (signal !== undefined) {
        const abort = (): void => {
          // Stays registered: the answer may have to be undone.
          call.resolve = () => options.onLateResult?.();
          call.reject = () => options.onLateError?.();
          const index = this.#waiting.indexOf(call);
          if (index >= 0) {
            this.#waiting.splice(index, 1);
            call.reject(undefined);
          }
          reject(abortReason(signal));
        };
        signal.addEventListener("abort", abort, { once: true });
        const settle = (): void => signal.removeEventListener("abort", abort);
        call.resolve = (result) => (settle(), resolve(result));
        call.reject = (error) => (settle(), reject(error));
      }
      this.#submit(call);
    });
  }

  #submit(call: Call): void {
    const { connection } = call.options;
    if (connection !== undefined && (this.#link === undefined || connection !== this.connection)) {
      call.reject(new InterruptedError(call.method, "its connection has ended"));
      return;
    }
    const hasTurn = this.#calls.size < MAX_IN_FLIGHT && this.#waiting.length === 0;
    if (this.#link !== undefined && (hasTurn || call.options.urgent === true)) {
      this.#send(call);
      return;
    }
    this.#waiting.push(call);
    if (this.#state === "lost") {
      void this.#renew();
    }
  }

  #send(call: Call): void {
    const link = this.#link;
    if (link === undefined) {
      this.#waiting.push(call);
      return;
    }
    let message: string | Uint8Array;
    try {
      message = this.#encode(call);
    } catch (error) {
      call.reject(error);
      return;
    }
    this.#callsSent += 1;
    call.number = this.#callsSent;
    this.#calls.set(call.id, call);
    this.#updateReading();
    if (typeof message === "string") {
      link.send(message);
    } else {
      link.sendBinary(message);
    }
  }

  /** Encodes a request; throws a {@link LimitError} if the server would not accept it. */
  #encode({ id, method, params, options: { data } }: Call): string | Uint8Array {
    const limit = this.isStock ? MAX_STOCK_REQUEST_BYTES : MAX_REQUEST_BYTES;
    if ((data?.bytes.byteLength ?? 0) <= limit) {
      const message =
        data !== undefined && this.isBinary
          ? encodeBinary({ id, method, params }, data.bytes)
          : encodeText({ id, method, params }, data);
      if (isWithin(message, limit)) {
        return message;
      }
    }
    throw new LimitError(`\`${method}\` has more than ${limit} bytes: the server accepts no more`);
  }

  /** Sends a notification, if there is a connection. */
  notify(method: string, params: object, data?: DataMember): boolean {
    const link = this.#link;
    if (link === undefined) {
      return false;
    }
    if (data !== undefined && this.isBinary) {
      link.sendBinary(encodeBinary({ method, params }, data.bytes));
    } else {
      link.send(encodeText({ method, params }, data));
    }
    return true;
  }

  /** Number of calls that were sent on this connection, for {@link hasArrived}. */
  get callsSent(): number {
    return this.#callsSent;
  }

  /** Whether messages after this number of calls have arrived: the server answered a later call. */
  hasArrived(callsSent: number): boolean {
    return callsSent < this.#lastAnswered;
  }

  /** Bytes that wait for the socket. */
  get buffered(): number {
    return this.#link?.buffered ?? 0;
  }

  /** Starts a process. Its events may precede the answer. */
  async start(
    events: ProcessEvents,
    params: StartProcess,
    signal?: AbortSignal,
  ): Promise<{ sandboxType?: string | null }> {
    if (this.processes.has(events.id)) {
      throw new RefusedError("process/start", -32600, `process id \`${events.id}\` is in use`);
    }
    this.processes.set(events.id, events);
    const options: CallOptions = {
      signal,
      // After an abort the start may still succeed: then it is undone.
      onLateResult: () => this.abandon(events),
      onLateError: () => this.forget(events),
    };
    try {
      const answer = await this.#call("process/start", params, options, events);
      return answer.result;
    } catch (error) {
      if (signal?.aborted === true) {
        events.discard();
      } else {
        this.forget(events);
      }
      throw error;
    } finally {
      events.opening = false;
    }
  }

  /** Ends a process whose caller has given up. */
  abandon(events: ProcessEvents): void {
    events.discard();
    this.terminate(events.id).catch(() => {});
  }

  /** Kills the tree of a process. */
  async terminate(processId: string, mode?: TerminateMode): Promise<boolean> {
    const params = mode === undefined ? { processId } : { processId, mode };
    const { result } = await this.call("process/terminate", params, {
      retry: true,
      urgent: true,
    });
    return result.running;
  }

  /** Removes a process from the table. */
  forget(events: ProcessEvents): void {
    if (this.processes.get(events.id) === events) {
      this.processes.delete(events.id);
      this.networkPolicies.delete(events.id);
      events.releaseLag();
    }
  }

  /** Follows a server-owned process. */
  async attach(events: ProcessEvents, signal?: AbortSignal): Promise<void> {
    if (this.processes.has(events.id)) {
      const text = `this client already follows process \`${events.id}\``;
      throw new RefusedError("process/attach", -32600, text);
    }
    this.processes.set(events.id, events);
    try {
      await this.call("process/attach", attachParams(events), {
        signal,
        retry: true,
        onLateResult: () => this.#release(events),
      });
    } catch (error) {
      this.forget(events);
      throw error;
    } finally {
      events.opening = false;
    }
  }

  #release(events: ProcessEvents): void {
    this.call("process/release", { processId: events.id }).catch(() => {});
  }

  /** Ends everything: processes of this session, the connection, waiting calls. */
  async close(): Promise<void> {
    if (this.#state === "closed") {
      return;
    }
    if (this.#state === "connected") {
      const own = [...this.processes.values()].filter(
        (events) => events.owner === "session" && !events.closed && events.failure === undefined,
      );
      const ended = Promise.allSettled(
        own.map((events) => this.terminate(events.id, this.isStock ? undefined : { type: "force" })),
      );
      const patience = new AbortController();
      await Promise.race([ended, sleep(CLOSE_MS, patience.signal)]);
      patience.abort();
    }
    this.#setState("closed");
    this.#closing.abort();
    this.#stopKeepalive();
    const link = this.#link;
    this.#link = undefined;
    link?.close();
    this.#failAll(new ClosedError());
  }

  // --- events -------------------------------------------------------------------------------

  progress(events: ProcessEvents): void {
    if (events.owner === "session") {
      this.#acknowledge(events);
      if (events.failure !== undefined && this.processes.get(events.id) === events) {
        this.#acknowledgeAll(events);
        this.forget(events);
        this.terminate(events.id).catch(() => {});
      } else if ((events.hasGap || events.readDue) && events.hasRoom && this.#link !== undefined) {
        void this.#read(events);
      }
    } else if (events.suspended && !events.attaching && this.#link !== undefined) {
      void this.#pauseFollowing(events);
    }
    if (events.closed && (events.owner === "server" || events.isDone || !this.grants("acknowledge"))) {
      this.forget(events);
    }
  }

  /** Stops following a server-owned process until the program has read what is here. */
  async #pauseFollowing(events: ProcessEvents): Promise<void> {
    if (events.hasRoom) {
      await this.#attachAgain(events);
    } else if (!events.released) {
      events.attaching = true;
      // After the answer to a release, no event of the process arrives until the attach.
      await this.call("process/release", { processId: events.id }, { urgent: true }).catch(() => {});
      events.attaching = false;
      if (events.hasRoom && this.#link !== undefined) {
        await this.#attachAgain(events);
      }
    }
  }

  lag(bytes: number): void {
    this.#lag += bytes;
    if (!this.#extensions.has("acknowledge")) {
      this.#updateReading();
    }
  }

  awaited(change: 1 | -1): void {
    this.#awaited += change;
    this.#updateReading();
  }

  get pausesConnection(): boolean {
    return this.#link?.pausable === true && !this.#extensions.has("acknowledge");
  }

  #updateReading(): void {
    const link = this.#link;
    if (link === undefined || this.#extensions.has("acknowledge")) {
      return;
    }
    const isAwaited = this.#calls.size > 0 || this.#awaited > 0;
    const limit = isAwaited ? AWAITED_LAG_BYTES : LAG_BYTES;
    const paused = this.#lag >= limit;
    if (paused === this.#paused) {
      return;
    }
    if (paused && !link.pausable) {
      if (this.#lag >= AWAITED_LAG_BYTES) {
        const text = "the program does not read output, and this server cannot be paused for it";
        this.#fail(link, new ProtocolError(text));
      }
      return;
    }
    this.#paused = paused;
    link.setPaused(paused);
  }

  #acknowledge(events: ProcessEvents): void {
    // Nothing can be sent between connections: the next one acknowledges what is due.
    if (this.#link === undefined || !this.#extensions.has("acknowledge")) {
      return;
    }
    const seq = events.takeAck();
    if (seq === undefined) {
      return;
    }
    this.notify("process/acknowledge", { processId: events.id, seq });
    if (events.isDone) {
      this.#recordFinalAck(events.id, seq);
    }
  }

  #acknowledgeAll(events: ProcessEvents): void {
    if (this.#extensions.has("acknowledge")) {
      this.notify("process/acknowledge", { processId: events.id, seq: Number.MAX_SAFE_INTEGER });
    }
  }

  #recordFinalAck(id: string, seq: number): void {
    this.#confirmFinalAcks();
    if (this.#finalAcks.length >= MAX_FINAL_ACKS) {
      this.#finalAcks.shift();
    }
    this.#finalAcks.push({ id, seq, callsSent: this.#callsSent });
  }

  /** Drops the acknowledgements that were sent before an answered call: they have arrived. */
  #confirmFinalAcks(): void {
    let arrived = 0;
    while ((this.#finalAcks[arrived]?.callsSent ?? Infinity) < this.#lastAnswered) {
      arrived += 1;
    }
    this.#finalAcks.splice(0, arrived);
  }

  /** Reads what is missing of a process, until nothing is. */
  async #read(events: ProcessEvents): Promise<void> {
    if (events.reading) {
      return;
    }
    events.reading = true;
    events.readDue = false;
    try {
      for (;;) {
        const maxBytes = events.readInterrupted
          ? INTERRUPTED_PAGE_BYTES
          : events.isBehind
            ? BEHIND_PAGE_BYTES
            : undefined;
        const { result } = await this.#readPage(events, maxBytes);
        const isCurrent = events.reading && events.failure === undefined;
        if (!isCurrent || events.closed) {
          return;
        }
        const more = events.handlePage(result, maxBytes);
        events.violations = 0;
        if (!more) {
          break;
        }
        this.#acknowledge(events);
        if (!events.hasRoom) {
          // Goes on when the program has read.
          events.readDue = true;
          break;
        }
      }
      events.readInterrupted = false;
    } catch (error) {
      const violation = error instanceof InterruptedError ? error.cause : undefined;
      events.violations += violation === undefined ? 0 : 1;
      const isInterrupted = error instanceof InterruptedError || !events.reading;
      if (isInterrupted && events.violations < MAX_VIOLATIONS) {
        return;
      }
      events.fail(
        error instanceof RefusedError
          ? new SessionLostError(`the server has forgotten process \`${events.id}\``)
          : toClientError(violation ?? error),
      );
    } finally {
      events.reading = false;
    }
    this.progress(events);
  }

  #readPage(events: ProcessEvents, maxBytes: number | undefined): Promise<CallResult<OutputPage>> {
    const params = { processId: events.id, afterSeq: events.last, maxBytes, waitMs: 0 };
    return this.call("process/read", params, { urgent: true });
  }

  // --- messages -----------------------------------------------------------------------------

  #receive(link: Link, raw: string | Uint8Array): void {
    if (this.#link !== link) {
      return;
    }
    this.#heard = true;
    try {
      this.#dispatch(decodeMessage(raw));
    } catch (error) {
      const call = error instanceof OverlongMessageError ? this.#takeCall(error.id) : undefined;
      if (call === undefined) {
        this.#fail(link, error);
      } else {
        call.reject(error);
        this.#callSettled();
      }
    }
  }

  #dispatch(message: RpcMessage): void {
    if (typeof message.method === "string") {
      if (message.id !== undefined) {
        void this.#answer(message);
      } else {
        this.#notified(message);
      }
      return;
    }
    const call = this.#takeCall(message.id);
    if (call === undefined) {
      return;
    }
    const { error } = message;
    if (message.result !== undefined) {
      const result = message.result;
      call.resolve({
        result: result as never,
        data: (name) => dataMember(message, result, name),
      });
    } else if (typeof error?.code === "number") {
      call.reject(RemoteError.from(call.method, error.code, String(error.message)));
    } else {
      const violation = new ProtocolError(
        "server sent a malformed message: an error without a code",
      );
      call.reject(violation);
      throw violation;
    }
    this.#callSettled();
  }

  /** Removes the call that a message answers. */
  #takeCall(id: RpcMessage["id"]): Call | undefined {
    const call = typeof id === "number" ? this.#calls.get(id) : undefined;
    if (call !== undefined) {
      this.#calls.delete(call.id);
      this.#stalledSince = undefined;
      this.#lastAnswered = Math.max(this.#lastAnswered, call.number);
    }
    return call;
  }

  #callSettled(): void {
    this.#sendWaiting();
    this.#updateReading();
  }

  #sendWaiting(): void {
    while (this.#link !== undefined && this.#calls.size < MAX_IN_FLIGHT) {
      const call = this.#waiting.shift();
      if (call === undefined) {
        return;
      }
      this.#send(call);
    }
  }

  #notified(message: RpcMessage): void {
    const params = message.params ?? {};
    const events = this.processes.get(params["processId"] as string);
    switch (message.method) {
      case "process/output": {
        const data = dataMember(message, params, "chunk");
        const seq = params["seq"] as number;
        events?.handle({ seq, type: "output", stream: params["stream"] as OutputStream, data });
        return;
      }
      case "process/exited": {
        const exit: ProcessExit = {
          exitCode: params["exitCode"] as number,
          signal: (params["signal"] as string | undefined) ?? null,
          cause: params["cause"] as string | undefined,
          usage: params["usage"] as ResourceUsage | undefined,
          sandboxDenied: (params["sandboxDenied"] as boolean | null) ?? false,
        };
        events?.handle({ seq: params["seq"] as number, type: "exited", exit });
        return;
      }
      case "process/closed":
        events?.handle({ seq: (params["seq"] as number | undefined) ?? 0, type: "closed" });
        return;
      case "process/started":
        if (events !== undefined) {
          events.startedAtMs = params["startedAtMs"] as number;
          events.osPid = params["osPid"] as number;
        }
        return;
      default:
        this.notifications.get(message.method ?? "")?.(params as never, message);
    }
  }

  async #answer(request: RpcMessage): Promise<void> {
    const link = this.#link;
    const params = request.params ?? {};
    const policy =
      request.method === "network/policyRequest"
        ? this.networkPolicies.get(params["processId"] as string)
        : undefined;
    let answer: object;
    if (policy === undefined) {
      const message = `this client does not implement \`${request.method}\``;
      answer = { id: request.id, error: { code: -32601, message } };
    } else {
      let decision: NetworkDecision;
      try {
        decision = await policy(params["request"] as NetworkDestination);
      } catch (error) {
        decision = { type: "deny", reason: describeError(error).slice(0, 256) };
      }
      answer = { id: request.id, result: { decision } };
    }
    if (this.#link === link) {
      link?.send(JSON.stringify(answer));
    }
  }

  // --- connection ---------------------------------------------------------------------------

  async #attempt(session: string | undefined, signal?: AbortSignal): Promise<Opened> {
    const limit = AbortSignal.timeout(this.#options.connectTimeoutMs);
    const signals = [limit, this.#closing.signal];
    if (signal !== undefined) {
      signals.push(signal);
    }
    const any = AbortSignal.any(signals);
    const failed = (error: unknown): unknown => {
      if (signal?.aborted === true) {
        return abortReason(signal);
      }
      if (this.#closing.signal.aborted) {
        return new ClosedError();
      }
      if (limit.aborted) {
        const { connectTimeoutMs } = this.#options;
        const text = `${this.connector.address} did not answer within ${connectTimeoutMs} ms`;
        return new ConnectError(text, "server", true);
      }
      return error;
    };
    let link: Link;
    try {
      link = await this.connector.open(any);
    } catch (error) {
      throw failed(error);
    }
    try {
      return await this.#handshake(link, session, any);
    } catch (error) {
      link.abort("handshake failed");
      throw failed(error);
    }
  }

  async #handshake(link: Link, session: string | undefined, signal: AbortSignal): Promise<Opened> {
    const answered = new Deferred<InitializeResponse>();
    const early: RpcMessage[] = [];
    let earlyBytes = 0;
    const { address } = this.connector;
    const abort = (): void => answered.reject(abortReason(signal));
    signal.addEventListener("abort", abort, { once: true });
    if (signal.aborted) {
      abort();
    }
    link.setHandler({
      message: (raw) => {
        try {
          const message = decodeMessage(raw);
          if (message.method !== undefined || message.id !== 0) {
            earlyBytes += raw.length;
            if (earlyBytes > MAX_EARLY_BYTES) {
              throw new ProtocolError(`more than ${MAX_EARLY_BYTES} bytes precede the handshake`);
            }
            early.push(message);
          } else if (message.error !== undefined) {
            const { code, message: text } = message.error;
            const refusal = `${address} refused the session: ${text}`;
            const cause = RemoteError.from("initialize", code, text);
            const transient = code === SESSION_ATTACHED;
            answered.reject(new ConnectError(refusal, "server", transient, { cause }));
          } else {
            answered.resolve(message.result as unknown as InitializeResponse);
          }
        } catch (error) {
          answered.reject(new ConnectError(describeError(error), "server", false));
        }
      },
      closed: (reason) => {
        const end = describeError(reason);
        const text = `${address} closed the connection before the handshake: ${end}`;
        answered.reject(new ConnectError(text, "transport", true));
      },
    });
    const params = {
      clientName: this.#options.clientName,
      resumeSessionId: session ?? null,
      extensions: EXTENSIONS,
    };
    link.send(JSON.stringify({ id: 0, method: "initialize", params }));
    try {
      const result = await answered.promise;
      if (typeof result.sessionId !== "string") {
        throw new ConnectError(`${address} is not an exec-server`, "server", false);
      }
      if (session !== undefined && result.sessionId !== session) {
        const text = `server resumed session \`${result.sessionId}\` instead of \`${session}\``;
        throw new ConnectError(text, "server", false);
      }
      link.send(JSON.stringify({ method: "initialized", params: {} }));
      return { link, session: result, early };
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }

  /** Makes a link the connection. */
  #adopt({ link, session, early }: Opened): void {
    this.#link = link;
    this.connection += 1;
    this.#session = session;
    this.#info = session.environmentInfo ?? this.#info;
    this.#extensions = new Set(session.extensions ?? []);
    this.#openedAt = Date.now();
    this.#callsSent = 0;
    this.#lastAnswered = 0;
    this.#paused = false;
    this.#heard = true;
    this.#probing = false;
    link.setHandler({
      message: (raw) => this.#receive(link, raw),
      closed: (reason) => this.#disconnected(link, reason),
    });
    this.#startKeepalive(link);
    this.#setState("connected");
    for (const message of early) {
      if (this.#link === link) {
        try {
          this.#dispatch(message);
        } catch (error) {
          this.#fail(link, error);
        }
      }
    }
  }

  #fail(link: Link, error: unknown): void {
    const reason = error instanceof ProtocolError ? error : describeError(error);
    link.abort(reason);
    this.#disconnected(link, reason);
  }

  #disconnected(link: Link, reason: string | ProtocolError): void {
    if (this.#link !== link) {
      return;
    }
    const violation = reason instanceof ProtocolError ? reason : undefined;
    const cause = describeError(reason);
    const since =
      this.#stalledSince !== undefined && Date.now() - this.#openedAt < SETTLED_MS
        ? this.#stalledSince
        : Date.now();
    this.#link = undefined;
    this.#stopKeepalive();
    this.#confirmFinalAcks();
    this.#setState("reconnecting");
    for (const events of this.processes.values()) {
      events.disconnect();
    }
    const sent = [...this.#calls.values()];
    this.#calls.clear();
    const retries: Call[] = [];
    const starts: Call[] = [];
    for (const call of sent) {
      call.violations += violation === undefined ? 0 : 1;
      if (call.start !== undefined) {
        starts.push(call);
      } else if (violation !== undefined && call.violations >= MAX_VIOLATIONS) {
        call.reject(violation);
      } else if (call.options.retry === true) {
        retries.push(call);
      } else {
        const options = violation === undefined ? {} : { cause: violation };
        call.reject(new InterruptedError(call.method, cause, options));
      }
    }
    const isBound = (call: Call): boolean => call.options.connection !== undefined;
    for (const call of this.#waiting.filter(isBound)) {
      call.reject(new InterruptedError(call.method, cause));
    }
    this.#waiting = [...retries, ...this.#waiting.filter((call) => !isBound(call))];
    for (const listener of [...this.listeners]) {
      listener.disconnected(cause);
    }
    void this.#recover(cause, since, starts);
  }

  #recoveryWindow(): number {
    const ttl = this.#session?.sessionTtlMs ?? MIN_RECOVERY_MS;
    const window = Math.min(Math.max(ttl, MIN_RECOVERY_MS), MAX_RECOVERY_MS);
    return Math.min(this.#options.reconnectTimeoutMs ?? window, window);
  }

  async #recover(cause: string, since: number, starts: Call[]): Promise<void> {
    const window = this.#recoveryWindow();
    const deadline = since + window;
    const session = this.sessionId;
    let last = "the server did not answer";
    // A connection that broke at once must not be opened again at once.
    const isUseless = this.#lastAnswered === 0 && Date.now() - this.#openedAt < FAST_BACKOFF_MS;
    let wait = isUseless ? FAST_BACKOFF_MS : 0;
    for (;;) {
      if (wait > 0) {
        await sleep(wait, this.#closing.signal);
      }
      if (this.#state === "closed") {
        failCalls(starts, new ClosedError());
        return;
      }
      if (Date.now() >= deadline) {
        const text = `${cause}; the session was not resumed within ${window} ms: ${last}`;
        this.#lose(new ConnectionLostError(text), starts);
        return;
      }
      const started = Date.now();
      try {
        const opened = await this.#attempt(session);
        if (this.#state !== "reconnecting") {
          opened.link.close();
          failCalls(starts, new ClosedError());
          return;
        }
        this.#resume(opened, cause, since, starts);
        return;
      } catch (error) {
        last = describeError(error);
        if (error instanceof ConnectError && !error.transient) {
          if (error.cause instanceof RefusedError) {
            const lost = new SessionLostError(`${cause}; the session has ended: ${last}`);
            await this.#replaceSession(lost, starts, cause);
          } else {
            const text = `${cause}; the session was not resumed: ${last}`;
            this.#lose(new ConnectionLostError(text), starts);
          }
          return;
        }
        if (!(error instanceof ConnectError)) {
          continue;
        }
      }
      const age = Date.now() - since;
      // The server notices the end of the previous connection at any moment.
      const backoff =
        age < ATTACHED_MS ? ATTACHED_BACKOFF_MS : age < FAST_ATTEMPTS_MS ? FAST_BACKOFF_MS : SLOW_BACKOFF_MS;
      wait = Math.max(0, started + backoff - Date.now());
    }
  }

  #resume(opened: Opened, cause: string, since: number, starts: Call[]): void {
    this.#adopt(opened);
    if (this.#link !== opened.link) {
      failCalls(starts, new InterruptedError("process/start", cause));
      return;
    }
    const finalAcks = this.#finalAcks.splice(0);
    if (this.#extensions.has("acknowledge")) {
      for (const { id, seq } of finalAcks) {
        this.notify("process/acknowledge", { processId: id, seq });
        this.#finalAcks.push({ id, seq, callsSent: 0 });
      }
    }
    for (const call of starts) {
      void this.#probeStart(call, cause);
    }
    for (const events of [...this.processes.values()]) {
      if (events.opening || this.#link !== opened.link) {
        continue;
      }
      this.#acknowledge(events);
      if (events.closed) {
        this.progress(events);
      } else if (events.owner === "server") {
        void this.#attachAgain(events);
      } else {
        void this.#read(events);
      }
    }
    this.#sendWaiting();
    if (this.#calls.size > 0) {
      this.#stalledSince = since;
    }
    for (const listener of [...this.listeners]) {
      listener.connected(true);
    }
  }

  /** Decides whether a start succeeded by whether the server knows its process. */
  async #probeStart(call: Call, cause: string): Promise<void> {
    const events = call.start;
    if (events === undefined) {
      return;
    }
    try {
      const { result } = await this.call(
        "process/read",
        { processId: events.id, afterSeq: events.last, waitMs: 0 },
        { retry: true, urgent: true },
      );
      call.resolve({ result: {} as never, data: () => new Uint8Array() });
      if (events.owner === "server") {
        await this.#attachAgain(events);
      } else if (!events.closed && events.handlePage(result, undefined)) {
        await this.#read(events);
      }
      this.progress(events);
    } catch (error) {
      if (error instanceof RemoteError) {
        // The start may still be on its way. Ending an unknown process is harmless.
        this.terminate(events.id, this.isStock ? undefined : { type: "force" }).catch(() => {});
        this.#acknowledgeAll(events);
        const failure = new InterruptedError("process/start", cause);
        events.fail(failure);
        call.reject(failure);
      } else {
        events.fail(toClientError(error));
        call.reject(error);
      }
      this.forget(events);
    }
  }

  async #attachAgain(events: ProcessEvents): Promise<void> {
    if (events.attaching) {
      return;
    }
    events.attaching = true;
    events.suspended = false;
    try {
      await this.call("process/attach", attachParams(events), { urgent: true });
      events.attaching = false;
      if (events.released) {
        this.#release(events);
      }
    } catch (error) {
      if (error instanceof InterruptedError) {
        return;
      }
      events.fail(toClientError(error));
      this.forget(events);
    }
  }

  /** Continues in a new session with what belongs to the server. */
  async #replaceSession(lost: SessionLostError, starts: Call[], cause: string): Promise<void> {
    for (const events of [...this.processes.values()]) {
      if (events.owner === "session") {
        events.fail(lost);
        this.forget(events);
      }
    }
    const owned = [...this.processes.values()].filter((events) => !events.opening);
    failCalls(starts, lost);
    failCalls(this.#waiting.splice(0), lost);
    this.#finalAcks = [];
    try {
      const opened = await this.#attempt(undefined);
      if (this.#state !== "reconnecting") {
        opened.link.close();
        return;
      }
      this.#adopt(opened);
    } catch (error) {
      this.#lose(new ConnectionLostError(`${cause}; ${describeError(error)}`), []);
      return;
    }
    for (const events of owned) {
      void this.#attachAgain(events);
    }
    this.#sendWaiting();
    for (const listener of [...this.listeners]) {
      listener.connected(false);
    }
  }

  /** Opens a new session for calls that wait. */
  async #renew(): Promise<void> {
    this.#setState("reconnecting");
    try {
      const opened = await this.#attempt(undefined);
      if (this.state === "closed") {
        opened.link.close();
        return;
      }
      this.#adopt(opened);
      this.#sendWaiting();
      for (const listener of [...this.listeners]) {
        listener.connected(false);
      }
    } catch (error) {
      if (this.state !== "closed") {
        this.#setState("lost");
      }
      failCalls(this.#waiting.splice(0), error);
    }
  }

  #lose(error: ExecServerError, starts: Call[]): void {
    this.#setState("lost");
    failCalls(starts, error);
    this.#failAll(error);
  }

  #failAll(error: ExecServerError): void {
    for (const events of [...this.processes.values()]) {
      events.fail(error);
    }
    this.processes.clear();
    this.networkPolicies.clear();
    this.#finalAcks = [];
    const calls = [...this.#calls.values(), ...this.#waiting.splice(0)];
    this.#calls.clear();
    failCalls(calls, error);
    for (const listener of [...this.listeners]) {
      listener.lost(error);
    }
  }

  #setState(state: ConnectionState): void {
    if (this.#state !== state && this.#state !== "closed") {
      this.#state = state;
      this.#options.onState?.(state);
    }
  }

  #startKeepalive(link: Link): void {
    this.#stopKeepalive();
    const timer = setInterval(() => {
      if (this.#heard || this.#paused) {
        this.#heard = false;
        this.#probing = false;
      } else if (this.#probing) {
        this.#fail(link, new ProtocolError("the server does not answer"));
      } else {
        this.#probing = true;
        this.call("environment/status", {}, { urgent: true }).catch(() => {});
      }
    }, KEEPALIVE_MS);
    (timer as { unref?: () => void }).unref?.();
    this.#keepalive = timer;
  }

  #stopKeepalive(): void {
    clearInterval(this.#keepalive);
    this.#keepalive = undefined;
  }
}

const CLOSE_MS = 3000;

function attachParams(events: ProcessEvents): AttachProcess {
  const { id, last, startedAtMs } = events;
  const params = { processId: id, afterSeq: last };
  return startedAtMs === undefined ? params : { ...params, startedAtMs };
}

function failCalls(calls: Call[], error: unknown): void {
  for (const call of calls) {
    call.reject(error);
  }
}

function toClientError(error: unknown): ExecServerError {
  return error instanceof BaseError ? error : new ProtocolError(describeError(error));
}
