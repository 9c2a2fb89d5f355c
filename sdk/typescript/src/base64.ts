/**
 * Base64 of the standard alphabet with padding, and its URL-safe variant without.
 *
 * @module
 */

interface NativeBase64 {
  toBase64?: () => string;
}
interface NativeBase64Constructor {
  fromBase64?: (text: string) => Uint8Array;
}
interface BufferLike {
  from(data: ArrayBufferLike, offset: number, length: number): { toString(encoding: "base64"): string };
  from(text: string, encoding: "base64"): Uint8Array;
}

const buffer = (globalThis as { Buffer?: BufferLike }).Buffer;

/** Encodes bytes. */
export function encodeBase64(bytes: Uint8Array): string {
  if (buffer !== undefined) {
    return buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
  }
  const native = bytes as Uint8Array & NativeBase64;
  if (native.toBase64 !== undefined) {
    return native.toBase64();
  }
  let text = "";
  // The arguments of a call are on the stack.
  for (let offset = 0; offset < bytes.byteLength; offset += 0x2000) {
    text += String.fromCharCode(...bytes.subarray(offset, offset + 0x2000));
  }
  return btoa(text);
}

/** Decodes text; throws if it is not base64. */
export function decodeBase64(text: string): Uint8Array {
  if (buffer !== undefined) {
    return buffer.from(text, "base64");
  }
  const native = Uint8Array as unknown as NativeBase64Constructor;
  if (native.fromBase64 !== undefined) {
    return native.fromBase64(text);
  }
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

/** Encodes bytes with the URL-safe alphabet, without padding. */
export function encodeBase64Url(bytes: Uint8Array): string {
  return encodeBase64(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** Decodes the URL-safe alphabet. */
export function decodeBase64Url(text: string): Uint8Array {
  return decodeBase64(text.replaceAll("-", "+").replaceAll("_", "/"));
}
