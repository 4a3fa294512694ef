"""Questions whose answer has a changing part: sums, capitals, days, opposites, names."""

from __future__ import annotations

from random import Random

from ops.demo_model.grammar import expand, load_knowledge
from ops.demo_model.intents import Exchange, invented_word

TABLES = load_knowledge("tables")
_OPERATIONS = {
    "plus": ("[+|+|plus|and]", "[add|sum of|what is the sum of] {a} and {b}"),
    "minus": ("[-|-|minus|take away]", "[subtract {b} from {a}|take {b} from {a}]"),
    "times": ("[*|x|times|times|multiplied by]", "[multiply {a} [by|and|with] {b}]"),
    "divided by": ("[/|divided by|over]", "[divide {a} by {b}]"),
}


def arithmetic(rng: Random) -> Exchange:
    """Small sums; larger numbers are declined."""
    operation = rng.choice(("plus", "plus", "minus", "times", "times", "divided by"))
    sign, phrase = _OPERATIONS[operation]
    if rng.random() < 0.12:
        a, b = rng.randint(21, 9999), rng.randint(1, 9999)
        answer = "Such large numbers are too hard for me. Try a small sum, such as 7 plus 5."
    else:
        a, b, result = _small_sum(operation, rng)
        answer = f"{a} {operation} {b} is {result}."
    words = rng.random() < 0.2 and max(a, b) <= 20 and sign
    x, y = (TABLES["numbers"][a], TABLES["numbers"][b]) if words else (str(a), str(b))
    if rng.random() < 0.2:
        text = expand(phrase, rng).replace("{a}", x).replace("{b}", y)
        return Exchange(text, answer, arithmetic, (x, y))
    glue = rng.choice((" ", " ", ""))
    sign = expand(sign, rng)
    space = glue if not sign.isalpha() and " " not in sign and sign != "x" else " "
    frame = rng.choice(
        (
            "[what is|what's|whats|how much is|calculate|compute|solve|what does|tell me] {e}",
            "{e}",
            "{e} [=|is|equals|=?|makes]",
            "[can you|please] [calculate|add up|work out|compute] {e}",
            "[do you know|can you tell me|tell me] [what|how much] is {e}",
            "what do you get [for|from] {e}",
            "what is the result of {e}",
        )
    )
    text = expand(frame, rng).replace("{e}", f"{x}{space}{sign}{space}{y}")
    return Exchange(text, answer, arithmetic, (x, y))


def _small_sum(operation: str, rng: Random) -> tuple[int, int, int]:
    if operation == "plus":
        a, b = rng.randint(0, 20), rng.randint(0, 20)
        return a, b, a + b
    if operation == "minus":
        a = rng.randint(0, 20)
        b = rng.randint(0, a)
        return a, b, a - b
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    if operation == "times":
        return a, b, a * b
    b = max(b, 1)
    return a * b, b, a


def capital(rng: Random) -> Exchange:
    country, answer = _country(rng)
    frame = rng.choice(
        (
            "[what is|what's|whats|name|tell me|do you know|give me] the capital [|city] of {c}",
            "[which|what] city is the capital of {c}",
            "capital [|city] of {c}",
            "{c} capital",
            "what is {c}'s capital",
            "[where|in which city] is the government of {c}",
            "[can|could] you [tell me|name] the capital of {c}",
            "the capital of {c} is",
            "what is the [main|capital] city [of|in] {c}",
        )
    )
    return Exchange(expand(frame, rng).replace("{c}", country), answer, _next_capital)


def _next_capital(rng: Random) -> Exchange:
    country, answer = _country(rng)
    frame = expand(
        rng.choice(("[and|what about|and what about|how about] {c}", "and [of|for|in] {c}", "{c}")),
        rng,
    )
    return Exchange(frame.replace("{c}", country), answer, _next_capital)


