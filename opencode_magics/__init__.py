"""Work with OpenCode coding agents from a notebook."""
