"""Values and pure functions: what a server holds and says, and what follows from it.

`model` has the values, `events` what a stream says, `turn` and `fold` how events become a `Turn`,
`outcome` whether and how it ended. Imports only `errors` and the standard library (pandas when a
frame is asked for). Begin with `model`, then `events`, then `turn`.
"""
