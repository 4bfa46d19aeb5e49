"""Recorded turns: their file format, saving and loading, and the redaction of secrets.

`format` defines the file format and the recorder, `files` saves and loads, `redact` hides
secrets. Imports `dialects` and `core`. Begin with the docstring of `format`.
"""
