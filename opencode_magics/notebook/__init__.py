"""What a cell shows and asks: a turn as it goes on, and core values as rich output.

The core knows nothing of this. `formatters` tells IPython how values look, `live` and `text` show
a running turn, `ask` puts its questions, `cell` plays them together.
"""
