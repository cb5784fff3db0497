"""Keyed state on Spark: packed input, the state server's socket, the operator, and the schemas kept beside the checkpoint.

What state means is in `strandline.state`; here is only how it reaches Spark.
"""
