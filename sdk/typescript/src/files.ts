/**
 * Files of an environment, named after `node:fs/promises`.
 *
 * @module
 */

import { AsyncEvents } from "./async-events.js";
import { encodeBase64 } from "./base64.js";
import {
  abortReason,
  ExecServerError,
  InterruptedError,
  InvalidArgumentError,
  LimitError,
  NotFoundError,
  ProtocolError,
  RefusedError,
  UnsupportedError,
} from "./errors.js";
import { decodeText, MAX_TEXT_BYTES } from "./message.js";
import { concatBytes } from "./output-queue.js";
import { fromPathUri, type HostPath, joinPathUri, parentPathUri, toPathUri } from "./path-uri.js";
import { type Bytes, toBytes } from "./process.js";
import type { FileMetadata, Requests, SandboxPolicy } from "./wire.js";
import type { CallOptions, CallResult, ConnectionListener, SessionClient } from "./session-client.js";

/** Options of all file methods. */
export interface FileOptions {
  /** Policy that must allow the operation. */
  sandbox?: SandboxPolicy;
  /** Stops waiting for the answer. The request may still take effect. */
  signal?: AbortSignal;
}

/** With `followSymlinks: false`, no component of the path may be a link. */
export interface LinkOptions extends FileOptions {
  /** Whether links are followed. Default: true. */
  followSymlinks?: boolean;
}

/** An entry of a directory. */
export interface DirectoryEntry {
  /** Name; U+FFFD replaces bytes that are not UTF-8. */
  name: string;
  /** Path, or a `file:` URI if the name is not UTF-8. */
  path: string;
  /** Whether it is a directory, or a link to one. */
  isDirectory: boolean;
  /** Whether it is a regular file, or a link to one. */
  isFile: boolean;
  /** Permission bits, with `details`; absent for a dangling link. */
  mode?: number;
  /** Text of a link, with `details`. */
  linkTarget?: string;
}

/** Limits of a walk. */
export interface WalkOptions extends FileOptions {
  /** Default: 64. */
  maxDepth?: number;
  /** Default: 10 000. */
  maxDirectories?: number;
  /** Default: 50 000. */
  maxEntries?: number;
  /** Whether links to directories are entered. Default: false. */
  followSymlinks?: boolean;
  /** Lists directories with a leading dot without entering them. */
  pruneHidden?: boolean;
}

/** Result of a walk. */
export interface WalkResult {
  /** Files and directories, breadth-first. */
  entries: { path: string; kind: "file" | "directory" }[];
  /** Directories that could not be read. */
  errors: { path: string; message: string }[];
  /** Whether a limit was reached. */
  truncated: boolean;
}

/** Options of a search in files. */
export interface SearchOptions extends FileOptions {
  /** Whether the pattern is a regular expression. Default: false. */
  regex?: boolean;
  /** Default: true. */
  caseSensitive?: boolean;
  /** Searches only files that match. */
  glob?: string;
  /** 1 to 10 000. Default: 1000. */
  maxMatches?: number;
  /** 0 to 100. Default: 0. */
  contextLines?: number;
}

/** Options of writing a file. */
export interface WriteOptions extends FileOptions {
  /** Whether readers see the old or the new content, never a part of it. */
  atomic?: boolean;
  /** Whether missing directories are made. */
  createParents?: boolean;
  /** Permission bits. Default: those of the file that is replaced, or 0666 minus the umask. */
  mode?: number;
}

/** A line that matches. */
export interface SearchMatch {
  /** The file. */
  path: string;
  /** Line, from 1. */
  line: number;
  /** Byte column, from 1. */
  column: number;
  /** The line. */
  text: string;
  /** Lines before it. */
  before: string[];
  /** Lines after it. */
  after: string[];
}

/** A batch of changes of a watched tree. */
export interface WatchBatch {
  /** The changes; each path once. */
  changes: { path: string; kind: "created" | "modified" | "removed" | "renamed" }[];
  /** Changes were lost, also by a disconnect: list the tree again. */
  overflow: boolean;
}

