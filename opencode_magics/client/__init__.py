"""Communication with one server: requests, the event stream, starting a server.

`client` runs the operations of a dialect, `stream` reads events in a thread, `transport` does the
network I/O, `password` masks passwords; `server` finds or starts a server, and `service` reads the
registration of a 2.x background service. Imports `dialects` and `core`. Begin with `client`.
"""
