/**
 * Links of Node: websockets with headers, unix sockets, and programs on stdio.
 *
 * @module
 */

import { type ChildProcess, spawn } from "node:child_process";
import { connect as connectSocket } from "node:net";
import WebSocket from "ws";

import {
  abortReason,
  AuthenticationError,
  ConnectError,
  InvalidArgumentError,
  ProtocolError,
} from "./errors.js";
import { type Connector, type Link, type LinkHandler, LinkInbox } from "./link.js";
import { parseUrl } from "./websocket.js";

/** Largest message that a client accepts: a file of 512 MiB in base64. */
const MAX_MESSAGE_BYTES = 768 << 20;

/** How a {@link NodeConnector} connects. */
export interface NodeConnectorOptions {
  token?: string | undefined;
  /** Certificates to trust for `wss://`, in PEM, instead of the host's. */
  ca?: string | Buffer | undefined;
}

/** Connects to `ws://`, `wss://` and `unix://` URLs. */
export class NodeConnector implements Connector {
  readonly address: string;
  #url: string;
  #socketPath: string | undefined;
  #options: NodeConnectorOptions;

  constructor(url: string, options: NodeConnectorOptions) {
    const parsed = parseUrl(url, ["ws:", "wss:", "unix:"]);
    this.#options = options;
    if (parsed.protocol === "unix:") {
      this.#socketPath = decodeURIComponent(parsed.pathname);
      this.#url = "ws://localhost/";
      this.address = `unix://${this.#socketPath}`;
      if (parsed.host !== "" || this.#socketPath === "") {
        throw new InvalidArgumentError(`\`${url}\` is not absolute; use unix:///path`);
      }
      return;
    }
    this.#url = parsed.href;
    this.address = `${parsed.protocol}//${parsed.host}`;
    if (options.token !== undefined && parsed.protocol === "ws:" && !isLoopback(parsed.hostname)) {
      throw new InvalidArgumentError(
        `the token would travel unencrypted to ${parsed.host}; use wss:// or a tunnel`,
      );
    }
  }

  open(signal: AbortSignal): Promise<Link> {
    const { token, ca } = this.#options;
    const socketPath = this.#socketPath;
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(this.#url, {
        perMessageDeflate: false,
        maxPayload: MAX_MESSAGE_BYTES,
        followRedirects: false,
        ...(token === undefined ? {} : { headers: { Authorization: `Bearer ${token}` } }),
        ...(ca === undefined ? {} : { ca }),
        ...(socketPath === undefined
          ? {}
          : { createConnection: () => connectSocket({ path: socketPath }) }),
      });
      const settle = (): void => signal.removeEventListener("abort", abort);
      const abort = (): void => {
        socket.terminate();
        reject(abortReason(signal));
      };
      signal.addEventListener("abort", abort, { once: true });
      // The first message may come with the response to the upgrade.
      const link = new WsLink(socket);
      socket.once("open", () => {
        settle();
        link.opened();
        resolve(link);
      });
      socket.once("unexpected-response", (request, response) => {
        settle();
        let body = "";
        response.setEncoding("utf8");
        response.on("data", (text: string) => {
          body = (body + text).slice(0, 500);
        });
        response.on("end", () => reject(refusal(this.address, response.statusCode ?? 0, body)));
        response.on("error", () => reject(refusal(this.address, response.statusCode ?? 0, body)));
        setTimeout(() => request.destroy(), 1000).unref();
      });
      socket.on("error", (error) => {
        settle();
        const text = `cannot connect to ${this.address}: ${error.message || String(error)}`;
        reject(new ConnectError(text, "transport", true, { cause: error }));
      });
    });
  }
}

