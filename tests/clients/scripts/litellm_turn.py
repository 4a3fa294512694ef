import yaml
from litellm import Router
from turn import DIRECTIVE, MODEL, read_file, tell

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    },
}

# What the proxy makes of its config.
with open("config.yaml") as config:
    router = Router(model_list=yaml.safe_load(config)["model_list"])
messages: list = [{"role": "user", "content": DIRECTIVE}]
asked = router.completion(MODEL, messages, tools=[TOOL]).choices[0].message
[call] = asked.tool_calls
messages += [
    asked,
    {"role": "tool", "tool_call_id": call.id, "content": read_file("notes.txt")},
]
tell(router.completion(MODEL, messages, tools=[TOOL]).choices[0].message.content)