/** Content above this size is written by blocks: a stock server accepts messages of 16 MiB. */
const MAX_WHOLE_WRITE = 8 << 20;
const MAX_WHOLE_READ = 512 << 20;
/** The same in base64, which has to fit in a string. */
const MAX_WHOLE_TEXT_READ = 32 << 20;
const MAX_TEXT_READ = Math.floor(MAX_TEXT_BYTES / 4) * 3 - 4096;
const BLOCK_BYTES = 1 << 20;
/** Blocks that are read ahead or written behind. */
const BLOCKS_IN_FLIGHT = 4;
const MAX_BATCHES = 1024;
const OWNER_ACCESS = 0o600;
const PERMISSIONS = 0o777;

/** File operations of an environment. Paths may be relative to the working directory. */
export class EnvironmentFiles {
  #client: SessionClient;
  #ids = 0;
  #watches = new Map<string, (batch: WireBatch) => void>();

  /** @internal */
  constructor(client: SessionClient) {
    this.#client = client;
    client.notifications.set("fs/changed", (params: WireBatch) => {
      this.#watches.get(params.watchId)?.(params);
    });
  }

  /** Reads a whole file. */
  readFile(path: HostPath, options?: LinkOptions): Promise<Uint8Array>;
  /** Reads a whole file as text. */
  readFile(path: HostPath, options: LinkOptions & { encoding: "utf8" }): Promise<string>;
  async readFile(
    path: HostPath,
    options: LinkOptions & { encoding?: "utf8" } = {},
  ): Promise<Uint8Array | string> {
    const bytes = await this.#readBytes(path, options);
    return options.encoding === undefined ? bytes : decodeText(bytes);
  }

