"""Run a dialect's operations against canned replies."""

from __future__ import annotations

import json

from opencode_magics.dialects.base import Reply, Request
from opencode_magics.dialects.replies import error_from_reply

PAGE = Reply(Request("GET", "/"), 200, {"content-type": "text/html"}, b"<!doctype html>")


def run(flow, answers):
    """Run a flow against canned replies by path; return its result and its requests."""
    requests = []
    try:
        request = next(flow)
        while True:
            requests.append(request)
            reply = answers(request) if callable(answers) else answers.get(request.path, PAGE)
            if not isinstance(reply, Reply):
                reply = reply_of(request, reply)
            request = (
                flow.throw(error_from_reply(reply)) if reply.status >= 300 else flow.send(reply)
            )
    except StopIteration as stop:
        return stop.value, requests


def reply_of(request, value, status=200, **headers):
    kind = {"content-type": "application/json"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    return Reply(request, status, kind, json.dumps(value).encode())
