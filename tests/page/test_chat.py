"""The chat, in a browser: what is sent, what is seen, and what is still there tomorrow."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.page.conftest import Open
from tests.support.clients.recipe import YOUR_HOST, YOUR_KEY, YOUR_MODEL, limits_of
from tests.support.documents import block
from tests.support.page.page_fleet import PageFleet

if TYPE_CHECKING:
    from playwright.sync_api import Route

ANSWER = ".message.assistant"


def test_an_answer_streams_and_tells_what_it_took(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    fleet.says("Hello **there**, you.\n\n- one\n- two\n")
    backend = fleet.engines[0].backend
    fleet.call(lambda: backend.hold(after_tokens=2))
    one.ask("Hi")
    one.page.locator(f"{ANSWER}.running strong", has_text="there").wait_for()
    assert one.page.locator(f"{ANSWER} li").count() == 0
    one.page.get_by_role("button", name="Stop").wait_for()
    fleet.call(backend.let_go)
    one.answered("two")
    one.shows(f"{ANSWER} li", ["one", "two"])
    [meta] = one.texts(".meta")
    assert re.search(r"100 prompt tokens.* · first token in .+ · \d+ tokens · .+ · mini-1$", meta)
    one.shows(".bubble", ["Hi"])
    one.page.get_by_role("button", name="Send").wait_for()


def test_a_message_sent_before_the_models_are_known_waits_for_them(
    opened: Open, fleet: PageFleet
) -> None:
    one = opened()
    held: list[Route] = []
    one.page.route("**/v1/models", lambda route: held.append(route))
    with one.page.expect_request("**/v1/models"):
        one.page.reload(wait_until="commit")
    one.ask("Are you there?")
    one.page.locator(f"{ANSWER}.running").wait_for()
    [route] = held
    route.continue_()
    one.answered("You said: Are you there?")
    one.shows(".bubble", ["Are you there?"])


def test_models_that_could_not_be_had_are_asked_for_again(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    broken = json.dumps({"error": {"message": "Not yet."}})
    one.page.route("**/v1/models", lambda route: route.fulfill(status=503, body=broken))
    one.page.reload()
    one.page.locator(".alert", has_text="Not yet.").wait_for()
    one.ask("Are you there?")
    one.answered("Not yet.")
    one.page.unroute("**/v1/models")
    one.page.get_by_role("button", name="Another answer").click()
    one.answered("You said: Are you there?")


def test_settings_and_the_conversation_so_far_are_sent(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    one.page.get_by_role("button", name="Settings").click()
    one.page.get_by_label("System prompt").fill("Be brief.")
    one.page.get_by_label("Temperature").fill("0.25")
    one.page.get_by_role("button", name="Done").click()
    one.ask("First")
    one.answered("You said: First")
    one.page.fill("#message", "Second")
    one.page.keyboard.press("Shift+Enter")
    one.page.keyboard.type("line")
    one.page.keyboard.press("Enter")
    one.answered("You said: Second")
    request = fleet.engines[0].backend.requests[-1]
    roles = [(one["role"], one["content"]) for one in request.prompt.messages]  # type: ignore[union-attr]
    assert roles == [
        ("system", "Be brief."),
        ("user", "First"),
        ("assistant", "You said: First"),
        ("user", "Second\nline"),
    ]
    assert request.sampling.temperature == 0.25


def test_an_answer_is_stopped_and_the_engine_with_it(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    backend = fleet.engines[0].backend
    fleet.says("one two three four")
    fleet.call(lambda: backend.hold(after_tokens=2))
    one.ask("Count")
    one.page.locator(ANSWER, has_text="one two").wait_for()
    one.page.get_by_role("button", name="Stop").click()
    one.page.locator(".meta", has_text="stopped").wait_for()
    fleet.do(backend.live.reaches(0))
    one.shows(f"{ANSWER} .prose", ["one two"])
    # By the keyboard, too.
    one.ask("Again")
    one.page.locator(ANSWER).nth(1).filter(has_text="one two").wait_for()
    one.page.keyboard.press("Escape")
    one.page.locator(".meta", has_text="stopped").nth(1).wait_for()
    fleet.do(backend.live.reaches(0))


def test_branches_by_another_answer_and_by_an_edit(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    one.ask("Apples")
    one.answered("You said: Apples")
    fleet.says("Another one.")
    one.page.get_by_role("button", name="Another answer").click()
    one.answered("Another one.")
    one.shows(".branches span", ["2/2"])
    one.page.get_by_role("button", name="Previous branch").click()
    one.answered("You said: Apples")
    fleet.reset()
    one.page.locator(".message.user").hover()
    one.page.get_by_role("button", name="Edit").click()
    field = one.page.get_by_label("Edit your message")
    field.fill("Pears")
    field.press("Enter")
    one.answered("You said: Pears")
    one.shows(".bubble", ["Pears"])
    one.page.get_by_role("button", name="Previous branch").click()
    # Of its answers the latest.
    one.answered("Another one.")
    one.shows(".bubble", ["Apples"])


def test_a_reload_keeps_what_was_said(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    one.ask("Remember me")
    one.answered("You said: Remember me")
    meta = one.texts(".meta")
    one.page.reload()
    one.shows(".meta", meta)
    one.page.get_by_role("button", name="New chat").click()
    one.ask("A second")
    one.answered("You said: A second")
    one.shows(".list .title", ["A second", "Remember me"])
    one.page.get_by_role("button", name="Remember me", exact=True).click()
    one.answered("You said: Remember me")
    one.page.get_by_role("button", name="Delete: Remember me").click()
    one.page.locator(".list .title", has_text="Remember me").wait_for(state="detached")
    one.shows(".list .title", ["A second"])
    # Nobody else's browser has any of it.
    opened().shows(".list .title", [])


def test_an_answer_that_was_under_way_at_a_reload_is_kept_as_far_as_it_came(
    opened: Open, fleet: PageFleet
) -> None:
    one = opened()
    backend = fleet.engines[0].backend
    fleet.says("half of it is here")
    fleet.call(lambda: backend.hold(after_tokens=3))
    one.ask("Go")
    one.page.locator(ANSWER, has_text="half of it").wait_for()
    kept = """async () => {
      const store = await import("/page/store.js");
      const [one] = await store.conversations(1);
      return (await store.messagesOf(one.id)).map(({ text }) => text);
    }"""
    while "half of it" not in one.page.evaluate(kept):
        one.page.wait_for_timeout(50)
    one.page.reload()
    one.page.locator(ANSWER, has_text="half of it").wait_for()
    one.page.locator(".meta", has_text="stopped").wait_for()
    fleet.call(backend.let_go)


def test_thoughts_are_folded_away(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    fleet.says("<think>\nHm, <b>what</b> now?\n</think>\n\nSo be it.")
    one.ask("Think")
    one.answered("So be it.")
    thinking = one.page.locator(".thinking")
    thinking.locator(".thought").wait_for(state="hidden")
    thinking.locator("summary").click()
    assert "Hm, <b>what</b> now?" in thinking.locator(".thought").inner_text()
    one.shows(f"{ANSWER} .prose", ["So be it."])


def test_calls_of_tools_are_shown_as_they_come(opened: Open) -> None:
    one = opened()
    one.page.evaluate(
        """async () => {
          const { MessageView } = await import("/page/message.js");
          const message = { id: "m", role: "assistant", text: "", isRunning: true, calls: [] };
          const view = new MessageView(message, ["m"], {});
          document.querySelector(".log").replaceChildren(view.element);
          message.calls.push({ name: "read", arguments: '{"path": ' });
          view.update();
          view.element.querySelector(".call").open = true;
          message.calls[0].arguments += '"<b>notes</b>"}';
          message.calls.push({ name: "<i>write</i>", arguments: "" });
          view.update();
        }"""
    )
    one.shows(".call summary", ["Calls read", "Calls <i>write</i>"])
    # Whoever has unfolded one goes on seeing it.
    assert one.page.locator(".call pre").first.inner_text() == '{"path": "<b>notes</b>"}'
    one.shows(".call[open] summary", ["Calls read"])


def test_what_the_server_refuses_is_told_beneath_the_message(
    opened: Open, fleet: PageFleet
) -> None:
    one = opened()
    one.page.evaluate("localStorage.setItem('pomona.settings', '{\"max_tokens\": -3}')")
    one.ask("Hi")
    one.page.locator(".note", has_text="max_tokens").wait_for()
    one.page.evaluate("localStorage.removeItem('pomona.settings')")
    one.page.get_by_role("button", name="Another answer").click()
    one.answered("You said: Hi")


def test_lines_to_copy_have_this_server_in_them(opened: Open, fleet: PageFleet) -> None:
    one = opened("connect", permissions=["clipboard-read", "clipboard-write"])
    one.page.locator(".recipe").last.wait_for()
    names = one.texts(".recipe h2")
    assert names == ["Claude Code", "Codex", "OpenCode", "curl", "Python"]
    limits = limits_of(fleet.engines[0].replica.max_model_len)
    expected = {
        "Claude Code": [limits["CONTEXT"], limits["OUTPUT"]],
        "Codex": [limits["CONTEXT"], limits["COMPACT"]],
        "OpenCode": [limits["CONTEXT"], limits["OUTPUT"]],
    }
    for name, recipe in zip(names, one.page.locator(".recipe pre").all(), strict=True):
        assert fleet.url in recipe.inner_text()
        assert set(expected.get(name, [])) <= set(re.findall(r"\d+", recipe.inner_text()))
        one.page.get_by_role("button", name=f"Copy for {name}").click()
        one.page.locator("#said", has_text="Copied").wait_for(state="attached")
    copied = one.page.evaluate("navigator.clipboard.readText()")
    assert copied == one.page.locator(".recipe pre").last.inner_text()


def test_lines_to_copy_are_those_of_the_documents(opened: Open) -> None:
    """Which clients are started by, in tests of their own."""
    one = opened("connect")
    told = one.page.evaluate(
        """async (given) => {
          const { recipes } = await import("/page/connect.js");
          return Object.fromEntries(recipes(...given).map(({ name, text }) => [name, text]));
        }""",
        [YOUR_HOST, YOUR_MODEL, YOUR_KEY, 100_000],
    )
    for name in ("Claude Code", "Codex", "OpenCode"):
        documented = block(name.lower().replace(" ", "-"))
        for limit, value in limits_of(100_000).items():
            documented = documented.replace(f"YOUR_{limit}", value)
        assert told[name] == documented.rstrip("\n")
