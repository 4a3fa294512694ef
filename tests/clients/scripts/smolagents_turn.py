from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from turn import DIRECTIVE, KEY, MODEL, URL, read_file, tell

model = OpenAIServerModel(model_id=MODEL, api_base=URL, api_key=KEY)
agent = ToolCallingAgent(tools=[tool(read_file)], model=model, verbosity_level=0)
tell(str(agent.run(f"{DIRECTIVE}\nCALL final_answer answer=read")))
