"""What takes several requests: following a turn, reading, steering and ending sessions.

`run` sends a prompt and follows its turn; `store` reads what a server holds of a session, `status`
concludes what it is doing, `end` and `edit` change it, `commands` and `correlate` run commands.
Imports `client` and what is below it. Begin with `run`.
"""
