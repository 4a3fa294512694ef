from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from turn import DIRECTIVE, KEY, MODEL, URL, read_file, tell

set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=URL, api_key=KEY))
agent = Agent(
    "reader", instructions="You read files.", model=MODEL, tools=[function_tool(read_file)]
)
tell(Runner.run_sync(agent, DIRECTIVE).final_output)
