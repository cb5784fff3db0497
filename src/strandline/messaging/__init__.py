"""Kafka from the driver's side: connecting, describing topics, group offsets, transactions, schemas.

Works without Spark; what Spark itself reads is in `runtime.sources.kafka`. May import `model` and `project`.
"""
