"""Whatever a model writes is text: nothing of it runs, loads, leads elsewhere or stands still."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.page.conftest import Open
from tests.support.page.browser import Watched
from tests.support.page.hostile import HEAVY, HIT, HOSTILE
from tests.support.page.page_fleet import PageFleet

# fmt: off
TAGS = frozenset((
    "a", "blockquote", "br", "button", "code", "del", "div", "em", "figcaption", "figure", "h3",
    "h4", "h5", "h6", "hr", "li", "ol", "p", "path", "pre", "span", "strong", "svg", "table",
    "tbody", "td", "th", "thead", "tr", "ul",
))
ATTRIBUTES = frozenset((
    "aria-hidden", "aria-label", "class", "d", "height", "href", "rel", "role", "start", "tabindex",
    "target", "title", "type", "viewBox", "width",
))
# fmt: on
FOREIGN = "script, iframe, object, embed, style, link, form form"
MIXED = """# One

two *three* **four**
five

- a
- b

  c

1. x
   - y

> q
> r

---
end

```python
'''a
b''' # c
```
then
~~~
d
~~~
a | b
- | -
1 | 2

| a | b |
|:-:|--:|
| `1` | ~~2~~ |

$$
a_1 * b_2 * c
$$

Costs $5 and $6. \\(x_1\\) https://a.example/b_c_d).
"""
RENDER = """async ([texts, size]) => {
  const { MarkdownStream } = await import("/page/markdown.js");
  return texts.map((text) => {
    const box = document.createElement("div");
    document.body.append(box);
    const stream = new MarkdownStream(box);
    for (let at = 0; at < text.length; at += size) stream.append(text.slice(at, at + size));
    // The layout of what is heavy is the browser's.
    if (text.length > 3000) box.remove();
    return {
      text: box.textContent,
      nodes: [...box.querySelectorAll("*")].map((one) => [
        one.localName, one.getAttributeNames(), one.getAttribute("href"), one.getAttribute("rel"),
      ]),
      html: box.innerHTML,
    };
  });
}"""


LONG = [
    "```python\n" + "def f(a): return 'b' # c\n" * 80 + "```\nthen",
    "~~~\n" + "'''a\n" * 70,
    "".join(f"- item *{n}*\n" + "\n  more\n" * (n % 3) for n in range(120)) + "\nthen",
    "".join(f"{n}. item\n" + "\n" * (n % 2) for n in range(3, 130)) + "- - -\n",
    "- all:\n" + "  - one of **them**\n" * 40 + "\n  ```\n  a\n\n  b\n  ```\n- end",
    "| a | b |\n|--:|---|\n" + "| `1` | *x* |\n" * 70 + "then | there\n\nand\n",
    "> said\n" + "> # by *whom*\n> - a\n> - b\n>\n> ```\n> c\n> ```\nlazy\n" * 12 + "\nend",
    "> a | b\nc | d\n--- | ---\n1 | 2\n" * 8,
    "some **words** of `a` paragraph " * 400,
    "word" * 3000 + " **end** " + "more " * 900,
    "a line of a paragraph\n" * 500,
]
"""Blocks of which the most is done before they end."""


def rendered(one: Watched, texts: list[str], size: int = 1 << 30) -> list[dict[str, Any]]:
    """``size``: characters that come at a time."""
    told: list[dict[str, Any]] = one.page.evaluate(RENDER, [texts, size])
    return told


def check_inert(told: dict[str, Any]) -> None:
    for tag, attributes, href, rel in told["nodes"]:
        assert tag in TAGS, told
        assert ATTRIBUTES.issuperset(attributes), told
        if href is not None:
            assert re.match(r"https?://|mailto:", href), told
            assert rel == "noopener noreferrer"


def is_hit(one: Watched) -> bool:
    return bool(one.page.evaluate("window.hit !== undefined"))


def test_the_set_is_large() -> None:
    assert len(set(HOSTILE)) >= 60


def test_each_is_inert_whole_and_in_pieces(opened: Open) -> None:
    one = opened()
    for size in (1 << 30, 7, 1):
        for hostile, told in zip(HOSTILE, rendered(one, list(HOSTILE), size), strict=True):
            check_inert(told)
            if "example.org" not in hostile:
                # Nothing was taken for markup, so what it says is there to be read.
                assert HIT not in hostile or HIT in told["text"]
    one.page.wait_for_load_state("networkidle")
    assert not is_hit(one)


SHORT = [*HOSTILE, MIXED]
SLOW = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("texts", "size"),
    [
        pytest.param(SHORT, 1, id="short-1"),
        pytest.param([*SHORT, *LONG], 64, id="long-64"),
        pytest.param(LONG, 5, id="long-5", marks=SLOW),
        pytest.param(LONG, 1, id="long-1", marks=SLOW),
    ],
)
def test_pieces_come_to_the_same_as_the_whole(opened: Open, texts: list[str], size: int) -> None:
    one = opened()
    for whole, pieces in zip(rendered(one, texts), rendered(one, texts, size), strict=True):
        assert pieces["html"] == whole["html"]


def test_an_answer_a_question_and_a_title_are_inert(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    fleet.says("\n\n".join(f"{hostile}\n\n```\n```" for hostile in HOSTILE) + "\n\nThe end.")
    one.ask("".join(HOSTILE[:20]))
    one.answered("The end.")
    one.page.wait_for_load_state("networkidle")
    assert not is_hit(one)
    # What is out of sight has no inner text.
    assert one.page.locator(".bubble").text_content() == "".join(HOSTILE[:20])
    assert one.page.locator(f"main :is({FOREIGN})").count() == 0

    title = one.page.locator(".list .title").text_content()
    assert title == HOSTILE[0] + HOSTILE[1] + HOSTILE[2][: 80 - len(HOSTILE[0] + HOSTILE[1])]


def test_what_is_heavy_is_read_in_no_time_that_grows_with_its_square(opened: Open) -> None:
    one = opened()
    for name, text in HEAVY.items():
        # A page that reads it in square time takes minutes for the lot.
        [told] = rendered(one, [text])
        assert told["text"], name
        assert len(told["nodes"]) < 40_000, name


def test_the_policy_refuses_what_gets_in_all_the_same(opened: Open) -> None:
    """As if the page had a hole."""
    one = opened()
    broken = one.page.evaluate(
        """async () => {
          const told = [];
          document.addEventListener(
            "securitypolicyviolation", (event) => told.push(event.effectiveDirective)
          );
          const script = document.createElement("script");
          const attempts = {
            markup: () => { document.createElement("div").innerHTML = "<b>x</b>"; },
            inline: () => { script.text = "window.hit = 1"; document.body.append(script); },
            program: () => setTimeout("window.hit = 1"),
          };
          const refused = [];
          for (const [name, attempt] of Object.entries(attempts)) {
            try { attempt(); } catch (error) { refused.push(name); }
          }
          const image = new Image();
          const failed = new Promise((resolve) => (image.onerror = resolve));
          image.src = "https://evil.example/x.png";
          await failed;
          refused.push(await fetch("https://evil.example/").then(() => "fetched", () => "fetch"));
          // It is told of a moment later.
          while (!told.includes("connect-src")) await new Promise(requestAnimationFrame);
          return [refused, told.sort()];
        }"""
    )
    refused, told = broken
    assert refused == ["markup", "inline", "program", "fetch"]
    assert {"img-src", "connect-src", "require-trusted-types-for"} <= set(told)
    assert not is_hit(one)
    # The attempts themselves are told of; nothing was asked for.
    one.faults.clear()
    one.requests[:] = [url for url in one.requests if url.startswith(one.url)]


def test_markdown_becomes_what_it_means(opened: Open) -> None:
    cases = {
        "**a** _b_ ~~c~~ `d`": "<p><strong>a</strong> <em>b</em> <del>c</del> <code>d</code></p>",
        "snake_case_name 2*3*4": "<p>snake_case_name 2<em>3</em>4</p>",
        "***both***": None,
        "# T #": "<h3>T</h3>",
        "a\nb  \nc": "<p>a\nb<br>c</p>",
        "- [x] done\n- [ ] not": "<ul><li>☑ done</li><li>☐ not</li></ul>",
        "3. c\n4. d": '<ol start="3"><li>c</li><li>d</li></ol>',
        "- a\n  - b\n- c": "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>",
        "> a\n> b": "<blockquote><p>a\nb</p></blockquote>",
        "$a_1 * b_2 * c$": '<p><span class="math">$a_1 * b_2 * c$</span></p>',
        "It is $5, not $6.": "<p>It is $5, not $6.</p>",
        "\\*not\\* \\<b>": "<p>*not* &lt;b&gt;</p>",
        "[a](https://b.example/c_(d)) (https://e.example).": (
            '<p><a href="https://b.example/c_(d)" target="_blank" rel="noopener noreferrer">a</a> '
            '(<a href="https://e.example" target="_blank" rel="noopener noreferrer">'
            "https://e.example</a>).</p>"
        ),
        "a | b\n--- | ---\n1 | x \\| y": None,
    }
    one = opened()
    for (text, expected), told in zip(cases.items(), rendered(one, list(cases)), strict=True):
        if expected is not None:
            assert told["html"] == expected, text
    assert [told["text"] for told in rendered(one, ["***both***"])] == ["both"]
    [table] = rendered(one, ["a | b\n--- | ---\n1 | x \\| y"])
    assert table["text"] == "ab1x | y"
