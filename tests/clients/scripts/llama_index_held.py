from fruit import QUESTION, Fruit, pick, weigh
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from turn import KEY, MODEL, URL

model = OpenAILike(
    model=MODEL,
    api_base=URL,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32768,
)
assert isinstance(model.structured_predict(Fruit, PromptTemplate(QUESTION)), Fruit)
tools = [FunctionTool.from_defaults(one) for one in (pick, weigh)]
answer = model.chat_with_tools(tools, user_msg=QUESTION, tool_required=True)
assert model.get_tool_calls_from_response(answer)
