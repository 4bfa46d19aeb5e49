"""Talking to one server: requests, the event stream, and servers of our own.

`client` runs the operations of a dialect, `stream` reads events in a thread, `transport` is the
only place with network IO, `password` masks what must not be seen; `server` finds or starts a
server, `service` reads the registration of a 2.x background service. Imports `dialects` and `core`.
Begin with `client`.
"""
