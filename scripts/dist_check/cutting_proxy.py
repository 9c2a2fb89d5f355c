"""A websocket proxy that cuts connections in the middle of a command.

    cutting_proxy.py URL CUTS

Prints its own URL, then a line for each cut. It cuts the first connection where the server first names
a process, before the client hears of it, and the next ones where the server answers the client that
resumes its session. After CUTS connections it passes everything. Ends after five minutes.
"""

import asyncio
import signal
import sys
from urllib.parse import urlsplit

# Messages of the server are not masked. It names processes in responses and in events.
MARK = b'"processId"'


async def main() -> None:
    upstream, cuts = urlsplit(sys.argv[1]), int(sys.argv[2])
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        number = connections
        other_reader, other_writer = await asyncio.open_connection(upstream.hostname, upstream.port)

        async def requests() -> None:
            while data := await reader.read(65536):
                other_writer.write(data)
                await other_writer.drain()

        async def answers() -> None:
            passed = b""
            while data := await other_reader.read(65536):
                names_process = MARK in passed + data
                is_open = b"\r\n\r\n" in passed
                if number <= cuts and (names_process if number == 1 else is_open):
                    print("cut", flush=True)
                    return
                writer.write(data)
                await writer.drain()
                if number <= cuts:
                    passed += data

        tasks = [asyncio.create_task(requests()), asyncio.create_task(answers())]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*done, *pending, return_exceptions=True)
        # A reset, not a close of the websocket.
        writer.transport.abort()
        other_writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"ws://127.0.0.1:{port}", flush=True)
    signal.alarm(300)
    await server.serve_forever()


asyncio.run(main())
