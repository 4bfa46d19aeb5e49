"""A simulated OpenCode 2.x: a server, the agent behind it, and the log that it writes.

Start with `server`, which answers the routes; `agent` runs the turns, `journal` stores what
happened, `commands` expands command templates.
"""
