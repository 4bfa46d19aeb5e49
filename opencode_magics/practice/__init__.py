"""Practice worlds: OpenCode with a scripted model, offline and without an API key.

`world` runs a real OpenCode 1.x in a small `workspace`; its `model` follows a `script`, and
`repertoire` lists the requests that it understands. `simulator` replaces OpenCode 2.x. May import
the client and the packages below it; only the command line and the tests import this package.
"""
