/**
 * Entry point for Node and Bun.
 *
 * @module
 */

import { type ConnectOptions, Environment } from "./environment.js";
import { findProgram, LocalConnector } from "./local-server.js";
import { NodeConnector, ProgramConnector } from "./node-links.js";

export * from "./exports.js";
export { RemoteChildProcess, spawn } from "./child-process.js";
export type { RemoteChildProcessEvents } from "./child-process.js";
export { forwardPort } from "./port-forward.js";
export type { PortForward } from "./port-forward.js";

/** Connection settings that only Node has. */
export interface NodeConnectOptions extends ConnectOptions {
  /** Certificates to trust for `wss://`, in PEM, instead of the host's. */
  ca?: string | Buffer;
}

/** Connects to a server by its `ws://`, `wss://` or `unix://` URL. */
export async function connect(url: string, options: NodeConnectOptions = {}): Promise<Environment> {
  const { token, ca } = options;
  return Environment.open(new NodeConnector(url, { token, ca }), options);
}

/** Connects to the server of this machine. The program `exec-server` starts it if none runs. */
export async function local(
  options: ConnectOptions & {
    /** The program. Default: `EXEC_SERVER`, else `exec-server` of the `PATH`. */
    program?: string;
    /** Socket of the server. Default: that of the account. */
    socket?: string;
  } = {},
): Promise<Environment> {
  return Environment.open(new LocalConnector(options), { ...options, connectTimeoutMs: 25_000 });
}

/**
 * Connects to a server that a program offers on its stdio, such as `["exec-server", "--listen",
 * "stdio"]` or `["exec-server", "connect", "ssh:box"]`. If the program ends it is started again,
 * and the session is resumed if the server still has it.
 */
export async function program(
  argv: readonly string[],
  options: ConnectOptions & {
    /** Working directory of the program. */
    cwd?: string;
    /** Its whole environment. Default: that of this program. */
    env?: Record<string, string | undefined>;
  } = {},
): Promise<Environment> {
  const { cwd, env } = options;
  return Environment.open(new ProgramConnector(argv, { cwd, env }), options);
}

/**
 * Connects to an environment that the program `exec-server` knows: a name of `exec-server env
 * list`, such as a machine behind a hub, or a URL. The program carries the connection, encrypted
 * end to end through a hub; on the other side it starts another `exec-server` for this client alone.
 */
export async function bridge(
  environment: string,
  options: ConnectOptions & {
    /** The program here. Default: `EXEC_SERVER`, else `exec-server` of the `PATH`. */
    program?: string;
    /** The program on the other side. Default: `exec-server` of the `PATH` there. */
    remoteProgram?: string;
  } = {},
): Promise<Environment> {
  const { program: local = findProgram(), remoteProgram = "exec-server", ...rest } = options;
  const remote = [remoteProgram, "--listen", "stdio"];
  return program([local, "run", "--env", environment, "--", ...remote], rest);
}
