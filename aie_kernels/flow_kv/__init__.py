"""FlowKV: attention of one query, for decoding."""
