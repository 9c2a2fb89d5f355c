/**
 * Errors of the client. The member `fault` of each names the party that has to act.
 *
 * @module
 */

/**
 * The party that has to act: the `caller` (the same call would fail again), the `server`, or the
 * `transport` (the connection broke or could not be opened). `session`: the session has ended for
 * good.
 */
export type FaultParty = "caller" | "server" | "transport" | "session";

/** Base class of all errors of this package. */
export class ExecServerError extends Error {
  /** The party that has to act. */
  readonly fault: FaultParty;

  /** @internal */
  constructor(message: string, fault: FaultParty, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.fault = fault;
  }
}

/** The server answered a request with an error. */
export class RemoteError extends ExecServerError {
  /** JSON-RPC error code. */
  readonly code: number;
  /** Method of the request. */
  readonly method: string;

  /** @internal */
  constructor(method: string, code: number, message: string) {
    super(`\`${method}\`: ${message}`, code === -32603 ? "server" : "caller");
    this.code = code;
    this.method = method;
  }

  /** @internal */
  static from(method: string, code: number, message: string): RemoteError {
    switch (code) {
      case -32004:
        return new NotFoundError(method, code, message);
      case -32600:
        return new RefusedError(method, code, message);
      case -32601:
        return new UnsupportedError(method, code, message);
      case -32602:
        return new InvalidParamsError(method, code, message);
      default:
        return new RemoteError(method, code, message);
    }
  }
}

/** A path, handle or process does not exist (-32004). */
export class NotFoundError extends RemoteError {}

/** The server refused because of its state: an id in use, a wrong file type (-32600). */
export class RefusedError extends RemoteError {}

/** The parameters are invalid, or ask for something that this server cannot do (-32602). */
export class InvalidParamsError extends RemoteError {}

/** The server does not know the method, or this feature needs a newer server (-32601). */
export class UnsupportedError extends RemoteError {
  /** @internal */
  static feature(feature: string): UnsupportedError {
    const reason = "not supported by this server; use a server of the exec-server project";
    return new UnsupportedError(feature, -32601, reason);
  }
}

/** An argument is invalid. Nothing was sent. */
export class InvalidArgumentError extends ExecServerError {
  /** @internal */
  constructor(message: string) {
    super(message, "caller");
  }
}

/** No session could be opened. */
export class ConnectError extends ExecServerError {
  /** Whether a later attempt may succeed. */
  readonly transient: boolean;

  /** @internal */
  constructor(message: string, fault: FaultParty, transient: boolean, options?: ErrorOptions) {
    super(message, fault, options);
    this.transient = transient;
  }
}

/** The server rejected the token, or this client may not use it (401 or 403). */
export class AuthenticationError extends ConnectError {
  /** HTTP status of the refusal. */
  readonly status: number;

  /** @internal */
  constructor(message: string, status: number) {
    super(message, "caller", false);
    this.status = status;
  }
}

/**
 * The connection broke before a call was answered, and the call cannot be repeated safely: it may
 * or may not have taken effect. The environment itself continues.
 */
export class InterruptedError extends ExecServerError {
  /** The method that was called. */
  readonly method: string;

  /** @internal */
  constructor(method: string, reason: string, options?: ErrorOptions) {
    super(`connection broke before \`${method}\` was answered: ${reason}`, "transport", options);
    this.method = method;
  }
}

/** The connection could not be restored in time. The next call opens a new session. */
export class ConnectionLostError extends ExecServerError {
  /** @internal */
  constructor(message: string) {
    super(message, "transport");
  }
}

/** The server has ended the session with all its processes. The next call opens a new one. */
export class SessionLostError extends ExecServerError {
  /** @internal */
  constructor(message: string) {
    super(message, "session");
  }
}

/** The peer violated the protocol. */
export class ProtocolError extends ExecServerError {
  /** @internal */
  constructor(message: string) {
    super(message, "server");
  }
}

/** The environment was closed by this program. */
export class ClosedError extends ExecServerError {
  /** @internal */
  constructor(what = "the environment is closed") {
    super(what, "caller");
  }
}

/** The stdin of a process is closed, or the process was started without one. */
export class StdinClosedError extends ExecServerError {
  /** @internal */
  constructor(processId: string, reason: string) {
    super(`stdin of process \`${processId}\` is closed: ${reason}`, "caller");
  }
}

/** A limit of this client was reached; the message names it. */
export class LimitError extends ExecServerError {
  /** @internal */
  constructor(message: string) {
    super(message, "caller");
  }
}

/** Output was evicted by the server before this client could read it. */
export class OutputLostError extends ExecServerError {
  /** First missing event. */
  readonly first: number;
  /** Last missing event. */
  readonly last: number;

  /** @internal */
  constructor(process: string, first: number, last: number) {
    super(`output of process \`${process}\` is lost: events ${first} to ${last}`, "server");
    this.first = first;
    this.last = last;
  }
}

/** Returns the reason of an aborted signal as an error. */
export function abortReason(signal: AbortSignal): unknown {
  return signal.reason ?? new DOMException("This operation was aborted", "AbortError");
}

/** Returns one line that describes an error of any type. */
export function describeError(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
