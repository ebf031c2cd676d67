"""FusedDQP, FlowKV and the vector operators on one overlay."""
