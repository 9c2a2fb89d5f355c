/**
 * Conversion between paths of the server's host and the `file:` URIs of the protocol.
 *
 * @module
 */

import { decodeBase64Url, encodeBase64Url } from "./base64.js";
import { InvalidArgumentError } from "./errors.js";

const ROOT = "file:///";
const BAD_PATH = "file:///%00/bad/path/";
const SLASH = 0x2f;

/**
 * Path on the server's host: absolute, relative to the environment's working directory, or a
 * `file:` URI. Names that are not UTF-8 are returned as such URIs and can be passed back.
 */
export type HostPath = string | URL;

/** Converts a path to its URI; `base` is the URI that relative paths start at. */
export function toPathUri(path: HostPath, base: string | null | undefined): string {
  const text = typeof path === "string" ? path : path.href;
  if (text.startsWith("file:")) {
    return text;
  }
  if (typeof path !== "string") {
    throw new InvalidArgumentError(`\`${text}\` is not a path: only \`file:\` URLs are`);
  }
  if (text.includes("\0")) {
    throw new InvalidArgumentError("a path contains a NUL character");
  }
  if (text === "") {
    throw new InvalidArgumentError("a path is empty; use `.` for the working directory");
  }
  if (!text.startsWith("/")) {
    const root = base ?? "file:///";
    return `${root.endsWith("/") ? root : `${root}/`}${encodeSegments(text)}`;
  }
  const path_ = text.replace(/^\/+/, "/");
  if (/^\/[A-Za-z]:(\/|$)/.test(path_)) {
    return BAD_PATH + encodeBase64Url(new TextEncoder().encode(text));
  }
  return `file://${encodeSegments(path_)}`;
}

function encodeSegments(path: string): string {
  try {
    return path.split("/").map(encodeURIComponent).join("/");
  } catch {
    throw new InvalidArgumentError("a path contains half of a surrogate pair");
  }
}

/** Converts a URI of the server to a path, or returns it as it is if its name is not UTF-8. */
export function fromPathUri(uri: string): string {
  if (uri.startsWith(BAD_PATH)) {
    try {
      const bytes = decodeBase64Url(uri.slice(BAD_PATH.length));
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      return uri;
    }
  }
  if (!uri.startsWith("file:///")) {
    return uri;
  }
  try {
    return decodeURIComponent(uri.slice("file://".length));
  } catch {
    return uri;
  }
}

/** Returns the URI of the directory that has this path. */
export function parentPathUri(uri: string): string {
  if (uri.startsWith(BAD_PATH)) {
    const bytes = decodeBase64Url(uri.slice(BAD_PATH.length));
    const end = bytes.lastIndexOf(SLASH);
    return end <= 0 ? ROOT : BAD_PATH + encodeBase64Url(bytes.slice(0, end));
  }
  const end = uri.lastIndexOf("/");
  return end < ROOT.length ? ROOT : uri.slice(0, end);
}

/** Appends the name of a directory entry to the URI of its directory. */
export function joinPathUri(directory: string, name: string): string {
  return `${directory.endsWith("/") ? directory : `${directory}/`}${encodeURIComponent(name)}`;
}
