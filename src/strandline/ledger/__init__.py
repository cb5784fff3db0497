"""The durable record of attempts, batches, commits, requests and events: memory that outlives table and checkpoint.

SQLAlchemy throughout, nothing SQLite-only. May import `model` and `project`.
"""

from strandline.ledger.ledger import Ledger, ledger_of, open_ledger

__all__ = ["Ledger", "ledger_of", "open_ledger"]
