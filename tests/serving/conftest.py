from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Served, make_model, serving


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="session")
def served(model: Path) -> Iterator[Served]:
    with serving(model) as served:
        yield served
