"""The event loop of a synchronous environment, on a private thread."""

from __future__ import annotations

import _thread
import asyncio
import selectors
import threading
from typing import Any, Coroutine, Generic, List, Optional, TypeVar

from .errors import ClosedError

Result = TypeVar("Result")

#: Time that an interrupted call has to clean up behind itself.
_CLEANUP_SECONDS = 10.0
#: How often a waiting call looks for an interrupt.
_INTERRUPT_SECONDS = 1.0


class _Outcome(Generic[Result]):
    """What became of a call."""

    __slots__ = ("value", "error", "task", "cancelled", "done")

    def __init__(self) -> None:
        self.value: Optional[Result] = None
        self.error: Optional[BaseException] = None
        self.task: "Optional[asyncio.Task[Result]]" = None
        self.cancelled = False
        self.done = False


class _Selector(selectors.DefaultSelector):
    """A selector that a forked child leaves alone: it shares the one of its parent."""

    is_inherited = False

    def get_map(self) -> Any:
        return {} if self.is_inherited else super().get_map()


class LoopThread:
    """Runs coroutines on a private event loop, for callers without one."""

    def __init__(self) -> None:
        self._selector = _Selector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._stopped = False
        self._is_inherited = False
        self._thread = threading.Thread(
            target=self._run, name="exec-server event loop", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine and returns its result.

        An interrupt of the waiting thread, such as Ctrl-C, cancels the coroutine, and waits until
        it has cleaned up behind itself. A handle that it returned nevertheless is closed; any other
        result is lost.

        Raises:
            ClosedError: The environment is closed.
        """
        if self._stopped or self.is_current():
            coroutine.close()
            if self._is_inherited:
                text = "the environment belongs to the process that forked this one: connect here"
                raise ClosedError(text)
            if self._stopped:
                raise ClosedError("the environment is closed")
            raise RuntimeError("a synchronous call would block its own event loop")
        outcome: _Outcome[Result] = _Outcome()
        # Cheaper than an Event; interrupts end the wait.
        done: List[Any] = [_thread.allocate_lock()]
        done[0].acquire()

        def finish(task: "asyncio.Task[Result]") -> None:
            if task.cancelled():
                outcome.error = asyncio.CancelledError()
            else:
                error = task.exception()
                if error is not None:
                    outcome.error = error
                else:
                    outcome.value = task.result()
            outcome.done = True
            done[0].release()

        def start() -> None:
            task = self._loop.create_task(coroutine)
            outcome.task = task
            task.add_done_callback(finish)
            if outcome.cancelled:
                task.cancel()

        def cancel() -> None:
            outcome.cancelled = True
            if outcome.task is not None:
                outcome.task.cancel()

        try:
            self._loop.call_soon_threadsafe(start)
        except RuntimeError:
            coroutine.close()
            raise ClosedError("the environment is closed") from None
        try:
            # An interrupt whose signal another thread received does not end the wait.
            while not done[0].acquire(timeout=_INTERRUPT_SECONDS):
                pass
        except BaseException as interrupt:
            self._loop.call_soon_threadsafe(cancel)
            if not outcome.done:
                done[0].acquire(timeout=_CLEANUP_SECONDS)
            leave = getattr(outcome.value, "__aexit__", None)
            if leave is not None:
                try:
                    self.call(leave(type(interrupt), interrupt, None))
                except Exception:
                    # The interrupt matters more.
                    pass
            raise
        error = outcome.error
        if error is not None:
            # Kept here, it would hold this frame in a cycle.
            outcome.error = None
            if isinstance(error, asyncio.CancelledError):
                raise ClosedError("the environment was closed during the call") from None
            try:
                raise error
            finally:
                del error
        return outcome.value  # type: ignore[return-value]

    def is_current(self) -> bool:
        """Returns whether the caller runs in this loop."""
        return threading.current_thread() is self._thread

    def post(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Runs a coroutine without waiting for it, unless the loop has ended."""
        if self._is_inherited:
            coroutine.close()
            return
        try:
            self._loop.call_soon_threadsafe(self._loop.create_task, coroutine)
        except RuntimeError:
            coroutine.close()

    def handle_fork(self) -> None:
        """Gives up the loop in a forked child, where its thread does not run.

        The parent uses it further. Finalizers of connections would change what both share.
        """
        self._stopped = self._is_inherited = self._selector.is_inherited = True

    def stop(self) -> None:
        """Ends the loop and its thread."""
        if not self._stopped:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            if not self.is_current():
                self._thread.join(_CLEANUP_SECONDS)
