"""Groups of families, measured beside mlx-lm."""

from __future__ import annotations

import pytest

from backend_metal.models.families.table import FAMILIES
from ops.bench.engine.groups import GROUPS, GroupRates, agreement, measure, table
from ops.bench.engine.workload import Workload

pytestmark = pytest.mark.serve

SMALL = Workload(num_prompts=2, shortest=3, longest=6, output_tokens=3, at_once=2)


@pytest.mark.parametrize("name", ["MoE", "sparse MLA"])
@pytest.mark.exhaustive
def test_a_group_is_measured(name: str) -> None:
    rates = measure(name, SMALL, rounds=1)
    assert rates.model_type == GROUPS[name]["model_type"]
    assert min(rates.pomona_alone, rates.mlx_lm_alone, rates.pomona, rates.batch_generator) > 0
    assert rates.agreement == 1


def test_groups_are_of_families_that_are_served() -> None:
    assert {str(config["model_type"]) for config in GROUPS.values()} <= FAMILIES.keys()


def test_wrong_tokens_are_no_rate() -> None:
    right = GroupRates("dense", "qwen3", 20.0, 10.0, 60.0, 30.0, agreement=1.0)
    wrong = GroupRates("hybrid", "mamba2", 30.0, 10.0, 60.0, 30.0, agreement=0.5)
    rows = table([right, wrong], SMALL).splitlines()
    assert "pomona, 2 at once" in rows[0]
    assert rows[2] == "| dense (`qwen3`) | 20.0 | 10.0 | 2.00 | 60.0 | 30.0 | 2.00 |"
    assert rows[3].endswith("| 3.00 | 60.0 | wrong: 50% of its tokens are right |  |")


def test_agreement() -> None:
    assert agreement([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == 0.75
    with pytest.raises(ValueError, match="longer"):
        agreement([[1]], [[1, 2]])
