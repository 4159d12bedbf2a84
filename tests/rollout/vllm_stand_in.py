"""A server that speaks as vLLM's does (tests/rollout/recorded/vllm.json), to see what becomes of one that fails.

    python vllm_stand_in.py SOCKET_OR_PORT FOLDER

Its tokens are made of the request's seed and of the weights that it was given, so that completions tell what they
depend on. FOLDER holds what happens to it: a file die-<n> makes it end at its n-th completion (and is removed), a
file refuse gives status 400, a file late holds the seconds to wait before it answers. It notes its calls in
FOLDER/calls, and after each hand-over the sum of the weights in FOLDER/weights.
"""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import sys
import threading
import time
from pathlib import Path

SERVED = threading.Lock()


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address, daemon_threads = True, True


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    weights, version, files, completed, updating = 0, "default", "", 0, False

    def do_GET(self):
        self.note()
        if self.path == "/health":
            return self.answer(None)
        if self.path == "/weight_info":
            return self.answer({"weight_version": Handler.version})
        if self.path.startswith("/server_info"):
            told = json.loads((self.folder / "server_info.json").read_text())
            return self.answer(told)
        return self.answer({"detail": "Not Found"}, 404)

    def do_POST(self):
        self.note()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/init_weight_transfer_engine":
            Handler.files = body["init_info"]["folder"]
        elif self.path in ("/start_weight_update", "/finish_weight_update"):
            starts = self.path == "/start_weight_update"
            if Handler.updating == starts:
                return self.answer({"error": {"message": "a weight update is (not) active"}}, 500)
            Handler.updating = starts
            if not starts:
                with SERVED, (self.folder / "weights").open("a") as weights:
                    weights.write(f"{Handler.weights}\n")
        elif self.path == "/update_weights":
            assert Handler.updating
            from safetensors.numpy import load_file

            part = load_file(Path(Handler.files) / body["update_info"]["file"])
            Handler.weights = int(sum(abs(float(x.sum())) for x in part.values()) * 1e6)
        elif self.path == "/update_weight_version":
            Handler.version = body["new_version"]
        elif self.path == "/reset_prefix_cache":
            return self.answer({"success": True})
        elif self.path == "/v1/completions":
            return self.complete(body)
        return self.answer({"message": "done"})

    def complete(self, body):
        if (self.folder / "late").exists():
            time.sleep(float((self.folder / "late").read_text()))
        if (self.folder / "refuse").exists():
            return self.answer({"error": {"message": "no such thing", "code": 400}}, 400)
        with SERVED:
            Handler.completed += 1
            for file in self.folder.glob("die-*"):
                if Handler.completed >= int(file.name.removeprefix("die-")):
                    file.unlink()
                    os._exit(9)
        choices = []
        for i in range(body["n"]):
            tokens = [(body["seed"] + i + t + Handler.weights) % 200 + 3 for t in range(body["max_tokens"])]
            choices.append(
                {
                    "index": i,
                    "text": "",
                    "logprobs": {"token_logprobs": [-t / 100 for t in tokens]},
                    "finish_reason": "length",
                    "token_ids": tokens,
                }
            )
        return self.answer({"choices": choices[::-1]})  # in any order

    def answer(self, content, status=200):
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def note(self):
        with SERVED, (self.folder / "calls").open("a") as calls:
            calls.write(f"{self.path}\n")

    def address_string(self):
        return "somebody"

    def log_message(self, *_):
        """Nothing: the log is the process's."""


def main(where: str, folder: str) -> None:
    Handler.folder = Path(folder)
    server = Server(("127.0.0.1", int(where)), Handler) if where.isdigit() else UnixServer(where, Handler)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
