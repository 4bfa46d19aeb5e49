"""A practice world: everything can be tried offline, without a key.

`world` runs a real OpenCode 1.x in a small `workspace`, with a scripted `model` that answers as
`script` says; `repertoire` lists what can be asked. `simulator` stands in for OpenCode 2.x. May
import the client and what is below it; only the command line and the tests import it.
"""
