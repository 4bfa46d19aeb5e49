"""Operations that take several requests: following a turn, reading, steering and ending sessions.

`run` sends a prompt and follows its turn; `store` reads what the server stores about a session,
`status` derives what it is doing, `end` and `edit` change it, `commands` and `correlate` run
commands. Imports `client` and the packages below it. Begin with `run`.
"""
