/**
 * Entry point for browsers: websockets only, without dependencies.
 *
 * @module
 */

import { type ConnectOptions, Environment } from "./environment.js";
import { InvalidArgumentError } from "./errors.js";
import { WebSocketConnector } from "./websocket.js";

export * from "./exports.js";

/** Connects to a server by its `ws://` or `wss://` URL. */
export async function connect(url: string, options: ConnectOptions = {}): Promise<Environment> {
  if (options.token !== undefined) {
    throw new InvalidArgumentError(
      "browsers cannot send a token: connect to a proxy that adds it (see sdk-typescript.md)",
    );
  }
  return Environment.open(new WebSocketConnector(url), options);
}
