from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from turn import DIRECTIVE, KEY, MODEL, URL, read_file, tell

model = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY).bind_tools([read_file])


def ask(state: MessagesState) -> dict:
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("ask", ask)
graph.add_node("tools", ToolNode([read_file]))
graph.add_edge(START, "ask")
graph.add_conditional_edges("ask", tools_condition)
graph.add_edge("tools", "ask")
answered = graph.compile().invoke({"messages": [("user", DIRECTIVE)]})
tell(answered["messages"][-1].text)
