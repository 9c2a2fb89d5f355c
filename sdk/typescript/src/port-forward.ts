/**
 * Local ports that lead into an environment.
 *
 * @module
 */

import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";

import type { Environment } from "./environment.js";
import { ClosedError } from "./errors.js";
import type { ConnectionListener } from "./session-client.js";
import type { Tunnel, TunnelTarget } from "./tunnel.js";

/** A local port that leads to a port of an environment. */
export interface PortForward {
  /** The local port. */
  readonly port: number;
  /** Stops listening, and ends the connections. Closing the environment does the same. */
  close(): Promise<void>;
}

/** Listens on a port of 127.0.0.1 and connects each client to a port of the environment. */
export async function forwardPort(
  environment: Environment,
  options: TunnelTarget & {
    /** Port of 127.0.0.1. Default: a free one. */
    localPort?: number;
  },
): Promise<PortForward> {
  const { localPort = 0, ...target } = options;
  const { client } = environment;
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
  const close = async (): Promise<void> => {
    client.listeners.delete(listener);
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    for (const socket of sockets) {
      socket.destroy();
    }
    await closed;
  };
  const listener: ConnectionListener = {
    disconnected: () => {},
    connected: () => {},
    lost: () => {
      if (environment.state === "closed") {
        void close();
      }
    },
  };
  client.listeners.add(listener);
  if (environment.state === "closed") {
    await close();
    throw new ClosedError();
  }
  const address = server.address();
  return {
    port: typeof address === "object" && address !== null ? address.port : localPort,
    close,
  };
}

async function joinSocket(tunnel: Tunnel, socket: Socket): Promise<void> {
  const upload = async (): Promise<void> => {
    const writer = tunnel.writable.getWriter();
    // The other direction goes on after the end of this one.
    for await (const chunk of socket.iterator({ destroyOnReturn: false })) {
      await writer.write(chunk as Buffer);
    }
    await writer.close();
  };
  const download = async (): Promise<void> => {
    for await (const chunk of tunnel.readable) {
      if (!socket.write(chunk)) {
        await once(socket, "drain");
      }
    }
    socket.end();
  };
  try {
    await Promise.all([upload(), download()]);
  } catch {
    tunnel.close();
    socket.destroy();
  }
}
