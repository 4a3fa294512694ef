from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from turn import DIRECTIVE, KEY, MODEL, URL, read_file, tell

model = OpenAIChatGenerator(Secret.from_token(KEY), MODEL, api_base_url=URL)
agent = Agent(chat_generator=model, tools=[create_tool_from_function(read_file)])
tell(agent.run([ChatMessage.from_user(DIRECTIVE)])["last_message"].text)
