"""A simulated OpenCode 2.x: a server, its agent, and its event stream.

Begin with `server`, which implements the routes; `agent` runs the turns, `journal` stores events,
`commands` expands command templates.
"""
