"""Recorded turns: the format of their lines, their files, and what is redacted in them.

`format` has the lines of a recording and the recorder, `files` saves and loads, `redact` hides
secrets. Imports `dialects` and `core`. Begin with the docstring of `format`.
"""
