"""Long conversations and long answers: no more is built than is seen or has changed."""

from __future__ import annotations

from tests.page.conftest import Open
from tests.support.page.page_fleet import PageFleet

NUM_MESSAGES = 10_000
FILL = """async (count) => {
  const store = await import("/page/store.js");
  await store.conversations(1);
  const database = await new Promise((resolve) => {
    const asked = indexedDB.open("pomona");
    asked.onsuccess = () => resolve(asked.result);
  });
  const writing = database.transaction(["conversations", "messages"], "readwrite");
  const about = { id: "long", title: "Long", at: 1, leaf: `m${count - 1}` };
  writing.objectStore("conversations").put(about);
  for (let at = 0; at < count; at += 1) {
    writing.objectStore("messages").put({
      id: `m${at}`, conversation: "long", parent: at ? `m${at - 1}` : null, at,
      role: at % 2 ? "assistant" : "user", text: `Message **${at}** of many.`,
    });
  }
  await new Promise((resolve) => (writing.oncomplete = resolve));
  localStorage.setItem("pomona.settings", JSON.stringify({ conversation: "long" }));
}"""

SCROLL = """async (log, edge) => {
  log.scrollTop = edge === "top" ? 0 : log.scrollHeight;
  // Then whoever listens has heard of it.
  for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
}"""
IDS = "() => Array.from(document.querySelectorAll('.message'), (one) => one.dataset.id)"


def test_of_ten_thousand_messages_those_are_built_that_are_near(opened: Open) -> None:
    one = opened()
    one.page.evaluate(FILL, NUM_MESSAGES)
    one.page.reload()
    messages = one.page.locator(".message")
    messages.last.filter(has_text=f"Message {NUM_MESSAGES - 1} of many.").wait_for()
    # As many go at one end as come at the other, both ways.
    for edge, times in (("0", 8), ("log.scrollHeight", 6)):
        for _ in range(times):
            seen = one.page.evaluate(IDS)
            one.page.locator(".log").evaluate(f"log => (log.scrollTop = {edge})")
            one.page.wait_for_function(f"seen => ({IDS})().join() !== seen.join()", arg=seen)
            assert messages.count() <= 90
    messages.last.filter(has_text=f"Message {NUM_MESSAGES - 1} of many.").wait_for()
    assert one.page.locator("*").count() < 2500
    one.ask("One more")
    # That is more than a request may have.
    one.page.locator(".note", has_text="messages").wait_for()
    assert messages.count() <= 60


def test_an_answer_goes_on_while_one_reads_what_was_said_before(
    opened: Open, fleet: PageFleet
) -> None:
    one = opened()
    one.page.evaluate(FILL, 200)
    one.page.reload()
    messages = one.page.locator(".message")
    messages.last.filter(has_text="Message 199 of many.").wait_for()
    backend = fleet.engines[0].backend
    fleet.says("one two three four")
    fleet.call(lambda: backend.hold(after_tokens=2))
    one.ask("Count")
    answer = one.page.locator(".assistant", has_text="one two")
    answer.wait_for()
    while answer.count():
        one.page.locator(".log").evaluate(SCROLL, "top")
    first = one.page.evaluate(IDS)[0]
    fleet.call(backend.let_go)
    one.page.get_by_role("button", name="Send").wait_for()
    assert one.page.evaluate(IDS)[0] == first
    while not answer.count():
        one.page.locator(".log").evaluate(SCROLL, "bottom")
    answer.filter(has_text="one two three four").wait_for()


WORK = """async ([text, size]) => {
  const { MarkdownStream } = await import("/page/markdown.js");
  const { TextStream } = await import("/page/text.js");
  const box = document.createElement("div");
  const stream = new (text.startsWith("thought") ? TextStream : MarkdownStream)(box);
  const changed = [];
  const watching = new MutationObserver((changes) => {
    let nodes = 0;
    for (const { type, addedNodes, target } of changes) {
      nodes += type === "childList" ? addedNodes.length : target.length / 80;
    }
    changed.push(nodes);
  });
  watching.observe(box, { childList: true, subtree: true, characterData: true });
  for (let at = 0; at < text.length; at += size) {
    stream.append(text.slice(at, at + size));
    await null;
  }
  await null;
  // What the browser lays out again: the text beside what was added last, in the same block.
  const last = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  while (last.nextNode()) continue;
  const held = last.currentNode.parentElement.closest(".part, li, td, p, .thought > *, div");
  return { changed, held: stream.tail?.length ?? 0, beside: held.textContent.length };
}"""
LONG = {
    "paragraphs": "Some **words** of `a` paragraph.\n\n",
    "one paragraph": "Some **words** of `a` paragraph. ",
    "lines": "Some **words** of `a` line.\n",
    "code": "def f(a, b): return 'c' # d\n",
    "list": "- an *item* of a list\n",
    "loose list": "1. an *item*\n\n   of a list\n\n",
    "table": "| `a` | b |\n",
    "quote": "> what was *said*\n>\n",
    "thoughts": "thoughts of a model\n",
}
BEGIN = {"code": "```python\n", "table": "| a | b |\n|---|---|\n"}


def test_what_a_piece_of_an_answer_costs_does_not_grow_with_it(opened: Open) -> None:
    one = opened()
    for kind, repeated in LONG.items():
        text = BEGIN.get(kind, "") + repeated * (12_000 // len(repeated))
        told = one.page.evaluate(WORK, [text, 24])
        pieces = told["changed"]
        early, late = pieces[len(pieces) // 8 : len(pieces) // 4], pieces[-len(pieces) // 8 :]
        assert max(late) <= 1.5 * max(early), kind
        assert sum(late) <= 1.5 * sum(early), kind
        # It is read again from where it may still change, and no more.
        assert told["held"] < 6_000, kind
        assert told["beside"] < 6_000, kind
