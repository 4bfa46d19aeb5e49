"""Cell output and prompts: live turns, and core values as rich output.

The core doesn't depend on this package. `formatters` registers values with IPython, `live` and
`text` show a running turn, `prompter` asks the user about its requests, `cell` combines them.
"""
