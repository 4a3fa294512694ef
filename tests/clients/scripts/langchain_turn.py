from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from turn import DIRECTIVE, KEY, MODEL, URL, read_file, tell


class City(BaseModel):
    """A city."""

    name: str
    inhabitants: int


model = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY)
agent = create_agent(model, tools=[read_file])
answer = agent.invoke({"messages": [{"role": "user", "content": DIRECTIVE}]})["messages"][-1]
city = model.with_structured_output(City).invoke("Which city is required?")
tell(answer.text if isinstance(answer.text, str) else answer.text(), structured=city.model_dump())
