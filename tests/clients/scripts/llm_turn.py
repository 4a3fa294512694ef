import llm
from pydantic import BaseModel
from turn import DIRECTIVE, KEY, MODEL, read_file, tell


class City(BaseModel):
    name: str
    inhabitants: int


model = llm.get_model(MODEL)
answer = model.chain(DIRECTIVE, tools=[read_file], key=KEY).text()
city = model.prompt("Which city is required?", schema=City, key=KEY).text()
tell(answer, structured=City.model_validate_json(city).model_dump())
