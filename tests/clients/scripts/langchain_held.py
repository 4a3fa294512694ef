from fruit import QUESTION, Fruit, pick, weigh
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from turn import KEY, MODEL, URL

model = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY)
for method in ("json_schema", "function_calling"):
    assert isinstance(model.with_structured_output(Fruit, method=method).invoke(QUESTION), Fruit)
tools = [tool(pick), tool(weigh)]
assert model.bind_tools(tools, tool_choice="any").invoke(QUESTION).tool_calls
first, *others = model.bind_tools(tools, tool_choice="pick").stream(QUESTION)
assert sum(others, first).tool_calls