  async #readBytes(path: HostPath, options: LinkOptions): Promise<Uint8Array> {
    if (this.#client.isBinary || !(await this.#isLargeText(path, options))) {
      try {
        const answer = await this.#repeatable("fs/readFile", path, options, linkMembers(options));
        return answer.data("dataBase64");
      } catch (error) {
        // Larger files are read by blocks.
        if (!(error instanceof RefusedError) || options.followSymlinks === false) {
          throw error;
        }
        const { isFile, size } = await this.stat(path, options).catch(() => {
          throw error;
        });
        if (!isFile || size <= MAX_WHOLE_READ) {
          throw error;
        }
      }
    }
    const chunks: Uint8Array[] = [];
    for await (const chunk of this.readStream(path, options)) {
      chunks.push(chunk);
    }
    return concatBytes(chunks);
  }

  /** Whether a file has to be read by blocks because its content travels as text. */
  async #isLargeText(path: HostPath, options: LinkOptions): Promise<boolean> {
    const found = await this.stat(path, options).catch(() => undefined);
    if (found?.isFile !== true) {
      // The read itself will fail with a better error.
      return false;
    }
    const { size } = found;
    if (options.followSymlinks === false && size > MAX_TEXT_READ) {
      const text = `cannot read ${size} bytes with \`followSymlinks: false\` on this connection`;
      throw new LimitError(`${text}: the limit is ${MAX_TEXT_READ}`);
    }
    return size > MAX_WHOLE_TEXT_READ && options.followSymlinks !== false;
  }

  /**
   * Writes a whole file. With `followSymlinks: false` it travels in one message, which the server
   * limits to 64 MiB.
   */
  async writeFile(
    path: HostPath,
    data: Bytes,
    options: WriteOptions & LinkOptions = {},
  ): Promise<void> {
    const { signal } = options;
    const bytes = toBytes(data);
    const extras = this.#writeExtras(options);
    if (bytes.byteLength > MAX_WHOLE_WRITE && options.followSymlinks !== false) {
      await this.#writeBlocks(path, bytes, options);
      return;
    }
    const params = {
      path: this.#uri(path),
      ...sandboxMember(options),
      ...linkMembers(options),
      ...extras,
    };
    await this.#client.call("fs/writeFile", params, {
      data: { name: "dataBase64", bytes },
      signal,
    });
  }

  #writeExtras(options: WriteOptions): Omit<WriteOptions, keyof FileOptions> {
    const { atomic, createParents, mode } = options;
    const extras = { atomic, createParents, mode };
    for (const [name, value] of Object.entries(extras)) {
      if (this.#client.isStock && value !== undefined && value !== false) {
        throw UnsupportedError.feature(`${name} of fs/writeFile`);
      }
    }
    return defined(extras);
  }

  async #writeBlocks(path: HostPath, bytes: Uint8Array, options: WriteOptions): Promise<void> {
    const writer = this.writeStream(path, options).getWriter();
    try {
      for (let offset = 0; offset < bytes.byteLength; offset += BLOCK_BYTES) {
        await writer.write(bytes.subarray(offset, offset + BLOCK_BYTES));
      }
      await writer.close();
    } finally {
      writer.releaseLock();
    }
  }

  /** Reads a file of any size as a Web Stream, also across disconnects. */
  readStream(
    path: HostPath,
    options: FileOptions & { start?: number } = {},
  ): ReadableStream<Uint8Array> {
    const reader = new BlockReader(this.#client, this.#uri(path), options, () => this.#newId());
    return new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const block = await reader.next();
          if (block !== undefined && block.byteLength > 0) {
            controller.enqueue(block);
          } else {
            controller.close();
          }
        },
        cancel: () => reader.close(),
      },
      { highWaterMark: 0 },
    );
  }

  /**
   * Writes a file of any size as a Web Stream, also across disconnects. With `atomic`, the file
   * appears when the stream is closed.
   */
  writeStream(path: HostPath, options: WriteOptions = {}): WritableStream<Bytes> {
    const { atomic = false, createParents = false } = this.#writeExtras(options);
    const access = defined({ sandbox: options.sandbox, signal: options.signal });
    let { mode } = options;
    let target = this.#uri(path);
    let written = target;
    let writer: BlockWriter | undefined;
    const open = async (): Promise<BlockWriter> => {
      if (createParents) {
        const members = { recursive: true };
        await this.#repeatable("fs/createDirectory", parentPathUri(target), access, members);
      }
      if (atomic) {
        const replaced = await this.#replacedFile(target, access);
        target = replaced.uri;
        mode ??= replaced.mode;
        written = `${target}.${Date.now().toString(36)}-${this.#newId()}.tmp`;
      }
      writer = new BlockWriter(this.#client, written, access, () => this.#newId());
      await writer.create();
      if (mode !== undefined) {
        // Before the content, so that other accounts never read it. Opening the file again after a
        // disconnect needs write access.
        await this.#repeatable("fs/setMetadata", written, access, { mode: initialMode(mode) });
      }
      return writer;
    };
    const discard = async (): Promise<void> => {
      await writer?.abandon();
      if (atomic && writer !== undefined) {
        await this.rm(written, { ...sandboxMember(access), force: true }).catch(() => {});
      }
    };
    const undone = async <T>(work: Promise<T>): Promise<T> => {
      try {
        return await work;
      } catch (error) {
        await discard();
        throw error;
      }
    };
    const write = async (chunk: Bytes): Promise<void> =>
      (writer ?? (await open())).write(toBytes(chunk));
    const close = async (): Promise<void> => {
      await (writer ?? (await open())).close();
      if (mode !== undefined && initialMode(mode) !== mode) {
        await this.#repeatable("fs/setMetadata", written, access, { mode });
      }
      if (atomic) {
        await this.rename(written, target, { ...access, overwrite: true });
      }
    };
    return new WritableStream<Bytes>({
      write: (chunk) => undone(write(chunk)),
      close: () => undone(close()),
      abort: discard,
    });
  }

  /** The file behind a path: links are followed. */
  async #replacedFile(
    uri: string,
    options: FileOptions,
  ): Promise<{ uri: string; mode: number | undefined }> {
    try {
      const [target, metadata] = await Promise.all([
        this.#repeatable("fs/canonicalize", uri, options, {}),
        this.stat(uri, options),
      ]);
      return { uri: target.result.path, mode: metadata.mode ?? undefined };
    } catch (error) {
      if (error instanceof NotFoundError) {
        return { uri, mode: undefined };
      }
      throw error;
    }
  }

  /** Returns metadata; a link is followed. With `details`, a dangling link is described itself. */
  async stat(
    path: HostPath,
    options: LinkOptions & { details?: boolean } = {},
  ): Promise<FileMetadata> {
    const details = options.details === true ? { details: true } : {};
    if (options.details === true && !this.#client.grants("fileDetails")) {
      throw UnsupportedError.feature("details of fs/getMetadata");
    }
    const members = { ...linkMembers(options), ...details };
    return (await this.#repeatable("fs/getMetadata", path, options, members)).result;
  }

  /** Returns whether a path exists; a dangling link does not. */
  async exists(path: HostPath, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof ExecServerError && error.name === "NotFoundError") {
        return false;
      }
      throw error;
    }
  }

  /** Sets permission bits, modification time, or both. */
  setMetadata(
    path: HostPath,
    metadata: { mode?: number; modifiedAtMs?: number },
    options: LinkOptions = {},
  ): Promise<void> {
    const { mode, modifiedAtMs } = metadata;
    const members = { ...linkMembers(options), ...defined({ mode, modifiedAtMs }) };
    return this.#change("fs/setMetadata", { path: this.#uri(path), ...members }, options);
  }

  /** Resolves every link of a path. */
  async realpath(path: HostPath, options: FileOptions = {}): Promise<string> {
    const answer = await this.#repeatable("fs/canonicalize", path, options, {});
    return fromPathUri(answer.result.path);
  }

  /** Makes a directory; with `recursive` (the default) also its parents. */
  mkdir(path: HostPath, options: LinkOptions & { recursive?: boolean } = {}): Promise<void> {
    const { recursive = true } = options;
    const params = { path: this.#uri(path), recursive, ...linkMembers(options) };
    return this.#change("fs/createDirectory", params, options);
  }

  /** Removes a file, a link or a tree. Defaults: not recursive, and a missing path is an error. */
  rm(
    path: HostPath,
    options: LinkOptions & { recursive?: boolean; force?: boolean } = {},
  ): Promise<void> {
    const { recursive = false, force = false } = options;
    const params = { path: this.#uri(path), recursive, force, ...linkMembers(options) };
    return this.#change("fs/remove", params, options);
  }

  /** Copies a file or a link; with `recursive`, a directory. */
  cp(
    source: HostPath,
    destination: HostPath,
    options: FileOptions & { recursive?: boolean } = {},
  ): Promise<void> {
    const { recursive = false } = options;
    const params = {
      sourcePath: this.#uri(source),
      destinationPath: this.#uri(destination),
      recursive,
    };
    return this.#change("fs/copy", params, options);
  }

  /** Renames atomically; without `overwrite` nothing is replaced. */
  rename(
    source: HostPath,
    destination: HostPath,
    options: FileOptions & { overwrite?: boolean } = {},
  ): Promise<void> {
    const { overwrite = false } = options;
    const params = {
      sourcePath: this.#uri(source),
      destinationPath: this.#uri(destination),
      overwrite,
    };
    return this.#change("fs/rename", params, options);
  }

  /** Makes a symbolic link. Its target is kept as it is; bytes if it is not UTF-8. */
  symlink(
    target: string | Uint8Array,
    path: HostPath,
    options: FileOptions & { overwrite?: boolean } = {},
  ): Promise<void> {
    const { overwrite = false } = options;
    const targets =
      typeof target === "string"
        ? { target }
        : { target: new TextDecoder().decode(target), targetBase64: encodeBase64(target) };
    const params = { path: this.#uri(path), ...targets, overwrite };
    return this.#change("fs/createSymlink", params, options);
  }

  /** Lists a directory, sorted by name. Large ones are read by pages. */
  async readdir(
    path: HostPath,
    options: FileOptions & { details?: boolean } = {},
  ): Promise<DirectoryEntry[]> {
    const entries: DirectoryEntry[] = [];
    for await (const entry of this.entries(path, options)) {
      entries.push(entry);
    }
    return entries.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  }

  /** Lists a directory entry by entry. */
  async *entries(
    path: HostPath,
    options: FileOptions & { details?: boolean } = {},
  ): AsyncGenerator<DirectoryEntry> {
    const paged = this.#client.grants("fileDetails");
    if (options.details === true && !paged) {
      throw UnsupportedError.feature("details of fs/readDirectory");
    }
    const directory = this.#uri(path);
    let cursor: string | null | undefined;
    do {
      const members = paged
        ? defined({ limit: PAGE_ENTRIES, cursor, details: options.details })
        : {};
      const { result } = await this.#repeatable("fs/readDirectory", path, options, members);
      for (const { fileName, isDirectory, isFile, mode, linkTarget, path: uri } of result.entries) {
        const entryPath = fromPathUri(uri ?? joinPathUri(directory, fileName));
        const more = defined({ mode: mode ?? undefined, linkTarget: linkTarget ?? undefined });
        yield { name: fileName, path: entryPath, isDirectory, isFile, ...more };
      }
      cursor = result.nextCursor;
    } while (cursor != null);
  }

  /** Lists a tree, breadth-first. */
  async walk(path: HostPath, options: WalkOptions = {}): Promise<WalkResult> {
    const members = {
      options: {
        maxDepth: options.maxDepth ?? 64,
        maxDirectories: options.maxDirectories ?? 10_000,
        maxEntries: options.maxEntries ?? 50_000,
        followDirectorySymlinks: options.followSymlinks ?? false,
        pruneHiddenDirectories: options.pruneHidden ?? false,
      },
    };
    const { result } = await this.#repeatable("fs/walk", path, options, members);
    return {
      entries: result.entries.map((entry) => ({ ...entry, path: fromPathUri(entry.path) })),
      errors: result.errors.map((error) => ({ ...error, path: fromPathUri(error.path) })),
      truncated: result.truncated,
    };
  }

  /** Finds lines in files; hidden and ignored files are skipped. */
  async search(
    path: HostPath,
    pattern: string,
    options: SearchOptions = {},
  ): Promise<{ matches: SearchMatch[]; truncated: boolean }> {
    const { regex, caseSensitive, glob, maxMatches, contextLines } = options;
    const members = {
      pattern,
      ...defined({ regex, caseSensitive, glob, maxMatches, contextLines }),
    };
    const { result } = await this.#repeatable("fs/search",
      path,
      options,
      members,
    );
    for (const match of result.matches) {
      match.path = fromPathUri(match.path);
    }
    return result;
  }

  /** Finds files and directories by a glob, or fuzzily by a query. */
  async find(
    path: HostPath,
    what: { glob: string } | { query: string },
    options: FileOptions & { maxResults?: number } = {},
  ): Promise<{ paths: string[]; truncated: boolean }> {
    const members = { ...what, ...defined({ maxResults: options.maxResults }) };
    const { result } = await this.#repeatable("fs/find",
      path,
      options,
      members,
    );
    return { paths: result.paths.map(fromPathUri), truncated: result.truncated };
  }

  /**
   * Watches a file or a tree. Resolves when the watch is set; iterate the result, and end it by
   * leaving the loop or by the signal. It survives disconnects: then a batch has `overflow`.
   */
  async watch(
    path: HostPath,
    options: FileOptions & { recursive?: boolean } = {},
  ): Promise<AsyncIterableIterator<WatchBatch>> {
    const { recursive = true, signal } = options;
    const client = this.#client;
    const events = new AsyncEvents<WatchBatch>(MAX_BATCHES);
    const params = { path: this.#uri(path), recursive, ...sandboxMember(options) };
    let watchId = "";
    const push = (batch: WatchBatch): void => {
      if (!events.push(batch) && events.last !== undefined) {
        events.last.overflow = true;
      }
    };
    const register = async (): Promise<void> => {
      this.#watches.delete(watchId);
      const id = `w${this.#newId()}`;
      watchId = id;
      this.#watches.set(id, ({ changes, overflow, ended }) => {
        const paths = changes.map((change) => ({ ...change, path: fromPathUri(change.path) }));
        push({ changes: paths, overflow });
        if (ended === true) {
          stop();
          events.end();
        }
      });
      await client.call("fs/watch", { watchId: id, ...params });
    };
    const listener: ConnectionListener = {
      disconnected: () => {},
      connected: () => {
        register().then(
          () => push({ changes: [], overflow: true }),
          (error: unknown) => {
            if (!(error instanceof InterruptedError)) {
              stop();
              events.fail(error);
            }
          },
        );
      },
      lost: (error) => {
        stop();
        events.fail(error);
      },
    };
    const stop = (): void => {
      this.#watches.delete(watchId);
      client.listeners.delete(listener);
      signal?.removeEventListener("abort", abort);
    };
    const abort = (): void => {
      unwatch();
      if (signal !== undefined) {
        events.fail(abortReason(signal));
      }
    };
    const unwatch = (): void => {
      stop();
      if (client.state === "connected") {
        client.call("fs/unwatch", { watchId }).catch(() => {});
      }
    };
    if (signal?.aborted === true) {
      throw abortReason(signal);
    }
    signal?.addEventListener("abort", abort, { once: true });
    try {
      await register();
    } catch (error) {
      stop();
      throw error;
    }
    client.listeners.add(listener);
    const iterate = async function* (): AsyncGenerator<WatchBatch> {
      yield* events;
    };
    const iterator = iterate();
    const result: AsyncIterableIterator<WatchBatch> = {
      next: () => iterator.next(),
      return: async () => {
        unwatch();
        events.end();
        return { done: true, value: undefined };
      },
      [Symbol.asyncIterator]: () => result,
    };
    return result;
  }

  #uri(path: HostPath): string {
    return toPathUri(path, this.#client.info.cwd);
  }

  #newId(): string {
    this.#ids += 1;
    return String(this.#ids);
  }

  /** A method whose repetition has no effect: sent again after a disconnect. */
  #repeatable<M extends RepeatableMethod>(
    method: M,
    path: HostPath,
    options: FileOptions,
    members: Omit<Requests[M]["params"], "path" | "sandbox">,
  ): Promise<CallResult<Requests[M]["result"]>> {
    const params = { path: this.#uri(path), ...sandboxMember(options), ...members };
    return this.#client.call(method, params as Requests[M]["params"], {
      retry: true,
      signal: options.signal,
    });
  }

  async #change<M extends ChangeMethod>(
    method: M,
    params: Requests[M]["params"],
    options: FileOptions,
  ): Promise<void> {
    const { signal } = options;
    const withSandbox = { ...(params as object), ...sandboxMember(options) };
    await this.#client.call(method, withSandbox as Requests[M]["params"], { signal });
  }
}

