import instructor
from openai import OpenAI
from pydantic import BaseModel
from turn import KEY, MODEL, URL, tell


class City(BaseModel):
    name: str
    inhabitants: int


client = instructor.from_openai(OpenAI(base_url=URL, api_key=KEY))
city = client.chat.completions.create(
    model=MODEL,
    response_model=City,
    messages=[{"role": "user", "content": "Which city is required?"}],
)
tell("", structured=city.model_dump())
