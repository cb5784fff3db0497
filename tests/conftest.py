"""Fixtures of the whole suite; the public ones come from `strandline.testing`, as users get them."""

pytest_plugins = ["strandline.testing.fixtures"]