type RepeatableMethod =
  | "fs/readFile"
  | "fs/getMetadata"
  | "fs/canonicalize"
  | "fs/readDirectory"
  | "fs/walk"
  | "fs/search"
  | "fs/find"
  | "fs/createDirectory"
  | "fs/setMetadata";

type ChangeMethod =
  | "fs/setMetadata"
  | "fs/createDirectory"
  | "fs/remove"
  | "fs/copy"
  | "fs/rename"
  | "fs/createSymlink";

const PAGE_ENTRIES = 10_000;

interface WireBatch extends WatchBatch {
  watchId: string;
  ended?: boolean;
}

function linkMembers({ followSymlinks }: LinkOptions): { followSymlinks?: false } {
  return followSymlinks === false ? { followSymlinks } : {};
}

function sandboxMember({ sandbox }: FileOptions): { sandbox?: SandboxPolicy } {
  return sandbox === undefined ? {} : { sandbox };
}

/** The mode of a file while it is written, which clears set-user-ID and set-group-ID. */
function initialMode(mode: number): number {
  return (mode | OWNER_ACCESS) & PERMISSIONS;
}

function defined<T extends object>(members: T): Partial<T> {
  const entries = Object.entries(members).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as Partial<T>;
}

/** An open file on the current connection, which is opened again on the next one. */
abstract class BlockFile {
  protected readonly client: SessionClient;
  protected readonly uri: string;
  protected readonly options: FileOptions;
  #handle: { id: string; connection: number } | undefined;
  #newId: () => string;

