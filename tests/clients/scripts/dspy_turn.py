import dspy
from turn import KEY, MODEL, URL, tell

model = dspy.LM(f"openai/{MODEL}", api_base=URL, api_key=KEY, cache=False)
dspy.configure(lm=model)
answer = dspy.Predict("question -> answer: str, year: int")(
    question='SAY {"answer": "In autumn.", "year": 2026}'
)
tell(answer.answer, structured={"year": answer.year})
