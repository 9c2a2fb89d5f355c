/**
 * A link carries whole messages, whatever the transport.
 *
 * @module
 */

import type { ProtocolError } from "./errors.js";

/** Receives the messages and the end of a link. */
export interface LinkHandler {
  /** A message: JSON as text or UTF-8, or the binary form. */
  message(message: string | Uint8Array): void;
  /** The link has ended, with an error if the peer violated the protocol. Nothing follows. */
  closed(reason: string | ProtocolError): void;
}

/** An open connection to a server. */
export interface Link {
  /** Whether messages may have the binary form. */
  readonly binary: boolean;
  /** Bytes that wait to be sent. */
  readonly buffered: number;
  /** Whether {@link Link.setPaused} has an effect. */
  readonly pausable: boolean;
  /** Sets the receiver. Messages before this call are kept. */
  setHandler(handler: LinkHandler): void;
  /** Sends a text message. */
  send(text: string): void;
  /** Sends a message of the binary form. */
  sendBinary(message: Uint8Array): void;
  /** Stops or continues reading. */
  setPaused(paused: boolean): void;
  /** Ends the link gracefully, or by force if the peer does not answer. */
  close(): void;
  /** Ends the link at once. */
  abort(reason: string | ProtocolError): void;
}

/** Opens links to one server. */
export interface Connector {
  /** Address for messages, without secrets. */
  readonly address: string;
  /** Opens a link; rejects with a `ConnectError`. */
  open(signal: AbortSignal): Promise<Link>;
}

/** Keeps the messages that arrive before there is a handler. */
export class LinkInbox {
  #handler: LinkHandler | undefined;
  #early: (string | Uint8Array)[] = [];
  #closed: string | ProtocolError | undefined;
  #ended = false;

  setHandler(handler: LinkHandler): void {
    this.#handler = handler;
    for (const message of this.#early.splice(0)) {
      handler.message(message);
    }
    if (this.#closed !== undefined && !this.#ended) {
      this.#ended = true;
      handler.closed(this.#closed);
    }
  }

  message(message: string | Uint8Array): void {
    if (this.#closed !== undefined) {
      return;
    }
    if (this.#handler === undefined) {
      this.#early.push(message);
    } else {
      this.#handler.message(message);
    }
  }

  closed(reason: string | ProtocolError): void {
    if (this.#closed !== undefined) {
      return;
    }
    this.#closed = reason;
    if (this.#handler !== undefined) {
      this.#ended = true;
      this.#handler.closed(reason);
    }
  }
}
