"""How each server generation is spoken to: wire values in, core values out, and no IO.

`base` declares every operation; `v1` and `v2` answer them, each with its `_shapes` (what replies
hold) and `_events` (what frames say). `detect` finds out which one a server speaks, `replies` which
error a reply means. Imports `core` and `errors`. Begin with `base`; only these files know one
generation from another.
"""
