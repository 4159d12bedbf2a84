"""A reward server for `grouprl train --reward http://127.0.0.1:8765/score`: standard library only.

It scores 1 where the completion ends in the right number. Put a reward model, a compiler or a judge in its place.

    python examples/reward_server.py --port 8765
"""

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def score(completions, fields):
    """One reward for each completion: a number, or None for one that cannot be scored."""
    rewards = []
    for text, answer in zip(completions, fields["answer"], strict=True):
        numbers = re.findall(r"-?\d+", text)
        rewards.append(float(bool(numbers) and numbers[-1] == str(answer)))
    return rewards


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = 200, {"rewards": score(asked["completions"], asked["fields"])}
        except Exception as error:
            status, answer = 400, {"error": f"{type(error).__name__}: {error}"}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8765)
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"scoring at http://127.0.0.1:{server.server_port}/score", flush=True)
    server.serve_forever()
