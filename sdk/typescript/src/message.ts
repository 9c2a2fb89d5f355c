/**
 * Messages: JSON-RPC, and its binary form, in which one data member follows the header unencoded.
 *
 * @module
 */

import { decodeBase64, encodeBase64 } from "./base64.js";
import { LimitError, ProtocolError } from "./errors.js";

/** A decoded message of any kind. */
export interface RpcMessage {
  id?: number | string | null;
  method?: string;
  params?: Record<string, unknown>;
  result?: Record<string, unknown>;
  error?: { code: number; message: string };
  /** Data member of the binary form. */
  data?: Uint8Array;
}

/** A data member of a request. */
export interface DataMember {
  /** Name, such as `chunk`. */
  name: string;
  /** Value. */
  bytes: Uint8Array;
}

const decoder = new TextDecoder("utf-8", { fatal: true });
const encoder = new TextEncoder();
const BINARY = 1;
const PREFIX = 4;
/** Longest JSON text of a message: the longest string of V8. */
export const MAX_TEXT_BYTES = 0x1fff_ffe8;
/** Part of a message in which the id of an answer is looked for. */
const ID_BYTES = 64;

interface Utf8Slice {
  utf8Slice?: (start: number, end: number) => string;
}

/** Decodes a message; throws a {@link ProtocolError}. */
export function decodeMessage(message: string | Uint8Array): RpcMessage {
  if (typeof message === "string") {
    return parse(message);
  }
  if (message[0] !== BINARY) {
    return parse(text(message, 0, message.byteLength));
  }
  const view = message;
  const end = PREFIX + ((view[1] ?? 0) << 16) + ((view[2] ?? 0) << 8) + (view[3] ?? 0);
  if (message.byteLength < PREFIX || end > message.byteLength) {
    throw new ProtocolError("server sent a malformed message: its header is cut");
  }
  const decoded = parse(text(message, PREFIX, end));
  decoded.data = detached(message.subarray(end));
  return decoded;
}

/** Copies small data out of large memory, which it would keep alive. */
function detached(data: Uint8Array): Uint8Array {
  return data.byteLength * 2 < data.buffer.byteLength ? Uint8Array.prototype.slice.call(data) : data;
}

/** A message whose JSON does not fit in a string. */
export class OverlongMessageError extends ProtocolError {
  /** Id of the request that it answers, if it is an answer. */
  readonly id: number | undefined;

  constructor(message: Uint8Array) {
    super(`server sent a message of ${message.byteLength} bytes: more than a string can hold`);
    const start = new TextDecoder().decode(message.subarray(0, ID_BYTES));
    const id = /^\{(?:"jsonrpc":"2\.0",)?"id":(\d+),"result":/.exec(start)?.[1];
    this.id = id === undefined ? undefined : Number(id);
  }
}

/** Decodes text of a file or a command; throws a {@link LimitError} if it is too long. */
export function decodeText(bytes: Uint8Array): string {
  try {
    return new TextDecoder().decode(bytes);
  } catch {
    throw new LimitError(`${bytes.byteLength} bytes are too many for a string; ask for bytes`);
  }
}

function text(message: Uint8Array, start: number, end: number): string {
  if (end - start > MAX_TEXT_BYTES) {
    throw new OverlongMessageError(message);
  }
  try {
    // Much faster in Node for short texts. Headers are written by a JSON encoder.
    const slice = (message as Uint8Array & Utf8Slice).utf8Slice;
    if (slice !== undefined) {
      return slice.call(message, start, end);
    }
    return decoder.decode(message.subarray(start, end));
  } catch {
    throw new ProtocolError("server sent a malformed message: invalid UTF-8");
  }
}

function parse(json: string): RpcMessage {
  let message: unknown;
  try {
    message = JSON.parse(json);
  } catch (error) {
    throw new ProtocolError(`server sent a malformed message: ${(error as Error).message}`);
  }
  if (typeof message !== "object" || message === null || Array.isArray(message)) {
    throw new ProtocolError("server sent a malformed message: it is not an object");
  }
  return message as RpcMessage;
}

/** Encodes a message in the binary form. */
export function encodeBinary(header: object, data: Uint8Array): Uint8Array {
  const head = encoder.encode(JSON.stringify(header));
  const message = new Uint8Array(PREFIX + head.byteLength + data.byteLength);
  message[0] = BINARY;
  message[1] = head.byteLength >> 16;
  message[2] = (head.byteLength >> 8) & 0xff;
  message[3] = head.byteLength & 0xff;
  message.set(head, PREFIX);
  message.set(data, PREFIX + head.byteLength);
  return message;
}

/** Encodes a request as JSON, with its data member in base64. */
export function encodeText(
  header: { method: string; params: object; id?: number },
  member: DataMember | undefined,
): string {
  if (member === undefined) {
    return JSON.stringify(header);
  }
  const params = { ...header.params, [member.name]: encodeBase64(member.bytes) };
  return JSON.stringify({ ...header, params });
}

/** Whether a message has at most this many bytes. */
export function isWithin(message: string | Uint8Array, limit: number): boolean {
  // A UTF-16 code unit has at most 3 bytes in UTF-8.
  return message.length * 3 <= limit || byteLength(message) <= limit;
}

function byteLength(message: string | Uint8Array): number {
  return typeof message === "string" ? encoder.encode(message).byteLength : message.byteLength;
}

/** Returns the data member of a message, wherever it is. */
export function dataMember(
  message: RpcMessage,
  from: Record<string, unknown> | undefined,
  name: string,
): Uint8Array {
  if (message.data !== undefined) {
    return message.data;
  }
  const value = from?.[name];
  if (typeof value !== "string") {
    throw new ProtocolError(`server sent a malformed message: \`${name}\` is missing`);
  }
  try {
    return decodeBase64(value);
  } catch {
    throw new ProtocolError(`server sent a malformed message: \`${name}\` is not base64`);
  }
}
