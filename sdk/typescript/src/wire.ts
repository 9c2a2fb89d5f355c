/**
 * Types of the protocol. Generated from docs/schema by scripts/generate-types.mjs.
 *
 * @module
 */

/** `process/acknowledge`: the client has received the events of a process up to this one. */
export interface AcknowledgeProcess {
  /** Process id. */
  processId: ProcessId;
  /** Last received sequence number. */
  seq: OutputSeq;
}

/**
 * `process/attach`: follows a detached process from this connection. A process of another session
 * is taken over and becomes detached.
 */
export interface AttachProcess {
  /** Replay starts after this sequence number. Absent: at the oldest retained chunk. */
  afterSeq?: OutputSeq | null;
  /** Process id. */
  processId: ProcessId;
  /**
   * Start time from `process/list`. The call is refused if the id now belongs to another process.
   */
  startedAtMs?: number | null;
}

/** Response to `process/attach`. */
export interface AttachResult {
  /** Next sequence number to assign. */
  nextSeq: OutputSeq;
  /** The child has not been reaped. */
  running: boolean;
}

/** Bytes as base64: RFC 4648 with the standard alphabet and padding. */
export type Base64Bytes = string;

/** Block of a file. */
export interface BlockContent {
  /** Content. Absent if it is sent as raw bytes. */
  chunk?: Base64Bytes | null;
  /** The file ended before the requested number of bytes. */
  eof: boolean;
}

/** `http/request/cancel`: ends a streamed body. No notification of it follows the response. */
export interface CancelHttpRequest {
  /** Request id. Requests without an active stream are ignored. */
  requestId: HttpRequestId;
}

/** Path without symbolic links. */
export interface CanonicalPath {
  /** Resolved path. */
  path: PathUri;
}

