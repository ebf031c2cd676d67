"""The cells of the table of doors on the modelled NPU."""

from __future__ import annotations

import pytest
from cells import PAGE, Door, check, parameters
from rows import Row

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="no docs beside the tests")


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(("row", "door"), parameters("sim", lambda row, door: False))
def test_a_model_on_the_npu(row: Row, door: Door, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(row, door, tmp_path_factory)
