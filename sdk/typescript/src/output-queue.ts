/**
 * Output of one stream that the program has not taken yet.
 *
 * @module
 */

/** Bounded by flow control: output above the window is not acknowledged. */
export class OutputQueue {
  #chunks: Uint8Array[] = [];
  #head = 0;
  #ended = false;
  #error: unknown;
  #discarding = false;
  #waiting: (() => void) | undefined;
  #changed: Promise<void> | undefined;
  #onTaken: (bytes: number) => void;
  #onWait: (change: 1 | -1) => void;
  /** Total bytes that have arrived. */
  received = 0;
  /** Total bytes that were taken. */
  taken = 0;

  /** Reports taken bytes, and callers that begin (1) or cease (-1) to wait for a chunk. */
  constructor(
    onTaken: (bytes: number) => void,
    onWait: (change: 1 | -1) => void = () => {},
  ) {
    this.#onTaken = onTaken;
    this.#onWait = onWait;
  }

  /** Whether nothing more will come, and all was taken or the stream failed. */
  get ended(): boolean {
    return this.#ended;
  }

  push(chunk: Uint8Array): void {
    this.received += chunk.byteLength;
    if (this.#discarding || this.#ended) {
      this.taken += chunk.byteLength;
      return;
    }
    this.#chunks.push(chunk);
    this.#wake();
  }

  /** Ends the stream; what is queued can still be taken. */
  end(): void {
    this.#ended = true;
    this.#wake();
  }

  /** Fails the stream after what is queued. */
  fail(error: unknown): void {
    if (!this.#ended) {
      this.#error = error;
      this.end();
    }
  }

  /** Takes the oldest chunk, if there is one. */
  take(): Uint8Array | undefined {
    const chunk = this.#chunks[this.#head];
    if (chunk === undefined) {
      return undefined;
    }
    this.#head += 1;
    if (this.#head >= 64 && this.#head * 2 >= this.#chunks.length) {
      this.#chunks.splice(0, this.#head);
      this.#head = 0;
    }
    this.taken += chunk.byteLength;
    this.#onTaken(chunk.byteLength);
    return chunk;
  }

  /** Waits for a chunk; `undefined` is the end. */
  async next(): Promise<Uint8Array | undefined> {
    for (;;) {
      const chunk = this.take();
      if (chunk !== undefined) {
        return chunk;
      }
      if (this.#ended) {
        if (this.#error !== undefined) {
          throw this.#error;
        }
        return undefined;
      }
      this.#changed ??= new Promise((resolve) => {
        this.#waiting = resolve;
      });
      this.#onWait(1);
      await this.#changed;
      this.#onWait(-1);
    }
  }

  /** Drops what is queued and what will come. */
  discard(): void {
    this.#discarding = true;
    while (this.take() !== undefined) {
      // The memory is released by taking.
    }
  }

  /** Returns a Web Stream over the queue. */
  stream(): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const chunk = await this.next();
          if (chunk === undefined) {
            controller.close();
          } else {
            controller.enqueue(chunk);
          }
        },
        cancel: () => this.discard(),
      },
      { highWaterMark: 0 },
    );
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    this.#changed = undefined;
    waiting?.();
  }
}

/** Joins chunks. */
export function concatBytes(chunks: readonly Uint8Array[]): Uint8Array {
  if (chunks.length === 1 && chunks[0] !== undefined) {
    return chunks[0];
  }
  const bytes = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0));
  let offset = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, offset);
    offset += chunk.byteLength;
  }
  return bytes;
}
