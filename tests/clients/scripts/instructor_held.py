import instructor
from fruit import QUESTION, Basket, Fruit
from openai import OpenAI
from turn import KEY, MODEL, URL

messages = [{"role": "user", "content": QUESTION}]
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(OpenAI(base_url=URL, api_key=KEY), mode=mode)
    for model in (Fruit, Basket):
        found = client.chat.completions.create(
            model=MODEL, response_model=model, messages=messages, max_retries=0
        )
        assert isinstance(found, model)