  constructor(client: SessionClient, uri: string, options: FileOptions, newId: () => string) {
    this.client = client;
    this.uri = uri;
    this.options = options;
    this.#newId = newId;
  }

  /** The open file, if its connection still exists. */
  protected get handle(): string | undefined {
    return this.#handle?.connection === this.client.connection ? this.#handle.id : undefined;
  }

  /** Options of calls that use the handle. */
  protected get bound(): CallOptions {
    return { signal: this.options.signal, connection: this.client.connection };
  }

  protected drop(): void {
    this.#handle = undefined;
  }

  protected async open(mode: "read" | "replace" | "update"): Promise<string> {
    const handleId = `h${this.#newId()}`;
    const params = { handleId, path: this.uri, ...sandboxMember(this.options) };
    const { signal } = this.options;
    const release = (): void => {
      this.client.call("fs/close", { handleId }, { connection: this.client.connection }).catch(() => {});
    };
    const withMode = mode === "read" ? params : { ...params, mode };
    await this.client.call("fs/open", withMode, { signal, onLateResult: release });
    this.#handle = { id: handleId, connection: this.client.connection };
    return handleId;
  }

  async close(): Promise<void> {
    const { handle } = this;
    this.drop();
    if (handle !== undefined) {
      try {
        const { connection } = this.client;
        await this.client.call("fs/close", { handleId: handle }, { connection });
      } catch (error) {
        // The handle ended with its connection.
        if (!(error instanceof InterruptedError)) {
          throw error;
        }
      }
    }
  }
}

