"""What an answer shows beside its text: its prompt, its code, what it took, the tools it calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.page.conftest import Open
from tests.support.page.page_fleet import PageFleet

if TYPE_CHECKING:
    from playwright.sync_api import Route

ANSWER = ".message.assistant"
DRAWN = """bar => new DOMMatrix(getComputedStyle(bar, "::before").transform).a"""
"""The part of its width that the bar has."""
CLOCK = """(() => {
  let now = 0;
  performance.now = () => now;
  window.pass = (milliseconds) => (now += milliseconds);
})()"""
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


def test_the_prompt_of_an_answer_is_a_bar_until_its_first_token(
    opened: Open, fleet: PageFleet
) -> None:
    one = opened()
    backend = fleet.engines[0].backend
    fleet.says("one two three four")
    fleet.call(lambda: backend.hold_prompt(after_tokens=70))
    fleet.call(lambda: backend.hold(after_tokens=2))
    bar = one.page.locator(".prefill")
    bar.wait_for(state="hidden")
    one.ask("A long one")
    bar.wait_for(state="visible")
    one.page.wait_for_function(f"({DRAWN})(document.querySelector('.prefill')) === 0.7")
    assert one.page.locator(f"{ANSWER}.running .prose").inner_text() == ""
    # Its last part is told of by nobody, and the bar is gone all the same.
    fleet.call(backend.let_prompt_go)
    one.page.locator(f"{ANSWER}.running", has_text="one two").wait_for()
    bar.wait_for(state="hidden")
    assert one.page.locator(f"{ANSWER}.running").count() == 1
    fleet.call(backend.let_go)
    one.answered("one two three four")


def test_what_an_answer_took_with_its_cached_tokens_and_its_speed(
    opened: Open, fleet: PageFleet
) -> None:
    one = opened()
    one.page.add_init_script(CLOCK)
    one.page.reload()
    backend = fleet.engines[0].backend
    one.ask("Warm the cache")
    one.answered("You said: Warm the cache")
    fleet.says("one two three four five six")
    fleet.call(lambda: backend.hold_prompt(after_tokens=70))
    fleet.call(lambda: backend.hold(after_tokens=2))
    one.ask("Count")
    one.page.locator(".prefill").wait_for(state="visible")
    one.page.evaluate("pass(500)")
    fleet.call(backend.let_prompt_go)
    one.page.locator(f"{ANSWER}.running", has_text="one two").wait_for()
    one.page.evaluate("pass(2000)")
    fleet.call(backend.let_go)
    one.answered("six")
    assert one.texts(".meta")[-1].split(" · ") == [
        "100 prompt tokens (64 cached)",
        "first token in 500 ms",
        "6 tokens",
        "2.5 tokens/s",
        "mini-1",
    ]


CODE = {
    "python": (
        'def greet(name):  # says "hello"\n    return "hello, " + name * 2\n',
        {
            "k": ["def", "return"],
            "f": ["greet"],
            "s": ['"hello, "'],
            "n": ["2"],
            "c": ['# says "hello"'],
        },
    ),
    "js": (
        "const a = `of\ntwo lines`; // return\nfunction f() {}\n",
        {"k": ["const", "function"], "f": ["f"], "s": ["`of", "two lines`"], "c": ["// return"]},
    ),
    "json": ('{"a": [true, 12]}\n', {"k": ["true"], "s": ['"a"'], "n": ["12"]}),
    "diff": (
        "@@ -1 +1 @@\n-was <b>\n+is\n same\n",
        {"c": ["@@ -1 +1 @@"], "d": ["-was <b>"], "s": ["+is"]},
    ),
    "text": ('def return "nothing of it"\n', {}),
}


def test_code_is_coloured_and_stays_what_it_was(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    colour = "one => getComputedStyle(one).color"
    for language, (code, marks) in CODE.items():
        fleet.says(f"Here:\n\n```{language}\n{code}```\n\nThat was {language}.")
        one.ask("Code, please")
        one.answered(f"That was {language}.")
        block = one.page.locator(ANSWER).last.locator("pre code")
        assert block.text_content() == code
        for kind in "ksncfd":
            marked = block.locator(f".hl-{kind}")
            assert marked.all_text_contents() == marks.get(kind, [])
            if kind in marks:
                assert marked.first.evaluate(colour) != block.evaluate(colour)


def test_a_call_of_a_tool_is_shown_and_kept(opened: Open, fleet: PageFleet) -> None:
    one = opened()

    def with_tools(route: Route) -> None:
        route.continue_(post_data={**route.request.post_data_json, "tools": [TOOL]})

    one.page.route("**/v1/chat/completions", with_tools)
    arguments = {"path": "<b>notes</b>.txt"}
    call = json.dumps({"name": "read_file", "arguments": arguments})
    fleet.says(f"Let me look.\n<tool_call>\n{call}\n</tool_call>")
    one.ask("What do my notes say?")
    one.answered("Let me look.")
    assert fleet.engines[0].backend.requests[-1].prompt.tools  # type: ignore[union-attr]
    for _ in range(2):
        one.shows(f"{ANSWER} .call summary", ["Calls read_file"])
        one.shows(f"{ANSWER} .prose", ["Let me look."])
        one.page.locator(".call summary").click()
        told = one.page.locator(".call pre").inner_text()
        assert json.loads(told) == arguments
        one.page.reload()
