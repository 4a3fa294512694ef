from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from turn import DIRECTIVE, KEY, MODEL, URL, read_file, tell


class City(BaseModel):
    name: str
    inhabitants: int


model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key=KEY))
answer = Agent(model, tools=[read_file]).run_sync(DIRECTIVE).output
city = Agent(model, output_type=City).run_sync("Which city is required?").output
tell(answer, structured=city.model_dump())
