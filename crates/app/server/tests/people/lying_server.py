"""A server that does not tell the truth, for programs that must not trust one.

    lying_server.py LIES PROGRAM

Stands between a client on standard input and output and the real server, PROGRAM. LIES is JSON:
`hold`: methods that are never answered, which a line in the pipe `held` tells; `errors`: messages that methods fail with; `names`: entries that
are added to every list of a directory.
"""

import json
import subprocess
import sys
import threading


def main() -> None:
    lies = json.loads(sys.argv[1])
    server = subprocess.Popen(
        [sys.argv[2], "--listen", "stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    methods = {}
    lock = threading.Lock()

    def answer(line: bytes) -> None:
        with lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def tell() -> None:
        for line in server.stdout:
            message = json.loads(line)
            method = methods.pop(message.get("id"), None)
            if method == "fs/readDirectory" and "result" in message:
                message["result"]["entries"] += lies.get("names", [])
                line = json.dumps(message).encode() + b"\n"
            answer(line)

    threading.Thread(target=tell, daemon=True).start()
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method = message.get("method")
        if method in lies.get("hold", []):
            with open(lies["held"], "w") as held:
                held.write(method)
            continue
        if method in lies.get("errors", {}):
            error = {"code": -32603, "message": lies["errors"][method]}
            answer(json.dumps({"id": message["id"], "error": error}).encode() + b"\n")
            continue
        if "id" in message:
            methods[message["id"]] = method
        server.stdin.write(line)
        server.stdin.flush()
    server.stdin.close()
    server.wait()


main()
