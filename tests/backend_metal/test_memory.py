import pytest

from backend_metal.engine.memory import GIB, num_kv_blocks


def test_blocks_fill_what_the_fraction_leaves_beside_the_weights() -> None:
    blocks = num_kv_blocks(
        memory_bytes=10 * GIB,
        memory_fraction=0.5,
        weight_bytes=GIB,
        bytes_per_block=GIB // 4,
        most_useful=1000,
    )
    assert blocks == 16


def test_no_more_blocks_than_could_be_used() -> None:
    blocks = num_kv_blocks(
        memory_bytes=10 * GIB,
        memory_fraction=0.5,
        weight_bytes=0,
        bytes_per_block=1024,
        most_useful=12,
    )
    assert blocks == 12


def test_more_blocks_than_fit_are_refused_with_the_figures() -> None:
    def blocks(wanted: int) -> int:
        return num_kv_blocks(
            memory_bytes=10 * GIB,
            memory_fraction=0.5,
            weight_bytes=GIB,
            bytes_per_block=GIB,
            most_useful=1,
            wanted=wanted,
        )

    assert blocks(4) == 4
    with pytest.raises(ValueError, match=r"num_kv_blocks must be at most 4.*not 5.*5\.00 GiB"):
        blocks(5)


def test_no_room_is_an_error_with_the_figures() -> None:
    with pytest.raises(ValueError, match=r"7\.00 GiB of the 4\.00 GiB .* of 8\.00 GiB"):
        num_kv_blocks(
            memory_bytes=8 * GIB,
            memory_fraction=0.5,
            weight_bytes=7 * GIB,
            bytes_per_block=1024,
            most_useful=12,
        )
