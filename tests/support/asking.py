"""Asks an application of the report's room as a browser would, without a network."""

import json

import anyio

from dynadp.report.explore.app import application

TOKEN, HOST = "a-token-that-is-long-enough", "127.0.0.1:8317"


class Reply:
    """What the application answered."""

    def __init__(self, messages):
        start = next(message for message in messages if message["type"] == "http.response.start")
        self.status_code = start["status"]
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}
        self.content = b"".join(message.get("body", b"") for message in messages)

    @property
    def text(self):
        return self.content.decode()

    def json(self):
        return json.loads(self.content)


class Client:
    """One page."""

    def __init__(self, shown):
        self.app = application(shown, TOKEN, 8317)

    def get(self, path, **headers):
        return self._ask("GET", path, headers, b"")

    def post(self, path, given=None, content=None, **headers):
        body = json.dumps(given).encode() if content is None else content
        return self._ask("POST", path, {"content-type": "application/json", **headers}, body)

    def _ask(self, method, path, headers, body):
        path, _, query = path.partition("?")
        given = {"host": HOST, **{name.replace("_", "-"): v for name, v in headers.items()}}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "scheme": "http",
            "server": ("127.0.0.1", 8317),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        }
        messages, asked = [], []

        async def receive():
            if asked:
                await anyio.sleep_forever()
            asked.append(True)
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            messages.append(message)

        anyio.run(self.app, scope, receive, send)
        return Reply(messages)
