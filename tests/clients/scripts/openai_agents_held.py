from agents import (
    Agent,
    ModelSettings,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from fruit import QUESTION, Fruit, pick, weigh
from openai import AsyncOpenAI
from turn import KEY, MODEL, URL

set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=URL, api_key=KEY))
teller = Agent("teller", instructions="You know fruits.", model=MODEL, output_type=Fruit)
assert isinstance(Runner.run_sync(teller, QUESTION).final_output, Fruit)
for choice in ("required", "pick"):
    picker = Agent(
        "picker",
        instructions="You pick fruits.",
        model=MODEL,
        tools=[function_tool(pick), function_tool(weigh)],
        model_settings=ModelSettings(tool_choice=choice),
        tool_use_behavior="stop_on_first_tool",
    )
    assert Runner.run_sync(picker, QUESTION).final_output
