"""``EngineConfig``: what one engine runs, as the config file's ``engine`` section says it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from deployments.backend.request import SamplingParams

ChatFormat = Literal[
    "auto",
    "plain",
    "thinking",
    "deepseek_v3",
    "deepseek_v3_1",
    "deepseek_v3_2",
    "deepseek_v4",
    "deepseek_v4_1",
    "function_gemma",
    "gemma4",
    "glm4_moe",
    "granite",
    "harmony",
    "hermes",
    "kimi_k2",
    "lfm2",
    "llama3_json",
    "minimax_m2",
    "mistral",
    "mistral_v11",
    "olmo3",
    "pythonic",
    "qwen3_coder",
]


DEFAULT_BACKEND = "mlx"


class GenerationDefaults(BaseModel):
    """How tokens are drawn for requests that leave a field out, where anybody says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)

    def over(self, sampling: SamplingParams) -> SamplingParams:
        """``sampling`` with what is said here."""
        said = self.model_dump(exclude_none=True)
        if "top_k" in said:
            # For clients and checkpoints, -1 turns it off, too.
            said["top_k"] = max(said["top_k"], 0)
        return replace(sampling, **said)


class EngineConfig(BaseModel):
    """What one engine runs and how much of the machine it may use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: str = Field(
        DEFAULT_BACKEND,
        description="Name in the entry-point group `pomona.backends`; `metal` is an older name of "
        "`mlx`.",
    )
    model: str = Field(
        "demo",
        min_length=1,
        description="Hugging Face id, local directory, or `demo` for the embedded model.",
    )
    revision: str | None = Field(
        None,
        min_length=1,
        description="Branch, tag or full commit of a `model` on the hub, for weights and "
        "tokenizer; by default what `main` is when an engine starts. A commit is the same on every "
        "host, whenever it starts.",
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="Name clients use; the last part of `model` by default."
    )
    aliases: tuple[str, ...] = Field(
        (),
        description="Other names that clients may use, besides `model` as it stands here. Lists of "
        "models, metrics and logs have the one name.",
    )
    device: Literal["auto", "metal", "cuda", "cpu"] = Field(
        "auto", description="`auto`: Metal on Apple silicon, CUDA where MLX has it, CPU otherwise."
    )
    attention: Literal["auto", "metal", "cuda", "cpu", "reference"] = Field(
        "auto",
        description="Attention operators. `auto`: the device's own kernels, or plain MLX "
        "(`reference`) if they lack the model's head dim or fail the check at start; `metal`, "
        "`cuda` and `cpu`: these kernels, or no start at all.",
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="Of weights and KV cache; `auto`: float32 on CPU, else the model's."
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest sequence in tokens; the model's own limit by default."
    )
    max_num_seqs: int = Field(32, ge=1, description="Most sequences in one step.")
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="Token budget of one step; at least `max_num_seqs`. A larger one computes "
        "prompts faster, a smaller one holds up the streams beside them for less. By default what "
        "suits the device: 512 on a CPU, 2048 with Metal, 4096 with CUDA.",
    )
    max_slowdown: float | None = Field(
        None,
        gt=1.0,
        description="Times as long as alone that a token may take beside others, such as 1.5: "
        "while sequences decode, prompts get the time that is left in a step, and new ones wait "
        "when there is none, by what steps were measured to take. Faster streams, for less "
        "throughput; by default only `max_num_seqs` and `max_num_batched_tokens` bound a step.",
    )
    deterministic: bool = Field(
        False,
        description="A request with `temperature: 0` or a `seed` gets the same tokens whatever "
        "runs beside it, however its prompt is cut or found in the prefix cache, and even if it is "
        "preempted: each logit is the same to the last bit. On a CPU, or with CUDA for models in "
        "float16 or bfloat16 without experts, latents and recurrent layers; long contexts are "
        "slower to decode, and with CUDA prompts to compute.",
    )
    block_size: Literal[8, 16, 32] = Field(16, description="Tokens in one KV cache block.")
    num_kv_blocks: int | None = Field(
        None,
        ge=1,
        description="Blocks in the KV cache, for the tokens of all sequences; sized from memory by "
        "default. Layers that see a window of tokens get what their windows take on top.",
    )
    num_state_snapshots: int | None = Field(
        None,
        ge=0,
        description="Of a model with recurrent layers: snapshots of their state, which a prompt "
        "that shares a prefix begins with. By default a quarter of the KV cache's memory, which is "
        "the most; what running sequences leave of their own slots comes on top.",
    )
    memory_fraction: float = Field(
        0.8, gt=0.0, le=0.95, description="Most of the device's memory for weights and KV cache."
    )
    wired_memory: Literal["auto", "off"] | PositiveFloat = Field(
        "auto",
        description="What macOS keeps resident on the GPU while nobody asks. `auto`: the weights "
        "and the KV cache, and nothing else; `off`; or a number of GiB.",
    )
    keep_resident: float = Field(
        0.0,
        ge=0.0,
        description="Seconds after a request for which an idle engine goes on reading of its "
        "weights, since macOS may give up wired memory that is idle for two. It costs power.",
    )
    prefix_caching: bool = Field(True, description="Reuse the blocks of shared prompt prefixes.")
    max_queued_requests: int = Field(
        256,
        ge=0,
        description="Waiting requests past which the answer is 429. One key alone may take half of "
        "the room, and several so much each that there is some left.",
    )
    step_timeout_s: float = Field(
        120.0,
        gt=0.0,
        description="A step that takes longer, kernels compiled in it included, counts as hung, as "
        "does a prompt that takes longer to render and tokenize: streams go on at other replicas "
        "and the engine is replaced. Raise it for a machine that needs minutes for "
        "`max_num_batched_tokens` tokens.",
    )
    chat_template: str | None = Field(
        None, description="Path of a Jinja file that replaces the tokenizer's chat template."
    )
    chat_format: ChatFormat = Field(
        "auto",
        description="How the model writes tool calls and thoughts. `auto`: told by its chat "
        "template and its tokens; `plain`: all that it writes is text; `thinking`: a thought, and "
        "then text. The others are families of models, which deployments/README.md lists.",
    )
    parse_special_tokens_in_messages: bool = Field(
        False,
        description="Text in messages that spells a control token, such as `<|im_end|>`, is that "
        "token, so that whoever writes a message can end it and begin another; by default it is "
        "text. In the `prompt` of `/v1/completions` it always is the token.",
    )
    generation_config: Literal["auto", "openai"] = Field(
        "auto",
        description="Where sampling defaults come from. `auto`: the model's "
        "`generation_config.json`, if it has one; `openai`: OpenAI's, which are temperature 1 and "
        "nothing cut off.",
    )
    generation_defaults: GenerationDefaults = Field(
        GenerationDefaults(),
        description="Sampling defaults that win over those, such as `{temperature: 0.7, top_p: "
        "0.8}`. Requests that name a field have their own way.",
    )
    trust_remote_code: bool = Field(
        False, description="Run Python that ships with the model's repository."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of a third-party backend; `mlx` takes none."
    )

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def other_names(self) -> tuple[str, ...]:
        """What clients may call it, too."""
        names = dict.fromkeys((self.model, *self.aliases))
        names.pop(self.name, None)
        return tuple(names)
