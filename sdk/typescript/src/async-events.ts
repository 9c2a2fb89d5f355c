/**
 * A bounded queue with one reader.
 *
 * @module
 */

import { Deferred } from "./deferred.js";

/** An async iterable that is filled from outside. */
export class AsyncEvents<T> implements AsyncIterable<T> {
  #items: T[] = [];
  #limit: number;
  #changed: Deferred<void> | undefined;
  #ended = false;
  #error: unknown;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Number of items that wait. */
  get length(): number {
    return this.#items.length;
  }

  /** Last item that waits. */
  get last(): T | undefined {
    return this.#items.at(-1);
  }

  /** Adds an item; returns false and drops it if the queue is full. */
  push(item: T): boolean {
    if (this.#ended || this.#items.length >= this.#limit) {
      return false;
    }
    this.#items.push(item);
    this.#wake();
    return true;
  }

  end(): void {
    this.#ended = true;
    this.#wake();
  }

  fail(error: unknown): void {
    if (!this.#ended) {
      this.#error = error;
      this.end();
    }
  }

  async next(): Promise<T | undefined> {
    for (;;) {
      if (this.#items.length > 0) {
        return this.#items.shift();
      }
      if (this.#ended) {
        if (this.#error !== undefined) {
          throw this.#error;
        }
        return undefined;
      }
      this.#changed ??= new Deferred();
      await this.#changed.promise;
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    for (;;) {
      const item = await this.next();
      if (item === undefined) {
        return;
      }
      yield item;
    }
  }

  #wake(): void {
    const changed = this.#changed;
    this.#changed = undefined;
    changed?.resolve();
  }
}