class BlockReader extends BlockFile {
  #offset: number;
  #blocks: { offset: number; block: Promise<Block> }[] = [];
  #identity: string | undefined;
  #done = false;

  constructor(
    client: SessionClient,
    uri: string,
    options: FileOptions & { start?: number },
    newId: () => string,
  ) {
    super(client, uri, options, newId);
    const { start = 0 } = options;
    if (!Number.isSafeInteger(start) || start < 0) {
      throw new InvalidArgumentError("`start` is not an offset in a file");
    }
    this.#offset = start;
  }

  async next(): Promise<Uint8Array | undefined> {
    try {
      return await this.#next();
    } catch (error) {
      this.#done = true;
      await this.close().catch(() => {});
      throw error;
    }
  }

  async #next(): Promise<Uint8Array | undefined> {
    while (!this.#done) {
      try {
        const handle = this.handle ?? (await this.#openSame());
        this.#readAhead(handle);
        const { data, eof } = await (this.#blocks[0] as { block: Promise<Block> }).block;
        this.#blocks.shift();
        this.#offset += data.byteLength;
        if (eof) {
          this.#done = true;
          this.#blocks = [];
          await this.close();
        } else if (data.byteLength === 0) {
          throw new ProtocolError("server sent an empty block before the end of the file");
        }
        return data;
      } catch (error) {
        if (!(error instanceof InterruptedError)) {
          throw error;
        }
        this.drop();
        this.#blocks = [];
      }
    }
    return undefined;
  }

  #readAhead(handleId: string): void {
    while (this.#blocks.length < BLOCKS_IN_FLIGHT) {
      const offset = (this.#blocks.at(-1)?.offset ?? this.#offset - BLOCK_BYTES) + BLOCK_BYTES;
      const params = { handleId, offset, len: BLOCK_BYTES };
      const block = this.client
        .call("fs/readBlock", params, this.bound)
        .then((answer) => ({ data: answer.data("chunk"), eof: answer.result.eof }));
      block.catch(() => {});
      this.#blocks.push({ offset, block });
    }
  }

  /** Opens the file again after a disconnect, if it is still the same. */
  async #openSame(): Promise<string> {
    const handle = await this.open("read");
    const { sandbox, signal } = this.options;
    const params = { path: this.uri, ...sandboxMember({ ...(sandbox && { sandbox }) }) };
    const answer = await this.client.call("fs/getMetadata", params, {
      retry: true,
      signal,
    });
    const { size, modifiedAtMs } = answer.result;
    const identity = `${size} ${modifiedAtMs}`;
    this.#identity ??= identity;
    if (this.#identity !== identity) {
      const text = `${fromPathUri(this.uri)} was changed while the connection was down`;
      throw new FileChangedError(text);
    }
    return handle;
  }
}

