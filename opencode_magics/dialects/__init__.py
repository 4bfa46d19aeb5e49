"""The wire protocol of each server generation: encoding and decoding, no I/O.

`base` declares every operation; `v1` and `v2` implement them, each with modules for stored values
(`_shapes`) and stream frames (`_events`). `detect` determines the generation of a server, `replies`
maps error replies to exceptions. Imports `core` and `errors`. Begin with `base`; no other package
distinguishes the generations.
"""
