/**
 * Sandbox policies as objects. `spawn`, `run` and the file methods accept them.
 *
 * @module
 */

import { InvalidArgumentError } from "./errors.js";
import { type HostPath, toPathUri } from "./path-uri.js";
import type { EntryPath, NetworkAccess, SandboxEntry, SandboxPolicy } from "./wire.js";

/** Options of {@link workspaceWriteSandbox}. */
export interface WorkspaceSandboxOptions {
  /** Writable directories, absolute. */
  workspace: HostPath | readonly HostPath[];
  /** Paths that cannot be read, absolute, or globs such as `*.env`. */
  deny?: readonly string[];
  /** Whether the host's network is reachable. Default: `restricted`. */
  network?: NetworkAccess;
  /** Whether `.git` in a workspace is writable. Default: false. */
  allowGit?: boolean;
  /** Whether directories for temporary files are writable. Default: true. */
  temporaryDirectories?: boolean;
}

/** Allows all reads, no writes, and no network unless `network` is `enabled`. */
export function readOnlySandbox(options: { network?: NetworkAccess } = {}): SandboxPolicy {
  return customSandbox([{ path: special("root"), access: "read" }], options);
}

/**
 * Allows all reads, and writes in the workspace and in directories for temporary files. `.git`,
 * `.agents`, `.codex` and `.aws` in a workspace are read-only.
 */
export function workspaceWriteSandbox(options: WorkspaceSandboxOptions): SandboxPolicy {
  const { workspace, deny = [], allowGit = false, temporaryDirectories = true } = options;
  const roots = (typeof workspace === "string" || workspace instanceof URL ? [workspace] : workspace)
    .map(absoluteUri);
  if (roots.length === 0) {
    throw new InvalidArgumentError("`workspace` names no directory");
  }
  const entries: SandboxEntry[] = [{ path: special("root"), access: "read" }];
  const write = (path: EntryPath): void => void entries.push({ path, access: "write" });
  write({ type: "special", value: { kind: "project_roots" } });
  if (allowGit) {
    write({ type: "special", value: { kind: "project_roots", subpath: ".git" } });
  }
  if (temporaryDirectories) {
    write(special("slash_tmp"));
    write(special("tmpdir"));
  }
  for (const pattern of deny) {
    const path: EntryPath = pattern.startsWith("/")
      ? { type: "path", path: absoluteUri(pattern) }
      : { type: "glob_pattern", pattern: `codex-project-roots://${pattern}` };
    entries.push({ path, access: "deny" });
  }
  const policy = customSandbox(entries, options);
  policy.workspaceRoots = roots;
  if (roots[0] !== undefined) {
    policy.cwd = roots[0];
  }
  return policy;
}

/** Builds a policy of entries. The most specific entry applies; paths without one do not exist. */
export function customSandbox(
  entries: readonly SandboxEntry[],
  options: { network?: NetworkAccess } = {},
): SandboxPolicy {
  return {
    permissions: {
      type: "managed",
      file_system: { type: "restricted", entries: [...entries] },
      network: options.network ?? "restricted",
    },
    windowsSandboxLevel: "disabled",
  };
}

/** Returns an entry for an absolute path. */
export function sandboxEntry(path: HostPath, access: SandboxEntry["access"]): SandboxEntry {
  return { path: { type: "path", path: absoluteUri(path) }, access };
}

/** Returns the entry for the files of almost every program: `/usr`, `/etc`, `/lib` and similar. */
export function minimalEntry(): SandboxEntry {
  return { path: special("minimal"), access: "read" };
}

function special(kind: "root" | "minimal" | "tmpdir" | "slash_tmp"): EntryPath {
  return { type: "special", value: { kind } };
}

function absoluteUri(path: HostPath): string {
  if (typeof path === "string" && !path.startsWith("/") && !path.startsWith("file:")) {
    throw new InvalidArgumentError(`sandbox path \`${path}\` is not absolute`);
  }
  return toPathUri(path, undefined);
}
