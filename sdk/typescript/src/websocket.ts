/**
 * Links over the `WebSocket` that browsers, Bun and new versions of Node have.
 *
 * @module
 */

import { abortReason, ConnectError, InvalidArgumentError, type ProtocolError } from "./errors.js";
import { type Connector, type Link, type LinkHandler, LinkInbox } from "./link.js";

/** Connects with the global `WebSocket`, which can send no token. */
export class WebSocketConnector implements Connector {
  readonly address: string;
  #url: string;

  constructor(url: string) {
    const parsed = parseUrl(url, ["ws:", "wss:"]);
    this.#url = parsed.href;
    this.address = `${parsed.protocol}//${parsed.host}`;
  }

  open(signal: AbortSignal): Promise<Link> {
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(this.#url);
      socket.binaryType = "arraybuffer";
      const abort = (): void => {
        socket.close();
        reject(abortReason(signal));
      };
      signal.addEventListener("abort", abort, { once: true });
      socket.onopen = () => {
        signal.removeEventListener("abort", abort);
        resolve(new WebSocketLink(socket));
      };
      socket.onerror = () => {
        signal.removeEventListener("abort", abort);
        const text = `cannot connect to ${this.address}; the browser's console has the reason`;
        reject(new ConnectError(text, "transport", true));
      };
    });
  }
}

/** A link over a standard websocket. It cannot be paused: flow control is by acknowledgement. */
class WebSocketLink implements Link {
  readonly binary = true;
  readonly pausable = false;
  #socket: WebSocket;
  #inbox = new LinkInbox();

  constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.onmessage = ({ data }) =>
      this.#inbox.message(typeof data === "string" ? data : new Uint8Array(data as ArrayBuffer));
    socket.onclose = ({ code, reason }) =>
      this.#inbox.closed(`the connection was closed (${code}${reason && `, ${reason}`})`);
    socket.onerror = null;
  }

  get buffered(): number {
    return this.#socket.bufferedAmount;
  }

  setHandler(handler: LinkHandler): void {
    this.#inbox.setHandler(handler);
  }

  send(text: string): void {
    if (this.#socket.readyState === WebSocket.OPEN) {
      this.#socket.send(text);
    }
  }

  sendBinary(message: Uint8Array): void {
    if (this.#socket.readyState === WebSocket.OPEN) {
      this.#socket.send(message as Uint8Array<ArrayBuffer>);
    }
  }

  setPaused(): void {}

  close(): void {
    this.#socket.close(1000);
  }

  abort(reason: string | ProtocolError): void {
    this.#socket.close();
    this.#inbox.closed(reason);
  }
}

/** Parses a URL of one of these schemes. */
export function parseUrl(url: string, schemes: readonly string[]): URL {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    throw new InvalidArgumentError(`\`${url}\` is not a URL; use one like ws://127.0.0.1:8080`);
  }
  if (!schemes.includes(parsed.protocol)) {
    const known = schemes.map((scheme) => `${scheme}//…`).join(", ");
    throw new InvalidArgumentError(`cannot connect to \`${parsed.protocol}\` URLs; use ${known}`);
  }
  return parsed;
}
