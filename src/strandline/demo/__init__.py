"""The story in one screen: crashes, a zombie, and a count that does not trust us. May import every room below."""
