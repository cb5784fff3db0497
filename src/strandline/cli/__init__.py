"""Commands: parse, call, print. No logic. May import every room."""