function refusal(address: string, status: number, body: string): ConnectError {
  const reason = body.trim() === "" ? "" : `: ${body.trim()}`;
  if (status === 401 || status === 403) {
    const next = status === 401 ? "; check the token" : "";
    return new AuthenticationError(`${address} refused access (${status})${reason}${next}`, status);
  }
  const transient = status === 429 || status >= 500;
  return new ConnectError(`${address} answered ${status}${reason}`, "server", transient);
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** A link over the websocket of the package `ws`. */
class WsLink implements Link {
  readonly binary = true;
  readonly pausable = true;
  #socket: WebSocket;
  #inbox = new LinkInbox();
  #error: string | ProtocolError = "";

  constructor(socket: WebSocket) {
    this.#socket = socket;
  }

  opened(): void {
    const socket = this.#socket;
    socket.on("message", (data) => this.#inbox.message(data as Buffer));
    socket.on("error", (error: Error & { code?: string }) => {
      // A frame that is malformed or too large.
      const isViolation = error.code?.startsWith("WS_ERR_") === true;
      this.#error = isViolation ? new ProtocolError(error.message) : error.message;
    });
    socket.on("close", (code, reason) => {
      const text = `the connection was closed (${code} ${reason.toString()})`;
      this.#inbox.closed(this.#error || text.replace(" )", ")"));
    });
  }

  get buffered(): number {
    return this.#socket.bufferedAmount;
  }

  setHandler(handler: LinkHandler): void {
    this.#inbox.setHandler(handler);
  }

  send(text: string): void {
    this.#socket.send(text, ignore);
  }

  sendBinary(message: Uint8Array): void {
    this.#socket.send(message, { binary: true }, ignore);
  }

  setPaused(paused: boolean): void {
    if (paused) {
      this.#socket.pause();
    } else {
      this.#socket.resume();
    }
  }

  close(): void {
    this.#socket.resume();
    this.#socket.close(1000);
    setTimeout(() => this.#socket.terminate(), CLOSE_MS).unref();
  }

  abort(reason: string | ProtocolError): void {
    this.#socket.terminate();
    this.#inbox.closed(reason);
  }
}

/** Errors of sending are reported by the close. */
function ignore(): void {}

const CLOSE_MS = 1000;

/** Starts a program that speaks the protocol on stdio, such as `exec-server connect ssh:box`. */
export class ProgramConnector implements Connector {
  readonly address: string;
  #argv: readonly string[];
  #options: { cwd?: string | undefined; env?: Record<string, string | undefined> | undefined };

  constructor(
    argv: readonly string[],
    options: { cwd?: string | undefined; env?: Record<string, string | undefined> | undefined },
  ) {
    if (argv[0] === undefined || argv[0] === "") {
      throw new InvalidArgumentError("the program has no name");
    }
    this.#argv = argv;
    this.#options = options;
    this.address = `\`${argv.join(" ")}\``;
  }

  open(signal: AbortSignal): Promise<Link> {
    const [program = "", ...args] = this.#argv;
    const { cwd, env } = this.#options;
    return new Promise((resolve, reject) => {
      const child = spawn(program, args, { cwd, env, stdio: ["pipe", "pipe", "pipe"] });
      const abort = (): void => {
        child.kill("SIGKILL");
        reject(abortReason(signal));
      };
      signal.addEventListener("abort", abort, { once: true });
      child.once("spawn", () => {
        signal.removeEventListener("abort", abort);
        resolve(new StdioLink(child));
      });
      child.once("error", (error) => {
        signal.removeEventListener("abort", abort);
        const text = `cannot start ${this.address}: ${error.message}`;
        reject(new ConnectError(text, "caller", false, { cause: error }));
      });
    });
  }
}

/** A link over a program's stdio: one message a line. */
class StdioLink implements Link {
  readonly binary = false;
  readonly pausable = true;
  #child: ChildProcess;
  #inbox = new LinkInbox();
  #line: Buffer[] = [];
  #lineBytes = 0;
  #stderr = "";

  constructor(child: ChildProcess) {
    this.#child = child;
    child.stdout?.on("data", (data: Buffer) => this.#receive(data));
    child.stdout?.on("error", () => {});
    child.stdin?.on("error", () => {});
    child.stderr?.setEncoding("utf8");
    child.stderr?.on("data", (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-STDERR_CHARS);
    });
    child.on("close", (code, signal) => {
      const last = this.#stderr.trim().split("\n").at(-1) ?? "";
      const how = signal === null ? `status ${code}` : `signal ${signal}`;
      this.#inbox.closed(`the program ended with ${how}${last && `: ${last}`}`);
    });
  }

  #receive(data: Buffer): void {
    let start = 0;
    for (;;) {
      const end = data.indexOf(0x0a, start);
      const rest = data.subarray(start, end < 0 ? data.length : end);
      this.#lineBytes += rest.length;
      if (this.#lineBytes > MAX_MESSAGE_BYTES) {
        const text = `the program sent a line of more than ${MAX_MESSAGE_BYTES} bytes`;
        this.abort(new ProtocolError(text));
        return;
      }
      this.#line.push(rest);
      if (end < 0) {
        return;
      }
      const line = this.#line.length === 1 ? rest : Buffer.concat(this.#line);
      this.#line = [];
      this.#lineBytes = 0;
      if (line.some((byte) => byte > SPACE)) {
        this.#inbox.message(line);
      }
      start = end + 1;
    }
  }

  get buffered(): number {
    return this.#child.stdin?.writableLength ?? 0;
  }

  setHandler(handler: LinkHandler): void {
    this.#inbox.setHandler(handler);
  }

  send(text: string): void {
    this.#child.stdin?.write(`${text}\n`);
  }

  sendBinary(): void {
    throw new Error("stdio has no binary messages");
  }

  setPaused(paused: boolean): void {
    if (paused) {
      this.#child.stdout?.pause();
    } else {
      this.#child.stdout?.resume();
    }
  }

  close(): void {
    const child = this.#child;
    child.stdout?.resume();
    child.stdin?.end();
    const terminate = setTimeout(() => child.kill("SIGTERM"), 2 * CLOSE_MS);
    const kill = setTimeout(() => child.kill("SIGKILL"), 4 * CLOSE_MS);
    child.once("close", () => {
      clearTimeout(terminate);
      clearTimeout(kill);
    });
  }

  abort(reason: string | ProtocolError): void {
    this.#child.kill("SIGTERM");
    const kill = setTimeout(() => this.#child.kill("SIGKILL"), 2 * CLOSE_MS);
    kill.unref();
    this.#child.once("close", () => clearTimeout(kill));
    this.#inbox.closed(reason);
  }
}

const STDERR_CHARS = 4096;
const SPACE = 0x20;
