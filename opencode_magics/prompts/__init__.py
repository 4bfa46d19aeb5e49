"""Prompting without a notebook: one typed request in, a `Turn` out.

`ask` sends a request and follows it, `schema` turns answers into values, `variables` describes
Python values to an agent, `mapping` asks once per row, `answered` finds earlier answers.
Imports `sessions` and the packages below it. Begin with `ask`.
"""
