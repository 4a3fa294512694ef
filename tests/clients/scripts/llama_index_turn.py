import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from turn import DIRECTIVE, KEY, MODEL, URL, read_file, tell

model = OpenAILike(
    model=MODEL,
    api_base=URL,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32768,
)


async def turn() -> str:
    return str(await FunctionAgent(tools=[read_file], llm=model).run(DIRECTIVE))


tell(asyncio.run(turn()))
