"""Events of a response's items, added up as clients do."""

from __future__ import annotations

from typing import Any


def added_up(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output as deltas make it; each item's ``done`` must say the same."""
    output: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            output.append(event["item"])
            assert event["item"].get("status", "in_progress") == "in_progress"
            continue
        item = output[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"]
        member = "input" if item["type"] == "custom_tool_call" else "arguments"
        match kind:
            case "content_part.added":
                item["content"] = [event["part"]]
            case "output_text.delta":
                item["content"][0]["text"] += event["delta"]
                item["content"][0]["logprobs"] += event["logprobs"]
            case "output_text.done":
                assert event["text"] == item["content"][0]["text"]
                assert event["logprobs"] == item["content"][0]["logprobs"]
            case "content_part.done":
                assert event["part"] == item["content"][0]
            case "reasoning_text.delta":
                item["content"] = item["content"] or [{"type": "reasoning_text", "text": ""}]
                item["content"][0]["text"] += event["delta"]
            case "reasoning_text.done":
                assert event["text"] == item["content"][0]["text"]
            case "function_call_arguments.delta" | "custom_tool_call_input.delta":
                item[member] += event["delta"]
            case "function_call_arguments.done" | "custom_tool_call_input.done":
                assert event[member] == item[member]
            case "output_item.done":
                if "status" in item:
                    item["status"] = "completed"
                assert event["item"] == item
            case _:
                raise AssertionError(kind)
    return output
