"""Runs operators' problems in the simulator, and judges results as `ort-aie validate` does."""

from __future__ import annotations

import numpy as np

from ort_aie_ep.aie_kernels.reference import Problem
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.session import Session


def run(session: Session, problem: Problem) -> Result:
    """`run_all` of a problem that needs one run."""
    (result,) = run_all(session, problem)
    return result


def run_all(session: Session, problem: Problem) -> list[Result]:
    """The runs of a problem, whose outputs must be within their tolerances."""
    results = session.run(problem.sequence, problem.parameters, problem.buffers)
    for output in problem.judge(problem.buffers):
        error = np.abs(output.got - output.reference.exact)
        where = f"{problem.parameters}: {output.name} is off by {np.nanmax(error):.3g}"
        assert (error <= output.reference.tolerance).all(), where
    return results
