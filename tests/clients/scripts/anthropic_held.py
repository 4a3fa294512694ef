from anthropic import Anthropic
from fruit import QUESTION, Basket, Fruit
from turn import KEY, MODEL, URL

client = Anthropic(base_url=URL.removesuffix("/v1"), auth_token=KEY)
asked = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 4096,
}
tools = [{"name": one.__name__, "input_schema": one.model_json_schema()} for one in (Fruit, Basket)]
message = client.messages.parse(**asked, output_format=Fruit)
assert isinstance(message.parsed_output, Fruit)
for choice in ({"type": "any"}, {"type": "tool", "name": "Fruit"}):
    blocks = client.messages.create(**asked, tools=tools, tool_choice=choice).content
    assert any(block.type == "tool_use" for block in blocks)
