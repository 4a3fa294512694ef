"""The trained demo model answers questions that it was not trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend_metal import LLM, ChatPrompt, SamplingParams
from ops.demo_model.evaluate import Answer, answers, complete, evaluate, is_right, load_float32
from ops.demo_model.held_out import HELD_OUT, Case

pytestmark = pytest.mark.serve

DEMO = Path(__file__).parents[2] / "backend_metal" / "models" / "demo"


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return load_float32(DEMO)


def ask(loaded: tuple[Any, Any], *questions: str) -> list[str]:
    given = answers(*loaded, [[{"role": "user", "content": question}] for question in questions])
    assert all(answer.finished for answer in given)
    return [answer.text for answer in given]


@pytest.mark.exhaustive
def test_it_answers_held_out_questions() -> None:
    cases = HELD_OUT[::2]
    assert len(cases) >= 60
    right, wrong = evaluate(DEMO, cases)
    assert right / len(cases) >= 0.95, [
        (case.messages[-1]["content"], answer.text) for case, answer in wrong
    ]


@pytest.mark.parametrize(
    ("text", "finished", "right"),
    [
        ("The capital of France is Paris.", True, True),
        ("The capital of France is Paris.", False, False),
        ("The capital of France is Paris", True, False),
        ("the capital of France is Paris.", True, False),
        ("The capital of France is Rome.", True, False),
    ],
)
def test_an_answer_is_right_when_it_is_true_whole_and_ended(
    text: str, finished: bool, right: bool
) -> None:
    case = Case(({"role": "user", "content": "capital of France?"},), ("Paris", "capital"))
    assert is_right(case, Answer(text, finished)) is right


def test_the_questions_of_the_readme(loaded: tuple[Any, Any]) -> None:
    what, own = ask(loaded, "What is Pomona?", "How do I serve my own model?")
    assert what.startswith("Pomona is a server for language models")
    assert "engine.model" in own


@pytest.mark.exhaustive
def test_it_keeps_talking_late_in_a_long_conversation(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    questions = ("Tell me a story about the sea.", "Explain Pomona step by step.", "Hello!")
    messages = []
    for question, answer in zip(questions, ask(loaded, *questions), strict=True):
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    messages = [*messages, *messages, {"role": "user", "content": "How do I start the server?"}]
    assert len(tokenizer.apply_chat_template(messages)) > 900
    (last,) = answers(model, tokenizer, [messages])
    assert last.finished
    assert "make serve" in last.text


def test_it_answers_behind_more_tools_than_it_was_trained_for() -> None:
    function = {"name": "read_file", "description": "Reads one file of the working directory."}
    prompt = ChatPrompt(
        ({"role": "user", "content": "What is Pomona?"},),
        tools=({"type": "function", "function": function},) * 44,
    )
    (answer,) = LLM("demo", num_kv_blocks=512).generate(
        [prompt], SamplingParams(temperature=0.0, max_tokens=100), show_progress=False
    )
    assert answer.num_prompt_tokens > 2500
    assert answer.finish_reason == "stop"
    assert answer.text.startswith("Pomona is a server for language models")


@pytest.mark.exhaustive
def test_it_can_write_enough_to_watch_it_stream(loaded: tuple[Any, Any]) -> None:
    (story,) = ask(loaded, "Please write a story about the sea")
    assert story.startswith("Once upon a time")
    assert 150 <= len(loaded[1].encode(story)) <= 300


def test_it_continues_plain_text(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    prompts = ("Pomona is", "The capital of Italy is")
    given = complete(model, tokenizer, [tokenizer.encode(prompt) for prompt in prompts])
    assert all(answer.finished for answer in given)
    assert given[0].text.startswith(" a server for language models")
    assert given[1].text.startswith(" Rome.")


def test_the_folder_holds_what_servers_expect() -> None:
    config = json.loads((DEMO / "config.json").read_text())
    generation = json.loads((DEMO / "generation_config.json").read_text())
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    assert config["model_type"] == "qwen3"
    assert config["eos_token_id"] == ids["<|im_end|>"]
    assert generation["eos_token_id"] == [ids["<|im_end|>"], ids["<|endoftext|>"]]
    assert (DEMO / "model.safetensors").stat().st_size <= 8_000_000