interface Block {
  data: Uint8Array;
  eof: boolean;
}

/** A file changed during a read that a disconnect interrupted: its parts do not fit together. */
export class FileChangedError extends ExecServerError {
  /** @internal */
  constructor(message: string) {
    super(message, "caller");
  }
}

class BlockWriter extends BlockFile {
  #offset = 0;
  #opened = false;
  #pending: { offset: number; bytes: Uint8Array; written: Promise<void> }[] = [];

  /** Creates the file, or empties it. */
  async create(): Promise<void> {
    await this.#ensureOpen();
  }

  /** Writes bytes; up to a few blocks are under way. */
  async write(bytes: Uint8Array): Promise<void> {
    for (let start = 0; start < bytes.byteLength; start += BLOCK_BYTES) {
      // A copy: it may have to be sent again after the caller has reused its memory.
      const block = bytes.slice(start, start + BLOCK_BYTES);
      while (this.#pending.length >= BLOCKS_IN_FLIGHT) {
        await this.#settleOldest();
      }
      const offset = this.#offset;
      this.#offset += block.byteLength;
      const written = this.#send(offset, block);
      written.catch(() => {});
      this.#pending.push({ offset, bytes: block, written });
    }
  }

  async #send(offset: number, bytes: Uint8Array): Promise<void> {
    const handleId = await this.#ensureOpen();
    const data = { name: "chunk", bytes };
    await this.client.call("fs/writeBlock", { handleId, offset }, { data, ...this.bound });
  }

  #opening: Promise<string> | undefined;

  #ensureOpen(): Promise<string> {
    if (this.handle !== undefined) {
      return Promise.resolve(this.handle);
    }
    this.#opening ??= this.#open().finally(() => {
      this.#opening = undefined;
    });
    return this.#opening;
  }

  async #open(): Promise<string> {
    for (;;) {
      try {
        // Opening the file again must not truncate it.
        const handle = await this.open(this.#opened ? "update" : "replace");
        this.#opened = true;
        return handle;
      } catch (error) {
        if (!(error instanceof InterruptedError) || this.client.isStock) {
          throw error;
        }
      }
    }
  }

  /** Waits for the oldest block, and sends it again if the connection broke. */
  async #settleOldest(): Promise<void> {
    const oldest = this.#pending[0];
    if (oldest === undefined) {
      return;
    }
    for (;;) {
      try {
        await oldest.written;
        break;
      } catch (error) {
        if (!(error instanceof InterruptedError) || this.client.isStock) {
          throw error;
        }
        this.drop();
        for (const block of this.#pending) {
          block.written = block.written.catch(() => this.#send(block.offset, block.bytes));
          block.written.catch(() => {});
        }
      }
    }
    this.#pending.shift();
  }

  /** Closes the file and leaves it as it is. */
  async abandon(): Promise<void> {
    await this.#opening?.catch(() => {});
    await Promise.allSettled(this.#pending.map(({ written }) => written));
    await super.close().catch(() => {});
  }

  override async close(): Promise<void> {
    while (this.#pending.length > 0) {
      await this.#settleOldest();
    }
    await super.close();
  }
}

