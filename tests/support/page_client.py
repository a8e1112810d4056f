"""Asks the application of the live page as a browser would, without a network."""

import json
from urllib.parse import urlencode

import anyio

from dynadp.report.explore.app import application

TOKEN, HOST = "a-token-of-enough-letters", "127.0.0.1:8317"


class Reply:
    """What the application answered."""

    def __init__(self, messages):
        start = next(message for message in messages if message["type"] == "http.response.start")
        self.status_code = start["status"]
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}
        self.text = b"".join(message.get("body", b"") for message in messages).decode()

    def json(self):
        return json.loads(self.text)


class Client:
    """Asks an application as a browser would, without a network."""

    def __init__(self, shown):
        self.app = application(shown, TOKEN, 8317)

    def get(self, path, method="GET", headers=None, params=None):
        path, _, query = path.partition("?")
        given = {"Host": HOST, **(headers or {})}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": (query or urlencode(params or {})).encode(),
            "scheme": "http",
            "server": ("127.0.0.1", 8317),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        }
        messages, asked = [], []

        async def receive():
            if asked:
                await anyio.sleep_forever()
            asked.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            messages.append(message)

        anyio.run(self.app, scope, receive, send)
        return Reply(messages)
