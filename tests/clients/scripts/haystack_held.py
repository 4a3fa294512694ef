from fruit import QUESTION, Fruit, pick, weigh
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from turn import KEY, MODEL, URL

model = OpenAIChatGenerator(Secret.from_token(KEY), MODEL, api_base_url=URL)
messages = [ChatMessage.from_user(QUESTION)]
told = model.run(messages, generation_kwargs={"response_format": Fruit})["replies"][0]
Fruit.model_validate_json(told.text)
tools = [create_tool_from_function(one) for one in (pick, weigh)]
named = {"type": "function", "function": {"name": "weigh"}}
for choice in ("required", named):
    called = model.run(messages, tools=tools, generation_kwargs={"tool_choice": choice})
    assert called["replies"][0].tool_calls