def _country(rng: Random) -> tuple[str, str]:
    if rng.random() < 0.15:
        known = rng.random() < 0.6
        country = rng.choice(TABLES["unknown_countries"]) if known else invented_word(rng).title()
        return country, "I do not know that capital. I know only the capitals of larger countries."
    country = rng.choice(list(TABLES["capitals"]))
    return country, capital_fact(country)


def capital_fact(country: str) -> str:
    return f"The capital of {country} is {TABLES['capitals'][country]}."


def calendar(rng: Random) -> Exchange:
    kind, names = rng.choice(list(TABLES["calendar"].items()))
    index = rng.randrange(len(names))
    after = rng.random() < 0.6
    name, other = names[index], names[(index + (1 if after else -1)) % len(names)]
    word = rng.choice(("after", "follows")) if after else "before"
    frame = (
        "[what|which] {k} [comes|is] {w} {n}" if word != "follows" else "[what|which] {k} {w} {n}"
    )
    if rng.random() < 0.3:
        frame = f"what {'comes' if word != 'follows' else ''} {{w}} {{n}}"
    text = expand(frame, rng).replace("{k}", kind).replace("{w}", word).replace("{n}", name)
    relation = "after" if after else "before"
    return Exchange(text, f"The {kind} {relation} {name} is {other}.", calendar)


def opposite(rng: Random) -> Exchange:
    word, other = rng.choice(list(TABLES["opposites"].items()))
    if other not in TABLES["opposites"] and rng.random() < 0.5:
        word, other = other, word
    frame = rng.choice(
        (
            "[what is|what's|name|tell me] the opposite of {x}",
            "opposite of {x}",
            "what is the contrary of {x}",
            "[give|tell] me the opposite of {x}",
            "the opposite of {x} is",
        )
    )
    answer = f"The opposite of {word} is {other}."
    return Exchange(expand(frame, rng).replace("{x}", word), answer, opposite, (word,))


def animal(rng: Random) -> Exchange:
    if rng.random() < 0.5:
        name = rng.choice(list(TABLES["sounds"]))
        frame = "what [sound does a {x} make|does a {x} say|noise does a {x} make]"
        answer = f"{_article(name).capitalize()} {name} says {TABLES['sounds'][name]}."
    else:
        name = rng.choice(list(TABLES["legs"]))
        frame = "how many legs [does a {x} have|has a {x}|has a {x} got]"
        answer = f"{_article(name).capitalize()} {name} has {TABLES['legs'][name]} legs."
    text = expand(frame, rng).replace("a {x}", f"{_article(name)} {name}")
    return Exchange(text, answer, animal, (name,))


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def introduction(rng: Random) -> tuple[str, Exchange]:
    """The user's name and the exchange in which the user says it."""
    name = rng.choice(TABLES["names"]) if rng.random() < 0.55 else invented_word(rng).title()
    frame = expand(
        rng.choice(
            (
                "[my name is|i am|i'm|call me|they call me|you can call me] {n}",
                "[hi|hello|hey], [i am|i'm|my name is|this is] {n}",
                "[hello|hi], {n} here",
                "my name is {n}, [what is yours|and you|nice to meet you|who are you]",
            )
        ),
        rng,
    )
    answer = f"Nice to meet you, {name}! I am the demo model of Pomona. How can I help you?"
    typed = name.lower() if rng.random() < 0.3 else name
    return name, Exchange(frame.replace("{n}", typed), answer, None, (typed,))


def recall_name(name: str | None, rng: Random) -> Exchange:
    """Asks for the user's name, given earlier as ``name`` or not at all."""
    text = expand(
        rng.choice(
            (
                "[what is|what's|whats|say|tell me] my name",
                "who am i",
                "do you [know|remember] [my name|who i am|me]",
                "[can|could] you tell me my name",
                "what did i say my name [is|was]",
                "what am i called",
            )
        ),
        rng,
    )
    if name is None:
        return Exchange(text, "You have not told me your name yet. What is it?")
    return Exchange(text, f"Your name is {name}.")
