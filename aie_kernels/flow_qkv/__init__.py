"""FlowQKV: attention of the queries of a prompt."""
