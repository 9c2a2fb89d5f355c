/**
 * Local ports that lead into an environment.
 *
 * @module
 */

import { createServer, type Server, type Socket } from "node:net";
import { Duplex } from "node:stream";
import { pipeline } from "node:stream/promises";

import type { Environment } from "./environment.js";
import type { Tunnel } from "./tunnel.js";

/** A local port that leads to a port of an environment. */
export interface PortForward {
  /** The local port. */
  readonly port: number;
  /** Stops listening, and ends the connections. */
  close(): Promise<void>;
}

/** Listens on a port of 127.0.0.1 and connects each client to a port of the environment. */
export async function forwardPort(
  environment: Environment,
  options: { port: number; host?: string; processId?: string; localPort?: number },
): Promise<PortForward> {
  const { localPort = 0, ...target } = options;
  const sockets = new Set<Socket>();
  const server: Server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("close", () => sockets.delete(socket));
    environment
      .openTunnel(target)
      .then((tunnel) => joinSocket(tunnel, socket))
      .catch(() => socket.destroy());
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(localPort, "127.0.0.1", resolve);
  });
  const address = server.address();
  return {
    port: typeof address === "object" && address !== null ? address.port : localPort,
    close: async () => {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      for (const socket of sockets) {
        socket.destroy();
      }
      await closed;
    },
  };
}

async function joinSocket(tunnel: Tunnel, socket: Socket): Promise<void> {
  const stream = Duplex.fromWeb(tunnel as never, { allowHalfOpen: true });
  try {
    await Promise.all([pipeline(socket, stream, { end: true }), pipeline(stream, socket)]);
  } catch {
    tunnel.close();
    socket.destroy();
  }
}
