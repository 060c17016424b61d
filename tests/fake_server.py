"""A small OpenAI-compatible server on loopback: real HTTP, replies from a function; also a command.

with FakeServer(lambda messages, seed: "text") as server:  server.url, server.requests (bodies), server.headers_seen
Run python tests/fake_server.py --port 8000 --latency-s 0.2    (answers every request with a fixed short text)
"""

import argparse
import contextlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeServer:
    """reply(messages, seed) -> the text, or a full response {"status", "headers", "body"}; latency_s(seed) -> seconds.

    `responses`, if given, are served in order instead, whatever was asked; the last one repeats. other(path, **body)
    -> the JSON body of an answer, whatever the path.
    """

    def __init__(
        self,
        reply: Callable | None = None,
        *,
        latency_s: Callable = lambda _: 0.0,
        responses: list[dict] | None = None,
        other: Callable | None = None,
        port: int = 0,
    ):
        self.requests: list[dict] = []
        self.headers_seen: list[dict] = []
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the client was killed, or has hung up
                    super().handle()

            def do_GET(self) -> None:
                self.send(200, {}, {"object": "list", "data": [{"id": "fake", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    k = len(outer.requests)
                    outer.requests.append(body)
                    outer.headers_seen.append(dict(self.headers))
                time.sleep(latency_s(body.get("seed", 0)))
                if other is not None:
                    answer = {"status": 200, "headers": {}, "body": other(self.path, **body)}
                elif responses or reply is None:
                    answer = (responses or [""])[: k + 1][-1]
                else:
                    answer = reply(body["messages"], body.get("seed"))
                if isinstance(answer, str):
                    answer = {"status": 200, "headers": {}, "body": completion(answer, body)}
                self.send(answer["status"], answer["headers"], answer["body"])

            def send(self, status: int, headers: dict, body: object) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Type": "application/json", "Content-Length": len(data)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.server.socket.listen(256)  # 5 by default: a burst of connections would be refused
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "FakeServer":
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def completion(text: str, body: dict) -> dict:
    """A chat completion whose token counts are the numbers of words."""
    prompt_tokens = sum(len(str(m["content"]).split()) for m in body["messages"])
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(text.split())}
    message = {"role": "assistant", "content": text}
    return {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--latency-s", type=float, default=0.2)
    args = parser.parse_args()
    try:
        server = FakeServer(lambda _, seed: f"reply {seed}", latency_s=lambda _: args.latency_s, port=args.port)
    except OSError as e:
        parser.error(f"--port {args.port}: {e.strerror}")
    with server:
        print(server.url, flush=True)
        threading.Event().wait()
