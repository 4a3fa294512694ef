from fruit import QUESTION, Basket, Fruit
from openai import OpenAI, pydantic_function_tool
from turn import KEY, MODEL, URL

client = OpenAI(base_url=URL, api_key=KEY)
asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
tools = [pydantic_function_tool(Fruit), pydantic_function_tool(Basket)]
named = {"type": "function", "function": {"name": "Basket"}}
whole = client.chat.completions.parse(**asked, response_format=Fruit)
assert isinstance(whole.choices[0].message.parsed, Fruit)
for choice in ("required", named):
    called = client.chat.completions.parse(**asked, tools=tools, tool_choice=choice)
    for call in called.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Fruit | Basket)
with client.chat.completions.stream(**asked, response_format=Basket) as stream:
    assert isinstance(stream.get_final_completion().choices[0].message.parsed, Basket)
with client.chat.completions.stream(**asked, tools=tools, tool_choice="required") as stream:
    [call, *_] = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Fruit | Basket)
response = client.responses.parse(model=MODEL, input=QUESTION, text_format=Fruit)
assert isinstance(response.output_parsed, Fruit)
