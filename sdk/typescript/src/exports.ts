/**
 * What both entry points export.
 *
 * @module
 */

export { Environment } from "./environment.js";
export type { CommandOptions, ConnectOptions, RequestOptions, RunOptions, SpawnOptions } from "./environment.js";
export {
  AuthenticationError,
  ClosedError,
  ConnectError,
  ConnectionLostError,
  ExecServerError,
  InterruptedError,
  InvalidArgumentError,
  InvalidParamsError,
  LimitError,
  NotFoundError,
  OutputLostError,
  ProtocolError,
  RefusedError,
  RemoteError,
  SessionLostError,
  StdinClosedError,
  UnsupportedError,
} from "./errors.js";
export type { FaultParty } from "./errors.js";
export { EnvironmentFiles, FileChangedError } from "./files.js";
export type {
  DirectoryEntry,
  FileOptions,
  LinkOptions,
  SearchMatch,
  SearchOptions,
  WalkOptions,
  WalkResult,
  WatchBatch,
  WriteOptions,
} from "./files.js";
export type { Connector, Link, LinkHandler } from "./link.js";
export { fromPathUri, toPathUri } from "./path-uri.js";
export type { HostPath } from "./path-uri.js";
export { CommandFailedError, CommandTimeoutError, Process, ProcessInput } from "./process.js";
export type { Bytes, ProcessSnapshot, RunResult, SignalName } from "./process.js";
export type { ProcessExit } from "./process-events.js";
export type {
  EntryPath,
  EnvironmentInfo,
  EnvPolicy,
  FileMetadata,
  FileSystemPolicy,
  ListeningPort,
  ManagedNetwork,
  NetworkAccess,
  NetworkDecision,
  NetworkDestination,
  NetworkProxy,
  OutputStream,
  ProcessLimits,
  ProcessSignal,
  ProcessSummary,
  ProxySettings,
  ResourceUsage,
  SandboxEntry,
  SandboxPermissions,
  SandboxPolicy,
} from "./wire.js";
export type * as wire from "./wire.js";
export {
  customSandbox,
  minimalEntry,
  readOnlySandbox,
  sandboxEntry,
  workspaceWriteSandbox,
} from "./sandbox.js";
export type { WorkspaceSandboxOptions } from "./sandbox.js";
export type { ConnectionState, NetworkPolicyHandler } from "./session-client.js";
export type { TunnelTarget } from "./tunnel.js";
export { Tunnel, TunnelClosedError, TunnelListener } from "./tunnel.js";
