from typing import Literal

import dspy
from fruit import QUESTION, Fruit
from turn import KEY, MODEL, URL


class Tell(dspy.Signature):
    """Tell of a fruit."""

    question: str = dspy.InputField()
    kind: Literal["apple", "pear"] = dspy.OutputField()
    fruit: Fruit = dspy.OutputField()


dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=URL, api_key=KEY, cache=False))
told = dspy.Predict(Tell)(question=QUESTION)
assert isinstance(told.fruit, Fruit)
