"""Stories, poems and jokes: the longer answers."""

from __future__ import annotations

from random import Random

from ops.demo_model.grammar import expand, load_knowledge
from ops.demo_model.intents import Exchange, noun_phrase, unknown_topic
from ops.demo_model.skills import TABLES

WRITING = load_knowledge("writing")
_HERO = "Ella"


def story(rng: Random) -> Exchange:
    draw = rng.random()
    if draw < 0.25:
        return Exchange(expand(rng.choice(WRITING["story_ask"]), rng), WRITING["story_default"])
    if draw < 0.55:
        return _about("story", rng.choice(WRITING["story_sea_names"]), WRITING["story_sea"], rng)
    if draw < 0.7:
        topic = rng.choice(WRITING["story_robot_names"])
        return _about("story", topic, WRITING["story_robot"], rng)
    topic = _topic(rng)
    text = WRITING["story_any"].replace("{name}", _HERO).replace("{x}", topic)
    return _about("story", topic, text, rng)


def poem(rng: Random) -> Exchange:
    draw = rng.random()
    if draw < 0.3:
        return Exchange(expand(rng.choice(WRITING["poem_ask"]), rng), WRITING["poem_default"])
    if draw < 0.5:
        return _about("poem", rng.choice(WRITING["story_sea_names"]), WRITING["poem_sea"], rng)
    if draw < 0.65:
        topic = rng.choice(WRITING["poem_pomona_names"])
        return _about("poem", topic, WRITING["poem_pomona"], rng)
    topic = _topic(rng)
    return _about("poem", topic, WRITING["poem_any"].replace("{x}", topic), rng)


def joke(rng: Random) -> Exchange:
    """Mostly the first joke, so that asking for another one walks through the list."""
    index = 0 if rng.random() < 0.7 else rng.randrange(len(WRITING["jokes"]))
    return _joke(index, rng.choice(WRITING["joke_ask"]), rng)


def _joke(index: int, pattern: str, rng: Random) -> Exchange:
    following = (index + 1) % len(WRITING["jokes"])

    def another(rng: Random) -> Exchange:
        return _joke(following, rng.choice(WRITING["joke_next_ask"] + WRITING["joke_ask"]), rng)

    return Exchange(expand(pattern, rng), WRITING["jokes"][index], another)


def _topic(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.5:
        return str(rng.choice(TABLES["subjects"]))
    return unknown_topic(rng) if draw < 0.75 else noun_phrase(rng)


def _about(kind: str, topic: str, text: str, rng: Random) -> Exchange:
    pattern = expand(rng.choice(WRITING[f"{kind}_about_ask"]), rng)
    return Exchange(pattern.replace("{x}", topic), text, None, (topic,))
