"""Speed of plans on the NPU: the scheduler of src/targets/npu, and the costs of its invocations."""
