from fruit import QUESTION, pick, weigh
from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from turn import KEY, MODEL, URL

model = OpenAIServerModel(model_id=MODEL, api_base=URL, api_key=KEY)
agent = ToolCallingAgent(
    tools=[tool(pick), tool(weigh)], model=model, verbosity_level=0, max_steps=2
)
# It refuses arguments that its schemas allow, those that it does not know, and tries again.
agent.run(QUESTION)