/** `fs/canonicalize`: resolves all symbolic links of an existing path. */
export interface CanonicalizePath {
  /** Path to resolve. */
  path: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** File and its contents. */
export interface CapabilityFile {
  /** Contents as text. */
  contents: string;
  /** Path of the file. */
  path: PathUri;
}

/** `fs/close`: closes a file handle. Unknown handles are ignored. */
export interface CloseFile {
  /** Id of the file handle. */
  handleId: HandleId;
}

/** `process/closeStdin`: closes the child's stdin after all earlier writes. */
export interface CloseStdin {
  /** Process id. */
  processId: ProcessId;
  /** Makes retries idempotent on a terminal, where end-of-file is a character. */
  writeId?: WriteId | null;
}

/**
 * `tunnel/close`, in both directions: the tunnel has ended, and what was not delivered is lost.
 * From a client it also closes a listener with that id.
 */
export interface CloseTunnel {
  /** Why, if it did not end by itself. */
  reason?: string | null;
  /** The tunnel or listener. */
  tunnelId: TunnelId;
}

/** `command/exec/exited`: the process ended. */
export interface CommandExited {
  /** Exit code as in `process/exited`. */
  exitCode: number;
  /** Process id. */
  processId: ProcessId;
}

/** `command/exec/outputDelta`: output of a process. */
export interface CommandOutputDelta {
  /** Output bytes. Absent if they are sent as raw bytes. */
  chunk?: Base64Bytes | null;
  /** Process id. */
  processId: ProcessId;
  /** Stream that produced it. A terminal reports as `stdout`. */
  stream: CommandStream;
}

/** Response to `command/exec`. */
export interface CommandStarted {
  /** Always null. */
  exitCode?: number | null;
  /** Process id of the request. */
  processId: ProcessId;
  /** Always true: the response is sent once the process runs. */
  running: boolean;
  /** Always null: output is streamed. */
  stderr?: string | null;
  /** Always null: output is streamed. */
  stdout?: string | null;
}

/** Stream of a process of the first dialect. */
export type CommandStream = "stdout" | "stderr";

/** Response to `command/exec/write`. */
export interface CommandWritten {
  /** Always true: refusals are errors. */
  accepted: boolean;
}

/** One layer of configuration. */
export interface ConfigLayer {
  /** Base of relative paths in this layer. */
  baseDir: PathUri;
  /** Human-readable source. */
  source: string;
  /** Selected keys as TOML. */
  toml: string;
}

/** Configuration layers. Later layers override earlier ones. */
export interface ConfigStack {
  /** Index at which a client inserts its own layers. */
  cloudInsertionIndex?: number;
  /** Layers, lowest precedence first. Layers without selected keys are omitted. */
  layers: ConfigLayer[];
}

/** `fs/copy`: copies a file, a symbolic link or a tree. */
export interface CopyPath {
  /** Path of the copy. */
  destinationPath: PathUri;
  /** Copies directories recursively. */
  recursive: boolean;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
  /** Path to copy. */
  sourcePath: PathUri;
}

/** `fs/createDirectory`: creates a directory. */
export interface CreateDirectory {
  /** `false`: no component may be a symbolic link. */
  followSymlinks?: boolean | null;
  /** Path of the directory. */
  path: PathUri;
  /** Creates missing parents and accepts an existing directory. Absent: `true`. */
  recursive?: boolean | null;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** `fs/createSymlink`: creates a symbolic link. */
export interface CreateSymlink {
  /** Replaces an existing file or link, but not a directory. */
  overwrite?: boolean;
  /** Path of the link. */
  path: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
  /** Target, which need not exist. */
  target: string;
  /** Bytes of a target that is not UTF-8, used instead of `target`. */
  targetBase64?: Base64Bytes | null;
}

/** Position in a listing by pages. Opaque to clients. */
export type DirectoryCursor = string;

/** Entry of a directory. */
export interface DirectoryEntry {
  /** Name. Bytes that are not UTF-8 are replaced by U+FFFD. */
  fileName: string;
  /** Directory, possibly behind a symbolic link. */
  isDirectory: boolean;
  /** Regular file, possibly behind a symbolic link. */
  isFile: boolean;
  /** With `details`: target of a symbolic link. Bytes that are not UTF-8 are replaced by U+FFFD. */
  linkTarget?: string | null;
  /** Bytes of a target that is not UTF-8. */
  linkTargetBase64?: Base64Bytes | null;
  /**
   * With `details`: permission bits, those of the target for a symbolic link. Absent if they are
   * unknown.
   */
  mode?: number | null;
  /** With `details`: path of an entry whose name is not UTF-8. */
  path?: PathUri | null;
}

/** Entries of a directory: all of them unordered, or one page sorted by the bytes of the name. */
export interface DirectoryListing {
  /** Entries without `.`, `..` and, unless `details` asked for them, dangling symbolic links. */
  entries: DirectoryEntry[];
  /** Cursor of the next page, if there is one. */
  nextCursor?: DirectoryCursor | null;
}

/** `capabilities/discoverV2`: lists the plugins and skills installed for the account. */
export interface DiscoverCapabilities {
  /** Working directory. */
  cwd: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/**
 * `capabilityRoots/discoverV1`: reads the capability files below each root. Problems are reported
 * per root and do not fail the call.
 */
export interface DiscoverRoots {
  /** At most `limits::MAX_DISCOVERY_ROOTS` roots. */
  roots: DiscoveryRoot[];
}

/** Response to `capabilities/discoverV2`. */
export interface DiscoveredCapabilities {
  /** Installed plugins. */
  plugins?: InstalledPlugin[];
  /** Skills outside of plugins. */
  skills?: InstalledSkill[];
  /** Human-readable descriptions of omitted items. */
  warnings?: string[];
}

/** Capability files below a root. */
export interface DiscoveredRoot {
  /** Why the root could not be read. */
  error?: string | null;
  /** Id chosen by the client. */
  id: string;
  /** Manifests of the plugins that contain the root or lie below it. */
  namespaceManifests?: CapabilityFile[];
  /** Path of the directory. */
  path: PathUri;
  /** Plugin, if the root is one. */
  plugin?: PluginFiles | null;
  /** Skills, ordered by the URI of their instructions. */
  skills?: SkillFiles[];
  /** Human-readable descriptions of omitted items. */
  warnings?: string[];
}

/** Response to `capabilityRoots/discoverV1`. */
export interface DiscoveredRoots {
  /** One result per root, in the order of the request. */
  roots: DiscoveredRoot[];
}

/** Directory to search. */
export interface DiscoveryRoot {
  /** Id chosen by the client. */
  id: string;
  /** Path of the directory. */
  path: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** Rule for hosts that match a pattern. */
export type DomainRule = "allow" | "deny" | "none";

/** Empty object. */
export type EmptyResult = Record<string, unknown>;

/** Access to a path. */
export type EntryAccess = "read" | "write" | "deny";

/** Kind of an entry. */
export type EntryKind = "file" | "directory";

/** Path of a sandbox entry. */
export type EntryPath = {
  type: "path";
  /** Path. */
  path: PathUri;
} | {
  type: "glob_pattern";
  /** Pattern. */
  pattern: string;
} | {
  type: "special";
  /** Special path. */
  value: SpecialPath;
};

/** Variables of the server's environment that a policy starts with. */
export type EnvInherit = "all" | "none" | "core";

/** How the child inherits the server's environment. */
export interface EnvPolicy {
  /** Patterns of names to drop. */
  exclude: string[];
  /** Keeps variables with names that look like secrets. */
  ignoreDefaultExcludes: boolean;
  /** If not empty, patterns of the only names to keep. */
  includeOnly: string[];
  /** Variables to start with. */
  inherit: EnvInherit;
  /** Variables to set after dropping. */
  set: Record<string, string>;
}

/** Response to `environmentConfig/read`. */
export interface EnvironmentConfig {
  /** Directory of the configuration. */
  codexHomeDir: PathUri;
  /** Selected keys of the configuration. */
  config: ConfigStack;
  /** Host name. */
  hostname?: string | null;
  /** Selected keys of the requirements. */
  requirements: ConfigStack;
  /** Home directory of the account. */
  userHomeDir?: PathUri | null;
}

/** Host that commands run on. */
export interface EnvironmentInfo {
  /** Capabilities of the server. */
  capabilities?: ServerCapabilities;
  /** Working directory of the server. */
  cwd?: PathUri | null;
  /** Server version. */
  executorVersion?: string;
  /** `linux`, `macos` or `windows`. */
  platformOs?: string | null;
  /** Directories that a client should prepend to `PATH`. */
  prependPathDirs?: PathUri[];
  /** Opaque id of the build. */
  providerId?: string | null;
  /** Login shell of the account, or the best available one. */
  shell: ShellProgram;
  /** Directory that the server uses for temporary files. */
  tempDir?: PathUri | null;
  /** Contains `TMPDIR` if it is set, otherwise empty. Absent from older servers. */
  temporaryDirectories?: PathUri[] | null;
  /** Home directory of the account. */
  userHomeDir?: PathUri | null;
}

/** Response to `environment/status`. */
export interface EnvironmentStatus {
  /** Always `ready`. */
  status: string;
}

/** Stable number of a kind of failure. */
export type ErrorCode = number;

/** `command/exec`: starts a process. */
export interface ExecCommand {
  /** Overrides `argv[0]`. */
  arg0?: string | null;
  /** Program and arguments. Not empty. */
  argv: string[];
  /** Absolute native path of the working directory. */
  cwd: string;
  /** Complete environment. */
  env: Record<string, string>;
  /** Maximum retained bytes per stream. */
  outputBytesCap?: number | null;
  /** Id chosen by the client. */
  processId: ProcessId;
  /** Runs the process on a pseudo-terminal. Otherwise stdin is closed. */
  tty: boolean;
}

/** Whether the caller resolved approval and sandbox before the request. */
export type ExecMode = "direct" | "prepared";

/** Reason why a process ended. */
export type ExitCause = "exit" | "signal" | "terminated" | "wallLimit" | "idleLimit" | "memoryLimit" | "processLimit" | "lost" | (string & {});

/** Content of a file. */
export interface FileContent {
  /** Content. Absent if it is sent as raw bytes. */
  dataBase64?: Base64Bytes | null;
}

/** Metadata of a path. Symbolic links are followed and reported. */
export interface FileMetadata {
  /** Creation time in milliseconds since the Unix epoch; 0 if unknown. */
  createdAtMs: number;
  /** Directory, possibly behind a symbolic link. */
  isDirectory: boolean;
  /** Regular file, possibly behind a symbolic link. */
  isFile: boolean;
  /** The path itself is a symbolic link. */
  isSymlink: boolean;
  /**
   * Target of the symbolic link, with `details`. Bytes that are not UTF-8 are replaced by U+FFFD.
   */
  linkTarget?: string | null;
  /** Bytes of a target that is not UTF-8. */
  linkTargetBase64?: Base64Bytes | null;
  /** Permission bits. Absent if the server does not report them. */
  mode?: number | null;
  /** Modification time in milliseconds since the Unix epoch; 0 if unknown. */
  modifiedAtMs: number;
  /** Size in bytes. */
  size: number;
}

/** File permissions. */
export type FileSystemPolicy = {
  type: "restricted";
  /** Entries. The most specific entry for a path or one of its ancestors applies. */
  entries: SandboxEntry[];
  /** Maximum depth of glob expansion. */
  glob_scan_max_depth?: number | null;
} | {
  type: "unrestricted";
};

/** `fs/find`: finds files and directories by name. */
export interface FindPaths {
  /** Glob that the path below the root must match. Excludes `query`. */
  glob?: string | null;
  /** Maximum number of paths. */
  maxResults?: number;
  /** Directory to search. */
  path: PathUri;
  /**
   * Characters that the path below the root must contain in this order. Best matches come first.
   */
  query?: string | null;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** Result of a find. */
export interface FoundPaths {
  /** Paths, sorted by name for a glob and by match quality for a query. */
  paths: PathUri[];
  /** A limit was reached, so the result is incomplete. */
  truncated: boolean;
}

/** `fs/getMetadata`: returns the metadata of a path. */
export interface GetMetadata {
  /** Returns the target of a symbolic link, and describes a dangling one instead of failing. */
  details?: boolean;
  /** `false`: no component may be a symbolic link. */
  followSymlinks?: boolean | null;
  /** Path to examine. */
  path: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** File handle id that the client chose in `fs/open`. At most 32 bytes of UTF-8. */
export type HandleId = string;

/** `http/request/bodyDelta`: part of a streamed body, or its end. */
export interface HttpBodyDelta {
  /** Content. Absent if it is sent as raw bytes. */
  deltaBase64?: Base64Bytes | null;
  /** This is the last notification. */
  done?: boolean;
  /** Why the body is incomplete. */
  error?: string | null;
  /** Request id. */
  requestId: HttpRequestId;
  /** Sequence number, starting at 1 without gaps. */
  seq: number;
}

/** Request header. `Debug` hides the value because it may be a secret. */
export interface HttpHeader {
  /** Header name. */
  name: string;
  /** Header value, or the prefix of the variable's value. */
  value: string;
  /** Environment variable of the server. Its value is appended. */
  valueEnvVar?: string | null;
}

/** `http/request`: makes an HTTP request. An HTTP error status is a successful response. */
export interface HttpRequest {
  /** Body. Absent if it is empty or sent as raw bytes. */
  bodyBase64?: Base64Bytes | null;
  /** Headers in order. Names may repeat. */
  headers?: HttpHeader[];
  /** HTTP method. */
  method: string;
  /** Handling of redirects. */
  redirectPolicy?: RedirectPolicy;
  /** Request id chosen by the client, unique among its active streams. */
  requestId: HttpRequestId;
  /** Streams the body in `http/request/bodyDelta` notifications. */
  streamResponse?: boolean;
  /** Timeout of the whole request. Absent: unlimited. */
  timeoutMs?: number | null;
  /** An `http` or `https` URL. */
  url: string;
}

/** Request id that the client chose in `http/request`. At most 256 bytes of UTF-8. */
export type HttpRequestId = string;

/** Response to `http/request`. */
export interface HttpResponse {
  /** Body. Empty if it is streamed, absent if it is sent as raw bytes. */
  bodyBase64?: Base64Bytes | null;
  /** Headers in order, with lower-case names. Values that are not text are omitted. */
  headers?: HttpResponseHeader[];
  /** HTTP status. */
  status: number;
}

/** Response header. */
export interface HttpResponseHeader {
  /** Lower-case name. */
  name: string;
  /** Header value. */
  value: string;
}

/** `tunnel/incoming`: the server accepted a connection. The server chose the id of the tunnel. */
export interface IncomingTunnel {
  /** The listener. */
  listenId: ListenId;
  /** The new tunnel. */
  tunnelId: TunnelId;
}

/** `initialize`: the first request of a connection. Opens a session or resumes one. */
export interface InitializeParams {
  /** Client name for logs. */
  clientName: string;
  /** Extensions that the client supports. Unknown ones are not granted. */
  extensions?: string[] | null;
  /** Detached session to resume. */
  resumeSessionId?: SessionId | null;
}

/** Response to `initialize`. Older peers send only the first member. */
export interface InitializeResponse {
  /** Host that commands run on. */
  environmentInfo?: EnvironmentInfo | null;
  /** Granted extensions. */
  extensions?: ProtocolExtension[];
  /** Server software. */
  server?: ServerInfo | null;
  /** Session of the connection. */
  sessionId: SessionId;
  /**
   * How long the server retains a session without a connection, in milliseconds. Clients try to
   * resume for that long.
   */
  sessionTtlMs?: number | null;
}

/** An installed plugin. */
export interface InstalledPlugin {
  /** Version. */
  version: string;
  /** Display name. */
  displayName?: string | null;
  /** Files that declare the plugin. */
  files: PluginFiles;
  /** `<name>@<marketplace>`. */
  id: string;
  /** Id in the marketplace. */
  remotePluginId?: string | null;
  /** Installation directory. */
  root: PathUri;
  /** Skills of the plugin, named `<plugin>:<skill>`. */
  skills?: InstalledSkill[];
}

/** An installed skill. */
export interface InstalledSkill {
  /** Name. */
  name: string;
  /** Description. */
  description: string;
  /** Dependencies. */
  dependencies?: SkillDependencies | null;
  /** Directory in which it was found. Absent for skills of a plugin. */
  discoveryRoot?: SkillRoot | null;
  /** Path of its `SKILL.md`. */
  path: PathUri;
  /** Usage policy. */
  policy?: SkillPolicy | null;
  /** Short description. */
  shortDescription?: string | null;
}

/** `history/list`: lists recorded processes, oldest first. */
export type ListHistory = Record<string, unknown> | null;

/** `ports/list`: lists the TCP ports that listen on the host. */
export interface ListPorts {
  /** Lists those in the network of this process of the session. */
  processId?: ProcessId | null;
}

/** `process/list`: lists the session's processes and the detached ones. */
export type ListProcesses = {
  /** Includes processes of other sessions that the client may attach to. */
  all?: boolean;
} | null;

/** Listener id that the client chose in `tunnel/listen`. At most 64 bytes of UTF-8. */
export type ListenId = string;

/** Response to `tunnel/listen`. */
export interface ListenResult {
  /** Port of the listener. */
  port: number;
}

/** `tunnel/listen`: accepts connections on a TCP port of the host. */
export interface ListenTunnel {
  /** Address to listen on. Absent: the loopback of the host. */
  host?: TunnelHost | null;
  /** Id that the client chose. Repeating the request of an open listener has no effect. */
  listenId: ListenId;
  /** TCP port; 0 lets the host choose. */
  port: number;
  /** Listens in the network of this process of the session. */
  processId?: ProcessId | null;
  /** Policy that must allow the listener. */
  sandbox?: SandboxPolicy | null;
}

/** A TCP port that listens. */
export interface ListeningPort {
  /** Address that it is bound to. */
  address: string;
  /** OS pid of the program that has it open, if the server may know it. */
  osPid?: number | null;
  /** Port number. */
  port: number;
  /** Process of the session that has it open, itself or in its tree. */
  processId?: ProcessId | null;
  /** Name of that program. */
  program?: string | null;
}

/** `managedNetwork` of `process/start`: exceptions of a sandbox without network. */
export interface ManagedNetwork {
  /** Allows the process to listen on its own loopback, and to connect to it. */
  allowLocalBinding?: boolean;
  /** Unix sockets that the process may connect to. */
  allowUnixSockets?: string[];
  /** Allows connections to every unix socket. */
  dangerouslyAllowAllUnixSockets?: boolean;
  /** Loopback ports of the host that stay reachable because the client runs a proxy there. */
  loopbackPorts?: number[];
}

/** Meaning of an entry for a missing path. */
export type MissingPathBehavior = "skip";

/** `fs/missingChanged`: a path changed. The watch has ended. */
export interface MissingPathNotification {
  /** Id of the watch. */
  watchId: number;
}

/** Network permissions. */
export type NetworkAccess = "restricted" | "enabled";

/** Decision about a destination. */
export type NetworkDecision = {
  type: "allow";
} | {
  type: "deny";
  /** At most 1024 bytes, without control characters. */
  reason: string;
} | {
  type: "ask";
  /** At most 1024 bytes, without control characters. */
  reason: string;
};

/** Destination of a connection. */
export interface NetworkDestination {
  /** Host as named by the process. */
  host: string;
  /** Port. */
  port: number;
  /** Protocol. */
  protocol: NetworkProtocol;
}

/** Protocol of a connection. */
export type NetworkProtocol = "http" | "https_connect" | "socks5_tcp" | "socks5_udp";

/** `networkProxy` of `process/start`: a proxy that the server runs for this process. */
export interface NetworkProxy {
  /** Identity for audit records. */
  auditMetadata?: unknown;
  /** Environment id chosen by the client. */
  environmentId?: string | null;
  /** Run id chosen by the client. */
  executionId?: string | null;
  /**
   * Timeout of policy requests to the client about undecided hosts. Absent: no requests. Not zero.
   */
  policyDecisionTimeoutMs?: number | null;
  /** Proxy settings. */
  proxy: ProxySettings;
}

/** `fs/open`: opens a regular file under a handle id chosen by the client. */
export interface OpenFile {
  /** Handle id, unique on the connection. */
  handleId: HandleId;
  /** Access mode. */
  mode?: OpenMode;
  /** Path of the file. */
  path: PathUri;
  /** Sandbox policy, checked only when the file is opened. */
  sandbox?: SandboxPolicy | null;
}

/** Access mode of a file handle. */
export type OpenMode = "read" | "replace" | "update";

/** `tunnel/open`: connects to a TCP port. */
export interface OpenTunnel {
  /** Name or address, resolved on the host. Absent: its loopback. */
  host?: TunnelHost | null;
  /** TCP port. */
  port: number;
  /** Connects in the network of this process of the session. */
  processId?: ProcessId | null;
  /** Policy that must allow the connection. */
  sandbox?: SandboxPolicy | null;
  /** Id that the client chose. Repeating the request of an open tunnel has no effect. */
  tunnelId: TunnelId;
}

/** Response to `fs/open`. */
export interface OpenedFile {
  /** Id chosen by the client. */
  handleId: HandleId;
}

/** Response to `process/read`. */
export interface OutputPage {
  /** Reason for the exit. */
  cause?: ExitCause | null;
  /** Retained output after the cursor, in ascending order. */
  chunks: PageChunk[];
  /** The output ended. */
  closed: boolean;
  /** Exit code, if reaped. */
  exitCode?: number | null;
  /** Sequence number of `process/exited`, once the child was reaped. */
  exitSeq?: OutputSeq | null;
  /** The child was reaped. */
  exited: boolean;
  /** Always null from a server. Clients report their own failures here. */
  failure?: string | null;
  /** Where to continue: the next `afterSeq` is this minus one. */
  nextSeq: OutputSeq;
  /** The sandbox probably denied an operation. */
  sandboxDenied?: boolean;
  /** POSIX name of the signal that killed the process. */
  signal?: string | null;
  /** Resource usage, once reaped. */
  usage?: ResourceUsage | null;
}

/** Sequence number of an event of a process. Starts at 1 without gaps; 0 is before the first. */
export type OutputSeq = number;

/** Where output came from. */
export type OutputStream = "stdout" | "stderr" | "pty";

/** Chunk of retained output. */
export interface PageChunk {
  /** Time in milliseconds since the Unix epoch, if it was requested and recorded. */
  atMs?: number | null;
  /** Output bytes. */
  chunk: Base64Bytes;
  /** Sequence number. */
  seq: OutputSeq;
  /** Stream that produced it. */
  stream: OutputStream;
}

/** Change of one path. */
export interface PathChange {
  /** Kind of change. */
  kind: PathChangeKind;
  /** Changed path. */
  path: PathUri;
}

/** Kind of change. */
export type PathChangeKind = "created" | "modified" | "removed" | "renamed" | (string & {});

/**
 * Absolute path as a `file:` URI, without query, fragment, port and credentials, such as
 * `file:///srv/a%20b`.
 */
export type PathUri = string;

/** Files that declare a plugin. */
export interface PluginFiles {
  /** Configuration of apps. */
  appsConfig?: CapabilityFile | null;
  /** Plugin manifest. */
  manifest: CapabilityFile;
  /** Configuration of MCP servers. */
  mcpConfig?: CapabilityFile | null;
}

/** Directories that the relative parts of a policy refer to. */
export interface PolicyContext {
  /** Base of relative globs. */
  cwd?: PathUri | null;
  /** Directories that `project_roots` refers to. */
  workspaceRoots?: PathUri[];
}

/** `network/policyDecision`: audit record of a decision. */
export interface PolicyDecision {
  /** Address of the process's end of the connection. */
  client?: string | null;
  /** `allow`, `deny` or `ask`. */
  decision: string;
  /** Host as named by the process. */
  host: string;
  /** HTTP method. */
  method?: string | null;
  /** The decision overrode the static policy. */
  policyOverride: boolean;
  /** Port. */
  port: number;
  /** Process that connected. */
  processId: ProcessId;
  /** Protocol of the connection. */
  protocol: string;
  /** Reason for the decision. */
  reason: string;
  /** Scope of the decision: `domain`. */
  scope: string;
  /** Source of the decision: `baseline_policy`, `mode_guard` or `decider`. */
  source: string;
  /** Time of the decision: RFC 3339 with milliseconds, UTC. */
  timestamp: string;
}

/** `network/policyRequest`: the server asks the client for a policy decision. */
export interface PolicyRequest {
  /** Process that connects. */
  processId: ProcessId;
  /** Destination of the connection. */
  request: NetworkDestination;
}

/** Result of `network/policyRequest`. */
export interface PolicyResponse {
  /** Decision of the client. */
  decision: NetworkDecision;
}

/** Response to `ports/list`. */
export interface PortList {
  /** The ports, by number and address. */
  ports: ListeningPort[];
}

/** `process/closed`: all output ended. This is the last event, sent exactly once. */
export interface ProcessClosed {
  /** Process id. */
  processId: ProcessId;
  /** Highest sequence number of the process. Absent from the oldest peers. */
  seq?: OutputSeq;
}

/** `process/exited`: the child was reaped. Sent exactly once. */
export interface ProcessExited {
  /** Reason for the exit. */
  cause?: ExitCause | null;
  /** Exit status, or 128 + n if signal n killed the process. Never invented. */
  exitCode: number;
  /** Process id. */
  processId: ProcessId;
  /** The sandbox probably denied an operation. */
  sandboxDenied?: boolean | null;
  /** Sequence number of the event. */
  seq: OutputSeq;
  /** POSIX name of the signal that killed the process. */
  signal?: string | null;
  /** Resource usage. */
  usage?: ResourceUsage | null;
}

/** `process/failed`: the process failed to start (extension `lifecycle`). */
export interface ProcessFailed {
  /** Human-readable reason. */
  message: string;
  /** Process id. */
  processId: ProcessId;
}

/**
 * Process id that the client chose in `process/start`. Not an OS pid. May be empty. At most 1024
 * bytes of UTF-8.
 */
export type ProcessId = string;

/** Resource limits of a process. Absent members are unlimited. */
export interface ProcessLimits {
  /** CPU time in milliseconds, rounded up to a second. */
  cpuMs?: number | null;
  /** Bytes per written file. */
  fileBytes?: number | null;
  /** Limit of time without input or output in milliseconds, after which the process is killed. */
  idleMs?: number | null;
  /** Memory in bytes. */
  memoryBytes?: number | null;
  /** Open descriptors per process. */
  openFiles?: number | null;
  /** Number of processes of the account. */
  processes?: number | null;
  /** Wall-clock limit in milliseconds, after which the process is killed. */
  wallMs?: number | null;
}

/** Response to `process/list`. */
export interface ProcessList {
  /** Ordered by id. */
  processes: ProcessSummary[];
}

/** Origin of the process in terms of the client. */
export interface ProcessMetadata {
  /** UUID of the thread. */
  threadId?: string | null;
  /** Id of the tool call. Any text. */
  toolCallId?: string | null;
}

/** `process/output`: output of a process. */
export interface ProcessOutput {
  /** Output bytes. Absent if they are sent as raw bytes. */
  chunk?: Base64Bytes | null;
  /** Process id. */
  processId: ProcessId;
  /** Sequence number of the event. */
  seq: OutputSeq;
  /** Stream that produced it. */
  stream: OutputStream;
}

/** Owner of a process. */
export type ProcessOwner = "session" | "server" | (string & {});

/** Signal that a client may send. */
export type ProcessSignal = "interrupt" | "terminate" | "kill" | "hangup" | "quit" | "stop" | "continue" | "user1" | "user2";

/** Response to `process/snapshot`. */
export interface ProcessSnapshot {
  /** Exit code, if reaped. */
  exitCode?: number | null;
  /** Omitted bytes of all streams. */
  omittedBytes: number;
  /** The child has not been reaped. */
  running: boolean;
  /** Head and tail of standard error. */
  stderr: Base64Bytes;
  /** Head and tail of standard output. */
  stdout: Base64Bytes;
  /** Head and tail of the terminal. */
  terminal: Base64Bytes;
  /** Output was omitted between head and tail. */
  truncated: boolean;
}

/** `process/started`: the process runs (extension `lifecycle`). */
export interface ProcessStarted {
  /** OS pid of the child. */
  osPid?: number | null;
  /** Process id. */
  processId: ProcessId;
  /** Start time in milliseconds since the Unix epoch. */
  startedAtMs: number;
}

/** State of a process. */
export type ProcessState = "running" | "exited" | "lost" | (string & {});

/** Entry of a process list. */
export interface ProcessSummary {
  /** Program and arguments. */
  argv: string[];
  /** Working directory. */
  cwd: PathUri;
  /** The process is detached. */
  detached: boolean;
  /** The process outlives its server. */
  durable?: boolean | null;
  /** End time in milliseconds since the Unix epoch, in `history/list`. */
  endedAtMs?: number | null;
  /** Exit code, if reaped. */
  exitCode?: number | null;
  /** OS pid of the child. */
  osPid?: number | null;
  /** Retained output bytes. */
  outputBytes?: number | null;
  /** Owner. Absent from older servers, like the following members. */
  owner?: ProcessOwner | null;
  /** Id chosen by the client. */
  processId: ProcessId;
  /** The child has not been reaped. */
  running: boolean;
  /** Terminal size at the start, in `history/list`. */
  size?: TerminalSize | null;
  /** Start time in milliseconds since the Unix epoch. */
  startedAtMs: number;
  /** State. */
  state?: ProcessState | null;
  /** Runs on a terminal. */
  tty: boolean;
  /** Resource usage, once reaped. */
  usage?: ResourceUsage | null;
}

/**
 * Extension of the protocol: changes the frame format, adds notifications, or announces optional
 * members that another server would ignore.
 */
export type ProtocolExtension = "binaryData" | "lifecycle" | "acknowledge" | "fileDetails" | "tunnels" | (string & {});

/** Requests that a proxy permits. */
export type ProxyMode = "limited" | "full";

/** Settings of a proxy. */
export interface ProxySettings {
  /** Allows destinations on this machine and in private networks. */
  allowLocalBinding: boolean;
  /** Allows an upstream proxy from the server's environment. */
  allowUpstreamProxy: boolean;
  /** Masks credentials. `true` is refused, because this server does not support masking. */
  credentialMasking?: boolean;
  /** Credential providers. Refused unless empty, like masking. */
  credentialProviders?: Record<string, unknown>;
  /** Applies to macOS only. */
  dangerouslyAllowAllUnixSockets: boolean;
  /** Host patterns. */
  domains?: Record<string, DomainRule> | null;
  /** Enables SOCKS5. */
  enableSocks5: boolean;
  /** Enables UDP over SOCKS5. */
  enableSocks5Udp: boolean;
  /** Enables the proxy. `false` is refused. */
  enabled: boolean;
  /** Permitted requests. */
  mode: ProxyMode;
  /** Hosts that require a policy request although they are allowed. */
  reviewDomains?: string[] | null;
  /** Applies to macOS only. */
  unixSockets?: Record<string, SocketRule> | null;
}

/** Handling of proxy settings on Windows. */
export type ProxySettingsMode = "reconcile" | "preserve";

/** `history/purge`: removes recorded processes that have ended. */
export interface PurgeHistory {
  /** Only processes with this id. */
  processId?: ProcessId | null;
  /** Only the process that started at this time. */
  startedAtMs?: number | null;
}

/** Response to `history/purge`. */
export interface PurgedHistory {
  /** Number of removed processes. */
  purged: number;
}

/** `fs/readBlock`: reads from an open file. Handles have no cursor. */
export interface ReadBlock {
  /** Id of the file handle. */
  handleId: HandleId;
  /** Number of bytes, 1 to 1 MiB. */
  len: number;
  /** Offset of the block. */
  offset: number;
}

/**
 * `fs/readDirectory`: lists a directory, by pages if one of `details`, `limit` and `cursor` is
 * given.
 */
export interface ReadDirectory {
  /** Continues after the page that returned this cursor. */
  cursor?: DirectoryCursor | null;
  /** Returns mode and link target of each entry, and lists dangling links. */
  details?: boolean;
  /** Maximum entries of the page. */
  limit?: number | null;
  /** Path of the directory. */
  path: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** `environmentConfig/read`: reads selected keys of the executor's own configuration. */
export interface ReadEnvironmentConfig {
  /** Keys of `config.toml`, each as a literal key path. */
  configPaths: string[][];
  /** Directory that selects the project configuration. It need not exist. */
  cwd: PathUri;
  /** Keys of `requirements.toml`, each as a literal key path. */
  requirementsPaths: string[][];
}

/** `environment/info`: describes the host. */
export type ReadEnvironmentInfo = Record<string, never> | null;

/** `environment/status`: checks that the connection is alive and ready. */
export type ReadEnvironmentStatus = Record<string, never> | null;

/** `fs/readFile`: reads a whole regular file. */
export interface ReadFile {
  /** `false`: no component may be a symbolic link. */
  followSymlinks?: boolean | null;
  /** Path of the file. */
  path: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** `process/read`: pages through retained output; never consumes it. */
export interface ReadProcess {
  /** Last sequence number the client has seen. Absent: start at the oldest retained chunk. */
  afterSeq?: OutputSeq | null;
  /** Maximum bytes. At least one whole chunk is returned. */
  maxBytes?: number | null;
  /** The process, as the client named it in `process/start`. Not an OS pid. */
  processId: ProcessId;
  /** Adds the time of each chunk. Only durable processes record times. */
  times?: boolean;
  /** How long to wait for new output, in milliseconds. */
  waitMs?: number | null;
}

/** `server/status`: describes the server process. */
export type ReadServerStatus = Record<string, unknown> | null;

/** Handling of redirects. */
export type RedirectPolicy = "follow" | "stop";

/** `process/release`: stops following, and optionally removes a finished process. */
export interface ReleaseProcess {
  /** Removes a finished process and its output, which frees its id. */
  forget?: boolean;
  /** Process id. */
  processId: ProcessId;
}

/** `fs/remove`: removes a file, a symbolic link or a tree. Targets of links are never removed. */
export interface RemovePath {
  /** `false`: no component may be a symbolic link. */
  followSymlinks?: boolean | null;
  /** Ignores a missing path. Absent: `true`. */
  force?: boolean | null;
  /** Path to remove. */
  path: PathUri;
  /** Removes directories recursively. Absent: `true`. */
  recursive?: boolean | null;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** `fs/rename`: renames a file, a symbolic link or a directory atomically. */
export interface RenamePath {
  /** New path. */
  destinationPath: PathUri;
  /** Replaces an existing destination. */
  overwrite?: boolean;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
  /** Path to rename. */
  sourcePath: PathUri;
}

/** Request id, chosen by the sender. */
export type RequestId = string | number;

/** `process/resize`: sets the terminal size. */
export interface ResizeProcess {
  /** Number of columns. */
  cols: number;
  /** Process id. */
  processId: ProcessId;
  /** Number of rows. */
  rows: number;
}

/** Resource usage of a process. */
export interface ResourceUsage {
  /** Maximum resident memory in bytes. */
  maxRssBytes: number;
  /** CPU time in the kernel, in milliseconds. */
  systemMs: number;
  /** CPU time in user mode, in milliseconds. */
  userMs: number;
  /** Wall-clock time in milliseconds. */
  wallMs: number;
}

/** The `error` member of a response. */
export interface RpcError {
  /** Kind of failure. */
  code: ErrorCode;
  /** Human-readable description. */
  message: string;
}

/** Access to one path and everything below it. */
export interface SandboxEntry {
  /** Permitted access. */
  access: EntryAccess;
  /** Meaning of the entry if the path does not exist. */
  missing_path_behavior?: MissingPathBehavior | null;
  /** Path of the entry. */
  path: EntryPath;
}

/** How a policy was approved. */
export type SandboxOverride = "noOverride" | "escalatedSandboxWithRestrictions" | "bypassSandboxFirstAttempt";

/** Permissions and their enforcement. */
export type SandboxPermissions = {
  type: "managed";
  /** File permissions. */
  file_system: FileSystemPolicy;
  /** Network permissions. */
  network: NetworkAccess;
} | {
  type: "disabled";
} | {
  type: "external";
  /** Network permissions. */
  network: NetworkAccess;
};

/** Sandbox policy with the directories that its relative parts refer to. */
export interface SandboxPolicy {
  /** Base of relative globs and project roots. */
  cwd?: PathUri | null;
  /** Policy. */
  permissions: SandboxPermissions;
  /** Overrides the two members above. */
  policyContext?: PolicyContext | null;
  /** How the policy was approved. Never loosens it. */
  sandboxOverride?: SandboxOverride | null;
  /** Directories for temporary files. */
  temporaryDirectories?: PathUri[] | null;
  /** Requests enforcement by Landlock alone. */
  useLegacyLandlock?: boolean;
  /** Home directory of the account. */
  userHomeDir?: PathUri | null;
  /** Required on every platform, applies to Windows. */
  windowsSandboxLevel: WindowsSandboxLevel;
  /** Applies to Windows. */
  windowsSandboxProxySettingsMode?: ProxySettingsMode | null;
  /** Directories that `project_roots` refers to. */
  workspaceRoots?: PathUri[];
}

/** Sandbox mechanism of a process. */
export type SandboxType = "none" | "linuxSeccomp" | "macosSeatbelt" | "windowsRestrictedToken" | (string & {});

/** Matching line. */
export interface SearchMatch {
  /** Context lines after the match. */
  after: string[];
  /** Context lines before the match. */
  before: string[];
  /** Byte offset of the first match in the line, starting at 1. */
  column: number;
  /** Line number, starting at 1. */
  line: number;
  /** Path of the file. */
  path: PathUri;
  /** Line without its terminator. Bytes that are not UTF-8 are replaced by U+FFFD. */
  text: string;
}

/** Result of a search. */
export interface SearchResult {
  /** Matching lines, ordered by path and line. */
  matches: SearchMatch[];
  /** A limit was reached, so the result is incomplete. */
  truncated: boolean;
}

/** `fs/search`: finds matching lines. */
export interface SearchText {
  /** Matches case-sensitively. */
  caseSensitive?: boolean;
  /** Number of context lines before and after each match. */
  contextLines?: number;
  /** Glob that the path of a file below the root must match. */
  glob?: string | null;
  /** Maximum number of matching lines. */
  maxMatches?: number;
  /** Directory or file to search. */
  path: PathUri;
  /** Pattern to search for. */
  pattern: string;
  /** The pattern is a regular expression. Absent: literal text. */
  regex?: boolean;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** Capabilities of the server. A client must not use those that are false or absent. */
export interface ServerCapabilities {
  /** `sandbox` on discovery roots. */
  capabilityDiscoverySandbox?: boolean;
  /** `capabilities/discoverV2`. */
  capabilityDiscoveryV2?: boolean;
  /** Masking members of `networkProxy.proxy`. */
  credentialMasking?: boolean;
  /** Masking for custom providers. */
  credentialMaskingCustomProviders?: boolean;
  /** `environmentConfig/read`. */
  environmentConfigRead?: boolean;
  /** `fs/open` for replacing, and `fs/writeBlock`. */
  fileWriteStreaming?: boolean;
  /** `fs/watchMissing`. */
  fsWatchMissing?: boolean;
  /** `valueEnvVar` in HTTP headers. */
  httpHeaderEnvVars?: boolean;
  /**
   * A policy that allows writing to the root keeps its denied reads, as after an approved
   * escalation. Omitted if false, as by the stock server.
   */
  linuxApprovedRootWritePreservesRestrictions?: boolean;
  /** `networkProxy` of `process/start`. */
  networkProxyLaunch?: boolean;
  /** `networkProxy.proxy.reviewDomains`. */
  networkProxyReviewDomains?: boolean;
  /** `fs/open` under a sandbox. */
  sandboxedFileStreaming?: boolean;
  /** `shellSnapshot` of `process/start`. */
  shellSnapshotV2?: boolean;
}

/** Name and version of the server software. */
export interface ServerInfo {
  /** Program name. */
  name: string;
  /** Version. */
  version: string;
}

/** Response to `server/status`. */
export interface ServerStatus {
  /** Version of the program. */
  version: string;
  /** OS pid of the server. */
  osPid: number;
  /** Why the last `server/upgrade` was undone, if it was. */
  upgradeError?: string | null;
}

/** Session id that the server chose. A client that knows it may resume the session. */
export type SessionId = string;

/** `fs/setMetadata`: sets the mode or the modification time of a path. */
export interface SetMetadata {
  /** `false`: no component may be a symbolic link. */
  followSymlinks?: boolean | null;
  /** Permission bits. */
  mode?: number | null;
  /** Modification time in milliseconds since the Unix epoch. */
  modifiedAtMs?: number | null;
  /** Path to change. */
  path: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** Shell program. */
export interface ShellProgram {
  /** Kind of shell: `zsh`, `bash`, `sh`, … */
  name: string;
  /** Path of the program. */
  path: string;
}

/** Requests the snapshot of a login shell. */
export interface ShellSnapshot {
  /** Scope in which the snapshot is reused, 1 to 256 bytes. */
  scopeId: string;
  /** Shell program. */
  shell: ShellProgram;
}

/** `process/signal`: sends a signal to the process group. */
export interface SignalProcess {
  /** Process id. */
  processId: ProcessId;
  /** Signal to send. */
  signal: ProcessSignal;
}

/** Dependencies of a skill. */
export interface SkillDependencies {
  /** Required tools. */
  tools?: SkillTool[];
}

/** Files of a skill. */
export interface SkillFiles {
  /** `SKILL.md`. */
  instructions: CapabilityFile;
  /** `agents/openai.yaml`. */
  metadata?: CapabilityFile | null;
}

/** Usage policy of a skill. */
export interface SkillPolicy {
  /** Allows use of the skill without naming it. */
  allowImplicitInvocation?: boolean | null;
  /** Products the skill is for. */
  products?: string[];
}

/** Directory of skills. */
export interface SkillRoot {
  /** Id of the directory. */
  id: string;
  /** Path of the directory. */
  path: PathUri;
}

/** Tool that a skill requires. */
export interface SkillTool {
  /** Description. */
  description?: string | null;
  /** Kind of tool. */
  type: string;
  /** Command that starts it. */
  command?: string | null;
  /** Port of the OAuth callback. */
  oauthCallbackPort?: number | null;
  /** Transport to reach it. */
  transport?: string | null;
  /** URL of the tool. */
  url?: string | null;
  /** Name of the tool. */
  value: string;
}

/** `process/snapshot`: returns head and tail of the output. */
export interface SnapshotProcess {
  /** Process id. */
  processId: ProcessId;
}

/** Rule for a unix socket. */
export type SocketRule = "allow" | "deny" | "none";

/** Path that differs between hosts. */
export type SpecialPath = {
  kind: "root";
} | {
  kind: "minimal";
} | {
  kind: "project_roots";
  /** Path below each root. */
  subpath?: string | null;
} | {
  kind: "tmpdir";
} | {
  kind: "slash_tmp";
} | {
  kind: "unknown";
  /** Name of the special path. */
  path: string;
  /** Path below it. */
  subpath?: string | null;
};

/** `process/start`: starts a process. The response is sent once it runs or has failed to start. */
export interface StartProcess {
  /** Overrides `argv[0]`. */
  arg0?: string | null;
  /** Program and arguments. Not empty. */
  argv: string[];
  /** Working directory. */
  cwd: PathUri;
  /** Detaches the process: it belongs to the server instead of the session. */
  detached?: boolean;
  /** Whether the process outlives its server. Absent: as the server is configured. */
  durable?: boolean | null;
  /** Requires a sandbox with managed network. */
  enforceManagedNetwork?: boolean;
  /** Environment variables, applied on top of those from the policy. */
  env: Record<string, string>;
  /** How the child inherits the server's environment. Absent: not at all. */
  envPolicy?: EnvPolicy | null;
  /** Resource limits. */
  limits?: ProcessLimits | null;
  /** Settings of the managed network. */
  managedNetwork?: ManagedNetwork | null;
  /** Exported to the child as `CODEX_THREAD_ID` and `CODEX_TOOL_CALL_ID`. */
  metadata?: ProcessMetadata | null;
  /** Whether the caller has already resolved its policy for this request. */
  mode?: ExecMode | null;
  /** Proxy that the server runs for this process. */
  networkProxy?: NetworkProxy | null;
  /** Keeps stdin writable for a process without a terminal. */
  pipeStdin?: boolean;
  /** Process id chosen by the client, unique in the session. */
  processId: ProcessId;
  /** Sandbox policy. Absent: no sandbox. */
  sandbox?: SandboxPolicy | null;
  /** Restores a snapshot of a login shell instead of sourcing its profiles. */
  shellSnapshot?: ShellSnapshot | null;
  /** Initial terminal size. Absent: 24 × 80. */
  size?: TerminalSize | null;
  /** Runs the process on a pseudo-terminal. */
  tty: boolean;
}

/** Response to `process/start`. */
export interface StartResult {
  /** Process id of the request. */
  processId: ProcessId;
  /** Sandbox mechanism. Absent from older peers. */
  sandboxType?: SandboxType | null;
}

/** `fs/watch`: reports changes of a file or directory until `fs/unwatch`. */
export interface StartWatch {
  /** Existing file or directory. */
  path: PathUri;
  /** Watches the whole tree below a directory instead of its direct entries. */
  recursive?: boolean;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
  /** Watch id chosen by the client, unique on the connection. */
  watchId: WatchId;
}

/** `fs/unwatch`: ends a watch. Unknown watches are ignored. */
export interface StopWatch {
  /** Id of the watch. */
  watchId: WatchId;
}

/** Size of a terminal. */
export interface TerminalSize {
  /** Number of columns. */
  cols: number;
  /** Number of rows. */
  rows: number;
}

/** `command/exec/terminate`: terminates a process. */
export interface TerminateCommand {
  /** Process id. */
  processId: ProcessId;
}

/** Termination mode. */
export type TerminateMode = {
  type: "force";
} | {
  type: "graceful";
  /** Timeout in milliseconds. */
  timeoutMs: number;
};

/** `process/terminate`: terminates the process and its whole tree. */
export interface TerminateProcess {
  /** Termination mode. Absent: force. */
  mode?: TerminateMode | null;
  /** Process id. */
  processId: ProcessId;
}

/** Response to `process/terminate`. */
export interface TerminateResult {
  /** The process was running. */
  running: boolean;
}

/** W3C Trace Context of a request. */
export interface TraceContext {
  /** The `traceparent` header. */
  traceparent?: string | null;
  /** The `tracestate` header. */
  tracestate?: string | null;
}

/**
 * `tunnel/acknowledge` and `tunnel/shutdown`, in both directions: the sender has delivered the
 * events up to `seq`, or ends its direction with the event `seq`, which has the number after its
 * last data.
 */
export interface TunnelCursor {
  /** Number of the event. */
  seq: number;
  /** The tunnel. */
  tunnelId: TunnelId;
}

/** `tunnel/data`, in both directions: bytes of a tunnel. */
export interface TunnelData {
  /** The bytes. Absent if they are sent as raw bytes. */
  chunk?: Base64Bytes | null;
  /** Number of the event among those that this end has sent for the tunnel, from 1. */
  seq: number;
  /** The tunnel. */
  tunnelId: TunnelId;
}

/** Host name or address, without spaces and control characters. At most 253 bytes of UTF-8. */
export type TunnelHost = string;

/**
 * Tunnel id that the client chose in `tunnel/open`, or the server for an accepted connection. At
 * most 64 bytes of UTF-8.
 */
export type TunnelId = string;

/**
 * `server/upgrade`: replaces the server with another program, which takes over its listener,
 * sessions and durable processes.
 */
export interface UpgradeServer {
  /** Also upgrades if processes run that are not durable. They are terminated. */
  force?: boolean;
  /**
   * Absolute path of the program on the server's host. Absent: the file that the server was started
   * from, which may have been replaced.
   */
  program?: string | null;
}

/**
 * Response to `server/upgrade`: the new server is ready and takes over now. Every connection is
 * closed; `server/status` of the next one says who serves.
 */
export interface UpgradeStarted {
  /** Version of the new server. */
  version: string;
  /** OS pid of the new server. */
  osPid: number;
}

/** `process/wait`: waits for a process to end. */
export interface WaitProcess {
  /** Process id. */
  processId: ProcessId;
  /** Timeout in milliseconds. Absent: unlimited. */
  timeoutMs?: number | null;
  /** Event to wait for. */
  until?: WaitUntil;
}

/** Response to `process/wait`. */
export interface WaitResult {
  /** The output ended. */
  closed: boolean;
  /** Exit code, if reaped. */
  exitCode?: number | null;
  /** The child was reaped. */
  exited: boolean;
  /** Signal that killed the process, if any. */
  signal?: string | null;
  /** The timeout expired first. */
  timedOut: boolean;
}

/** Event that a wait waits for. */
export type WaitUntil = "exited" | "closed";

/** Entry of a walk. */
export interface WalkEntry {
  /** Kind of the entry. */
  kind: EntryKind;
  /** Path of the entry. */
  path: PathUri;
}

/** Failure to read a part of the tree. */
export interface WalkError {
  /** Human-readable reason. */
  message: string;
  /** Path that could not be read. */
  path: PathUri;
}

/** Limits of a walk. */
export interface WalkOptions {
  /** Lists and enters directories behind symbolic links, each real directory once. */
  followDirectorySymlinks: boolean;
  /** Maximum depth. 0: only the entries of the root. */
  maxDepth: number;
  /** Maximum directories to read, including the root. */
  maxDirectories: number;
  /** Maximum entries to examine. */
  maxEntries: number;
  /** Lists hidden directories, with names that start with a dot, but does not enter them. */
  pruneHiddenDirectories?: boolean;
}

/** Result of a walk. */
export interface WalkResult {
  /** Files and directories, breadth first, sorted by name in each directory. */
  entries: WalkEntry[];
  /** Directories that could not be read. */
  errors: WalkError[];
  /** A limit was reached, so the result is incomplete. */
  truncated: boolean;
}

/** `fs/walk`: lists a tree, breadth first. */
export interface WalkTree {
  /** Limits of the walk. */
  options: WalkOptions;
  /** Root of the tree. Not listed itself. */
  path: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/** Watch id that the client chose in `fs/watch`. At most 256 bytes of UTF-8. */
export type WatchId = string;

/** `fs/watchMissing`: notifies once when one of several missing paths appears. */
export interface WatchMissing {
  /** Missing paths. */
  missing: PathUri[];
  /** Existing path. Its removal is reported as well. */
  present?: PathUri | null;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
  /** Id of the watch, larger than every earlier one on the connection. */
  watchId: number;
}

/** Response to `fs/watchMissing`. */
export interface WatchMissingResult {
  /** `fs/missingChanged` will be sent. */
  watching: boolean;
}

/** `fs/changed`: changes since the previous notification. */
export interface WatchNotification {
  /** Changes, each path once. */
  changes: PathChange[];
  /** The watched path was removed. The watch has ended and its id is free. */
  ended?: boolean;
  /** Changes were lost, so the client must scan the tree again. */
  overflow: boolean;
  /** Id of the watch. */
  watchId: WatchId;
}

/** Response to `fs/watch`. Every later change is reported. */
export interface WatchResult {
  /** Watched path without symbolic links. Reported paths lie below it. */
  path: PathUri;
}

/** Sandbox level on Windows. */
export type WindowsSandboxLevel = "disabled" | "restricted-token" | "elevated" | "mxc";

/** `fs/writeBlock`: writes to an open file. Holes are allowed. */
export interface WriteBlock {
  /** Content, 1 byte to 1 MiB. Absent if it is sent as raw bytes. */
  chunk?: Base64Bytes | null;
  /** Id of the file handle. */
  handleId: HandleId;
  /** Offset of the block. */
  offset: number;
}

/** `command/exec/write`: writes to the terminal of a process. */
export interface WriteCommand {
  /** Input bytes. */
  chunk: Base64Bytes;
  /** Process id. */
  processId: ProcessId;
}

/** `fs/writeFile`: creates a file or replaces its content. */
export interface WriteFile {
  /**
   * Replaces the file atomically: readers see the old or the new content, and a failure keeps the
   * old.
   */
  atomic?: boolean;
  /** Creates missing parent directories. */
  createParents?: boolean;
  /** New content. Absent if it is sent as raw bytes. */
  dataBase64?: Base64Bytes | null;
  /** `false`: no component may be a symbolic link. */
  followSymlinks?: boolean | null;
  /** Permission bits, applied regardless of the umask. */
  mode?: number | null;
  /** Path of the file. */
  path: PathUri;
  /** Sandbox policy of the operation. */
  sandbox?: SandboxPolicy | null;
}

/**
 * Id that the client chose for one write, which makes retries idempotent. At most 256 bytes of
 * UTF-8.
 */
export type WriteId = string;

/** `process/write`: queues bytes for the child's stdin. */
export interface WriteProcess {
  /** Input bytes. Absent if they are sent as raw bytes. */
  chunk?: Base64Bytes | null;
  /** Process id. */
  processId: ProcessId;
  /** Makes retries of the write idempotent. */
  writeId: WriteId;
}

/** Response to `process/write` and `process/closeStdin`. */
export interface WriteResult {
  /** Status of the write. */
  status: WriteStatus;
}

/** Status of a write. */
export type WriteStatus = "accepted" | "unknownProcess" | "stdinClosed" | "starting";

/** Parameters and result of each method. */
export interface Requests {
  /** lists installed plugins and skills */
  "capabilities/discoverV2": { params: DiscoverCapabilities; result: DiscoveredCapabilities };
  /** reads plugins and skills below given directories */
  "capabilityRoots/discoverV1": { params: DiscoverRoots; result: DiscoveredRoots };
  /** starts a process, in the first dialect */
  "command/exec": { params: ExecCommand; result: CommandStarted };
  /** ends it */
  "command/exec/terminate": { params: TerminateCommand; result: TerminateResult };
  /** writes to it */
  "command/exec/write": { params: WriteCommand; result: CommandWritten };
  /** describes the host */
  "environment/info": { params: ReadEnvironmentInfo; result: EnvironmentInfo };
  /** reports that the connection is ready */
  "environment/status": { params: ReadEnvironmentStatus; result: EnvironmentStatus };
  /** reads selected keys of the Codex configuration */
  "environmentConfig/read": { params: ReadEnvironmentConfig; result: EnvironmentConfig };
  /** resolves every link of a path */
  "fs/canonicalize": { params: CanonicalizePath; result: CanonicalPath };
  /** closes an open file */
  "fs/close": { params: CloseFile; result: EmptyResult };
  /** copies a file, a link or a tree */
  "fs/copy": { params: CopyPath; result: EmptyResult };
  /** creates a directory */
  "fs/createDirectory": { params: CreateDirectory; result: EmptyResult };
  /** creates a symbolic link */
  "fs/createSymlink": { params: CreateSymlink; result: EmptyResult };
  /** finds files and directories by name */
  "fs/find": { params: FindPaths; result: FoundPaths };
  /** returns type, size and times of a path */
  "fs/getMetadata": { params: GetMetadata; result: FileMetadata };
  /** opens a file for access by blocks */
  "fs/open": { params: OpenFile; result: OpenedFile };
  /** reads a block of an open file */
  "fs/readBlock": { params: ReadBlock; result: BlockContent };
  /** lists a directory */
  "fs/readDirectory": { params: ReadDirectory; result: DirectoryListing };
  /** reads a whole file */
  "fs/readFile": { params: ReadFile; result: FileContent };
  /** removes a file, a link or a tree */
  "fs/remove": { params: RemovePath; result: EmptyResult };
  /** renames atomically */
  "fs/rename": { params: RenamePath; result: EmptyResult };
  /** finds lines in files */
  "fs/search": { params: SearchText; result: SearchResult };
  /** sets mode and modification time of a path */
  "fs/setMetadata": { params: SetMetadata; result: EmptyResult };
  /** ends a watch */
  "fs/unwatch": { params: StopWatch; result: EmptyResult };
  /** lists a tree */
  "fs/walk": { params: WalkTree; result: WalkResult };
  /** reports changes of a file or a tree */
  "fs/watch": { params: StartWatch; result: WatchResult };
  /** notifies once when a missing path appears */
  "fs/watchMissing": { params: WatchMissing; result: WatchMissingResult };
  /** writes a block of an open file */
  "fs/writeBlock": { params: WriteBlock; result: EmptyResult };
  /** creates or replaces a file */
  "fs/writeFile": { params: WriteFile; result: EmptyResult };
  /** lists recorded processes, running and ended */
  "history/list": { params: ListHistory; result: ProcessList };
  /** removes recorded processes that have ended */
  "history/purge": { params: PurgeHistory; result: PurgedHistory };
  /** makes an HTTP request from the host */
  "http/request": { params: HttpRequest; result: HttpResponse };
  /** cancels a request or its streamed body */
  "http/request/cancel": { params: CancelHttpRequest; result: EmptyResult };
  /** opens or resumes a session */
  "initialize": { params: InitializeParams; result: InitializeResponse };
  /** asks whether a process may connect to a host */
  "network/policyRequest": { params: PolicyRequest; result: PolicyResponse };
  /** lists the TCP ports that listen */
  "ports/list": { params: ListPorts; result: PortList };
  /** follows a detached process, or takes one over */
  "process/attach": { params: AttachProcess; result: AttachResult };
  /** closes stdin after all earlier writes */
  "process/closeStdin": { params: CloseStdin; result: WriteResult };
  /** lists processes */
  "process/list": { params: ListProcesses; result: ProcessList };
  /** returns retained output, or waits for more */
  "process/read": { params: ReadProcess; result: OutputPage };
  /** stops following a process, or forgets a finished one */
  "process/release": { params: ReleaseProcess; result: EmptyResult };
  /** resizes a terminal */
  "process/resize": { params: ResizeProcess; result: EmptyResult };
  /** signals the process group */
  "process/signal": { params: SignalProcess; result: EmptyResult };
  /** returns head and tail of the output */
  "process/snapshot": { params: SnapshotProcess; result: ProcessSnapshot };
  /** starts a process */
  "process/start": { params: StartProcess; result: StartResult };
  /** ends a process and its tree */
  "process/terminate": { params: TerminateProcess; result: TerminateResult };
  /** waits for the exit or the close of a process */
  "process/wait": { params: WaitProcess; result: WaitResult };
  /** queues bytes for stdin */
  "process/write": { params: WriteProcess; result: WriteResult };
  /** describes the server process */
  "server/status": { params: ReadServerStatus; result: ServerStatus };
  /** replaces the server, which keeps listener, sessions and durable processes */
  "server/upgrade": { params: UpgradeServer; result: UpgradeStarted };
  /** accepts connections on a port of the host */
  "tunnel/listen": { params: ListenTunnel; result: ListenResult };
  /** connects to a port in the network of the host or of a process */
  "tunnel/open": { params: OpenTunnel; result: EmptyResult };
}

/** Parameters of each notification. */
export interface Notifications {
  /** exit, for `command/exec` */
  "command/exec/exited": { params: CommandExited };
  /** output, for `command/exec` */
  "command/exec/outputDelta": { params: CommandOutputDelta };
  /** watched files changed */
  "fs/changed": { params: WatchNotification };
  /** a missing path may have appeared */
  "fs/missingChanged": { params: MissingPathNotification };
  /** part of a streamed body of `http/request` */
  "http/request/bodyDelta": { params: HttpBodyDelta };
  /** the response to `initialize` was received */
  "initialized": { params: unknown };
  /** policy decision about a connection of a process */
  "network/policyDecision": { params: PolicyDecision };
  /** events of a process were received (extension `acknowledge`) */
  "process/acknowledge": { params: AcknowledgeProcess };
  /** the output of a process ended; its last notification */
  "process/closed": { params: ProcessClosed };
  /** a process was reaped */
  "process/exited": { params: ProcessExited };
  /** a process failed to start (extension `lifecycle`) */
  "process/failed": { params: ProcessFailed };
  /** output of a process */
  "process/output": { params: ProcessOutput };
  /** a process was started (extension `lifecycle`) */
  "process/started": { params: ProcessStarted };
  /** events of a tunnel were delivered */
  "tunnel/acknowledge": { params: TunnelCursor };
  /** a tunnel has ended */
  "tunnel/close": { params: CloseTunnel };
  /** bytes of a tunnel */
  "tunnel/data": { params: TunnelData };
  /** a listener accepted a connection (extension `tunnels`) */
  "tunnel/incoming": { params: IncomingTunnel };
  /** one direction of a tunnel has ended */
  "tunnel/shutdown": { params: TunnelCursor };
}
