/**
 * Types of the protocol that appear in the interface of this package.
 *
 * @module
 */

/** What a server says about its host. */
export interface EnvironmentInfo {
  shell: { name: string; path: string };
  cwd?: string | null;
  executorVersion?: string;
  userHomeDir?: string | null;
  platformOs?: string | null;
  prependPathDirs?: string[];
  temporaryDirectories?: string[] | null;
  tempDir?: string | null;
  capabilities?: Record<string, boolean>;
}

/** Result of `initialize`. */
export interface InitializeResult {
  sessionId: string;
  environmentInfo?: EnvironmentInfo;
  extensions?: string[];
  server?: { name: string; version: string };
  sessionTtlMs?: number;
}

/** Stream of an output chunk. */
export type OutputStream = "stdout" | "stderr" | "pty";

/** Signals of `process/signal`, sent to the process group. */
export type WireSignal =
  | "interrupt"
  | "terminate"
  | "kill"
  | "hangup"
  | "quit"
  | "stop"
  | "continue"
  | "user1"
  | "user2";

/** Resource usage of a process. */
export interface ProcessUsage {
  wallMs: number;
  userMs: number;
  systemMs: number;
  maxRssBytes: number;
}

/** Limits of a process; absent members are unlimited. */
export interface ProcessLimits {
  /** Kills the tree this long after the start. */
  wallMs?: number;
  /** Kills the tree after this long without output or input. */
  idleMs?: number;
  /** Processor time of each process. */
  cpuMs?: number;
  /** Private memory of each process, and resident memory of the tree. */
  memoryBytes?: number;
  /** Processes of the tree. */
  processes?: number;
  /** Open files of each process. */
  openFiles?: number;
  /** Size of a written file. */
  fileBytes?: number;
}

/** How a command inherits the server's variables. */
export interface EnvPolicy {
  inherit: "all" | "core" | "none";
  ignoreDefaultExcludes: boolean;
  exclude: string[];
  set: Record<string, string>;
  includeOnly: string[];
}

/** A chunk of a page. */
export interface PageChunk {
  seq: number;
  stream: OutputStream;
  chunk: string;
  atMs?: number;
}

/** Result of `process/read`. */
export interface OutputPage {
  chunks: PageChunk[];
  nextSeq: number;
  exited: boolean;
  exitCode: number | null;
  closed: boolean;
  sandboxDenied?: boolean;
  exitSeq?: number;
  signal?: string | null;
  cause?: string;
  usage?: ProcessUsage;
}

/** A process of `process/list` and `history/list`. */
export interface ProcessDescription {
  processId: string;
  argv: string[];
  cwd: string;
  tty: boolean;
  running: boolean;
  exitCode: number | null;
  startedAtMs: number;
  osPid: number | null;
  detached: boolean;
  usage: ProcessUsage | null;
  owner?: string;
  state?: string;
  outputBytes?: number;
  durable?: boolean;
  endedAtMs?: number;
}

/** A port of `ports/list`. */
export interface ListeningPort {
  port: number;
  address: string;
  processId?: string;
  osPid?: number;
  program?: string;
}

/** Parameters of `process/start`. */
export interface StartParams {
  processId: string;
  argv: string[];
  cwd: string;
  env: Record<string, string>;
  envPolicy?: EnvPolicy;
  tty: boolean;
  pipeStdin?: boolean;
  arg0?: string;
  size?: { rows: number; cols: number };
  limits?: ProcessLimits;
  detached?: boolean;
  durable?: boolean;
  sandbox?: SandboxPolicy;
  enforceManagedNetwork?: boolean;
  managedNetwork?: object;
  networkProxy?: object;
}

/** Sandbox policy as it travels. Its paths are `file:` URIs. */
export interface SandboxPolicy {
  permissions: SandboxPermissions;
  cwd?: string;
  workspaceRoots?: string[];
  policyContext?: { cwd?: string; workspaceRoots?: string[] };
  userHomeDir?: string;
  temporaryDirectories?: string[];
  windowsSandboxLevel: "disabled" | "restricted-token" | "elevated" | "mxc";
  useLegacyLandlock?: boolean;
}

/** What a policy permits. */
export type SandboxPermissions =
  | { type: "managed"; file_system: FileSystemPolicy; network: NetworkAccess }
  | { type: "external"; network: NetworkAccess }
  | { type: "disabled" };

/** Whether the host's network is reachable. */
export type NetworkAccess = "restricted" | "enabled";

/** Which files are accessible. */
export type FileSystemPolicy =
  | { type: "unrestricted" }
  | { type: "restricted"; entries: SandboxEntry[]; glob_scan_max_depth?: number };

/** Access to one path; the most specific entry applies. */
export interface SandboxEntry {
  path: EntryPath;
  access: "read" | "write" | "deny";
  missing_path_behavior?: "skip";
}

/** Path of an entry. */
export type EntryPath =
  | { type: "path"; path: string }
  | { type: "glob_pattern"; pattern: string }
  | {
      type: "special";
      value:
        | { kind: "root" | "minimal" | "tmpdir" | "slash_tmp" }
        | { kind: "project_roots"; subpath?: string };
    };

/** A host that a process wants to reach. */
export interface NetworkPolicyRequest {
  protocol: string;
  host: string;
  port: number;
}

/** Answer to a {@link NetworkPolicyRequest}. */
export type NetworkPolicyDecision =
  | { type: "allow" }
  | { type: "deny"; reason?: string }
  | { type: "ask"; reason?: string };
