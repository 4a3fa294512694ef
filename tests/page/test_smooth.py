"""Long conversations and long answers: no more is built than is seen or has changed."""

from __future__ import annotations

import pytest

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


def test_of_ten_thousand_messages_those_are_built_that_are_near(opened: Open) -> None:
    one = opened()
    one.page.evaluate(FILL, NUM_MESSAGES)
    one.page.reload()
    messages = one.page.locator(".message")
    messages.last.filter(has_text=f"Message {NUM_MESSAGES - 1} of many.").wait_for()
    assert messages.count() <= 60
    for _ in range(2):
        before = messages.count()
        one.page.locator(".log").evaluate("log => (log.scrollTop = 0)")
        one.page.wait_for_function(f"document.querySelectorAll('.message').length > {before}")
    assert messages.count() <= 150
    one.ask("One more")
    # That is more than a request may have.
    one.page.locator(".note", has_text="messages").wait_for()
    assert messages.count() <= 60


@pytest.mark.parametrize("kind", ["paragraphs", "code"])
def test_of_a_long_answer_only_its_end_is_built_again(
    opened: Open, fleet: PageFleet, kind: str
) -> None:
    one = opened()
    lines = 1200
    if kind == "code":
        text = "```python\n" + "def f(a, b): return 'c' # d\n" * lines + "```\n\nThe end."
    else:
        text = "Some **words** of `a` paragraph.\n\n" * lines + "The end."
    num_built = one.page.evaluate(
        """async ([text, size]) => {
          const { MarkdownStream } = await import("/page/markdown.js");
          const box = document.createElement("div");
          document.body.append(box);
          let built = 0;
          const watching = new MutationObserver((changes) => {
            for (const change of changes) built += change.addedNodes.length;
          });
          watching.observe(box, { childList: true, subtree: true });
          const stream = new MarkdownStream(box);
          for (let at = 0; at < text.length; at += size) {
            stream.append(text.slice(at, at + size));
            await null;
          }
          await null;
          return [built, box.textContent.includes("The end.")];
        }""",
        [text, 4],
    )
    built, is_whole = num_built
    assert is_whole
    # Some for each line, and for each piece the end that has changed: not all of it each time.
    assert built < 40 * lines
