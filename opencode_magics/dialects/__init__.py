"""How each server generation is spoken to: wire values in, core values out, and no IO.

`base` declares every operation, `v1` and `v2` answer them, `detect` finds out which one a server
speaks. Imports `core` and `errors`. Begin with `base`; only these files know one generation from
another.
"""
