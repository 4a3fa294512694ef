"""Whatever is wrong with the device's kernels, the server starts, says so once, and is right."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import mlx.core as mx
import pytest
from prometheus_client import CollectorRegistry

from backend_metal import LLM, SamplingParams
from backend_metal.attention.kv_cache import LayerAttention, LayerCacheSpec
from backend_metal.backend import MlxBackend
from backend_metal.device import CPU, REFERENCE, Device, registered
from backend_metal.devices.reference import Reference
from backend_metal.engine.attention_choice import choose_attention
from deployments.backend import AttentionStatus, EngineConfig
from deployments.observe.metrics import EngineMetrics, Identity
from deployments.replica.app import build_replica_app
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.broken_paths import BROKEN, BROKEN_OPTIONS
from tests.support.backend_metal.changed_device import changed

CPU_DEVICE = mx.Device(mx.cpu)
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = ["a", "hello there", "x" * 70]
LAYER = LayerAttention(LayerCacheSpec(2, 64, 64), num_q_heads=4, scale=0.125)
# Between them they have a window, sinks and a softcap.
FAMILY_OF = {"ignores the softcap": "gemma2"} | dict.fromkeys(
    set(BROKEN_OPTIONS) - {"ignores the softcap"}, "gpt_oss"
)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = {}
    for family in ("qwen3", "gpt_oss", "gemma2"):
        path = tmp_path_factory.mktemp(family)
        tiny_models.save(family, path)
        made[family] = str(path)
    return made


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, str]) -> dict[str, list[list[int]]]:
    return {family: tokens(load(path)) for family, path in checkpoints.items()}


@pytest.fixture(autouse=True)
def same_default_device() -> Iterator[None]:
    previous = mx.default_device()
    yield
    mx.set_default_device(previous)


def device_with(path: Device) -> Device:
    return changed(path, name="gpu-in-a-test")


def load(checkpoint: str, **settings: object) -> LLM:
    return LLM(checkpoint, num_kv_blocks=64, **settings)


def tokens(llm: LLM) -> list[list[int]]:
    completions = llm.generate(PROMPTS, GREEDY, show_progress=False)
    return [completion.token_ids for completion in completions]


@pytest.mark.parametrize("fault", [*BROKEN, *BROKEN_OPTIONS])
def test_wrong_kernels_never_serve(
    fault: str,
    checkpoints: dict[str, str],
    expected: dict[str, list[list[int]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    family = FAMILY_OF.get(fault, "qwen3")
    with registered(device_with((BROKEN | BROKEN_OPTIONS)[fault])) as device:
        llm = load(checkpoints[family], device=device.name)
        before = llm.stats().attention_launches
        assert tokens(llm) == expected[family]
        after = llm.stats().attention_launches
    assert {name for name in after if after[name] > before[name]} == {"reference"}
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    message = record.getMessage()
    for part in ("metal attention kernels", "Please send us this", "MLX 0.", "query heads over"):
        assert part in message
    status = llm.engine.attention
    assert status is not None
    assert status.path == "reference"
    assert status.reason.startswith("the metal kernels failed the check at start: ")
    assert len(status.reason) <= 300


def test_right_kernels_serve(
    checkpoints: dict[str, str],
    expected: dict[str, list[list[int]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for setting in ("auto", "metal"):
        with registered(device_with(changed(CPU, attention="metal"))) as device:
            llm = load(checkpoints["gpt_oss"], device=device.name, attention=setting)
            before = llm.stats().attention_launches
            assert tokens(llm) == expected["gpt_oss"]
            after = llm.stats().attention_launches
        assert {name for name in after if after[name] > before.get(name, 0)} == {"metal"}
        assert llm.engine.attention == AttentionStatus(
            "metal", "passed the check at start", "metal"
        )
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_metal_refuses_to_start_rather_than_fall_back(checkpoints: dict[str, str]) -> None:
    with (
        registered(device_with(BROKEN["all of it slightly wrong"])) as device,
        pytest.raises(
            ValueError,
            match=r"engine.attention is 'metal', and these kernels fail the check at start: "
            r"first tokens .* relative RMS 0.05.* MLX 0.*; auto would serve with plain MLX instead",
        ),
    ):
        load(checkpoints["qwen3"], device=device.name, attention="metal")


@pytest.mark.parametrize("setting", ["metal", "magic"])
def test_kernels_that_the_device_does_not_have_are_refused(setting: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"engine.attention is '{setting}', and the device 'cpu' has no such kernels; it "
        r"must be one of \('auto', 'cpu', 'reference'\)",
    ):
        choose(setting, CPU)


def test_a_device_without_kernels_serves_with_the_reference() -> None:
    path, status = choose("auto", Reference("cuda", CPU_DEVICE))
    assert path is REFERENCE
    assert status == AttentionStatus("reference", "cuda has no kernels here", "cuda")
    with pytest.raises(ValueError, match=r"must be one of \('auto', 'reference'\)"):
        choose("cpu", Reference("cuda", CPU_DEVICE))


def test_metal_without_its_kernels_wants_them() -> None:
    _, status = choose("auto", Reference("metal", CPU_DEVICE))
    assert status == AttentionStatus("reference", "metal has no kernels here", "metal")


def test_the_reference_needs_no_check() -> None:
    path, status = choose("reference", device_with(BROKEN["raises when it is built"]))
    assert path is REFERENCE
    assert status == AttentionStatus("reference", "engine.attention asks for it", "reference")


def test_the_cpus_kernels_are_checked_too() -> None:
    path, status = choose("auto", CPU)
    assert path is CPU
    assert status == AttentionStatus("cpu", "passed the check at start", "cpu")


def test_head_dims_without_kernels_are_served_by_the_reference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    layers = [LAYER, LayerAttention(LayerCacheSpec(2, 48, 48), num_q_heads=4, scale=0.14)]
    path, status = choose("auto", device_with(changed(CPU, attention="metal")), layers)
    assert path is REFERENCE
    reason = (
        "the metal path has no kernels for head dim 48: there are 64, 80, 96, 112, 128, 192, 256, "
        "512/512, 576/512 (keys/values)"
    )
    # Nothing is broken, so the reference is what is wanted.
    assert status == AttentionStatus("reference", reason, "reference")
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == f"Plain MLX operators serve, more slowly: {reason}"


def test_kernels_that_are_asked_for_refuse_head_dims_that_they_lack() -> None:
    layer = LayerAttention(LayerCacheSpec(2, 16, 16), num_q_heads=4, scale=0.25)
    with pytest.raises(
        ValueError,
        match=r"engine.attention is 'cpu', and the cpu path has no kernels for head dim 16: there "
        r"are 64, .*; auto would serve with plain MLX instead",
    ):
        choose("cpu", CPU, [layer])


def choose(
    setting: str, device: Device, layers: Sequence[LayerAttention] = (LAYER,)
) -> tuple[Device, AttentionStatus]:
    return choose_attention(setting, device, layers, block_size=8, dtype=mx.float32)


async def test_what_serves_shows_over_http(checkpoints: dict[str, str]) -> None:
    backend = MlxBackend()
    config = EngineConfig(model=checkpoints["qwen3"], num_kv_blocks=64)
    with registered(device_with(BROKEN["raises when it is built"])) as device:
        model = await backend.start(config.model_copy(update={"device": device.name}))
    metrics = EngineMetrics(backend.stats, Identity(model.name, "replica", "node"), model.attention)
    launches = launches_by_path(metrics.registry)
    app = build_replica_app(
        backend=backend,
        model=model,
        secret="secret",
        registry=metrics.registry,
        on_failure=metrics.failed,
        max_body_bytes=4096,
        keep_alive_interval_s=5.0,
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://replica"
    ) as client:
        body = {"model": model.name, "prompt": "hello", "max_tokens": 4, "temperature": 0}
        answer = await client.post(
            "/v1/completions", json=body, headers={"Authorization": "Bearer secret"}
        )
        assert answer.status_code == 200
        ready = (await client.get("/ready")).json()
    await backend.stop()
    assert (ready["attention"]["path"], ready["attention"]["wanted"]) == ("reference", "metal")
    assert paths_served(metrics.registry) == {("metal", "reference"): 1}
    assert "Unable to build metal library" in ready["attention"]["reason"]
    now = launches_by_path(metrics.registry)
    assert now.pop("reference") > launches.pop("reference")
    assert now == launches


def paths_served(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """By what is wanted, and what serves."""
    return {
        (sample.labels["wanted"], sample.labels["actual"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "pomona_attention_path_info"
    }


def launches_by_path(registry: CollectorRegistry) -> dict[str, float]:
    return {
        sample.labels["path"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "pomona_attention_launches_total"
    }


def test_a_config_file_cannot_name_a_registered_device(tmp_path: Path) -> None:
    with registered(device_with(CPU)) as device, pytest.raises(ValueError, match="device"):
        EngineConfig.model_validate({"model": str(tmp_path), "device": device.name})
