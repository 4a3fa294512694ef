from fruit import QUESTION, Basket, Fruit
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from turn import KEY, MODEL, URL

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key=KEY))
for output_type in (Fruit, [Fruit, Basket], NativeOutput(Fruit)):
    output = Agent(model, output_type=output_type).run_sync(QUESTION).output
    assert isinstance(output, Fruit | Basket)
