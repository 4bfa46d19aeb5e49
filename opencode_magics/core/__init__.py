"""Domain values and pure functions; no I/O.

`model` defines the values that a server holds, `events` those that a stream delivers, `turn` and
`fold` build a `Turn` from events, and `outcome` decides how it ended. Imports only `errors` and the
standard library (and pandas, when a frame is built). Begin with `model`, then `events`, `turn`.
"""
