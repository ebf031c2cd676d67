"""Speed of plans on the NPU: the scheduler of src/targets/npu, and the costs of its invocations.

docs/npu-model.md describes the results. What others published is beside them in lab/npu_papers.
"""
