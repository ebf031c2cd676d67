"""Each family's model: `explain` and docs/models.md say the same about it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import onnx_ir as ir
import pytest
from model_folders import DATA, LEFT, MODELS, PLANS

import ort_aie_ep
from ort_aie_ep.explain.explain import HOST, explain
from ort_aie_ep.graph_passes import DOMAIN
from ort_aie_ep.graph_passes.plans import PLAN

# A checkout has docs and scripts; a copy of only the tests does not.
TOP = DATA.parents[1]
PAGE, SCRIPT = TOP / "docs" / "models.md", TOP / "scripts" / "family_table.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="no scripts beside the tests")
OURS = {
    f"com.microsoft.{op}" for op in ("MatMulNBits", "GroupQueryAttention", "GatherBlockQuantized")
}


@pytest.fixture(scope="module")
def table() -> ModuleType:
    """The script that writes the page's table."""
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MODELS)
def test_no_projection_and_no_attention_is_left_on_the_cpu_ep(name: str, table: ModuleType) -> None:
    left = set(table.left_on_the_cpu_ep(DATA / name))
    assert left == LEFT.get(name, set())
    for node in explain(DATA / name).nodes:
        if node.op in OURS:
            assert (node.runs, node.becomes.split(".")[0]) == (HOST, DOMAIN)


@pytest.mark.parametrize("name", MODELS)
def test_the_page_has_the_row_that_the_passes_give_now(name: str, table: ModuleType) -> None:
    assert table.folder_row(DATA, name) in PAGE.read_text().splitlines()


def test_the_page_has_a_row_of_every_other_family_of_the_matrix(table: ModuleType) -> None:
    recorded = list(table.recorded_rows(PAGE.with_name("model_matrix.json")))
    text = PAGE.read_text()
    assert [row for row in recorded if row not in text] == []
    # Cases of the matrix that are another form of a family in the table.
    forms = ("llama_", "phi3_long_rope", "olmo_clip", "gemma4_unified", "granitemoehybrid")
    plain = {row["family"] for row in table.results(PAGE.with_name("model_matrix.json")).values()}
    others = plain - table.FOLDERS.keys() - table.RECORDED.keys()
    assert {name for name in others if not name.startswith(forms)} == set()


@pytest.mark.parametrize("name", MODELS)
def test_compiled_it_is_one_plan_unless_operators_divide_it(name: str, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / name, tmp_path / "compiled")
    graph = ir.load(tmp_path / "compiled" / "model.onnx").graph
    ours = [node.op_type for node in graph if node.domain == DOMAIN]
    assert ours == [PLAN] * PLANS.get(name, 1)
