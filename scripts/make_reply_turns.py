#!/usr/bin/env python3
"""Assistant turns as the released chat template writes them, and what a reply parser must read back.

    make_reply_turns.py renders.json > tests/fixtures/text/assistant_turns.json

renders.json: rendered conversations, a list of {"name", "inputs", "text"}. A turn is kept if its text can be cut out
without doubt: no message of the conversation writes a tag or a role token itself.
"""
import json
import re
import sys

ROLES = re.compile(r"<\|(?:system|user|assistant|observation)\|>")
TAG = re.compile(r"</?(?:think|tool_call|arg_key|arg_value|tool_response)>|<\|")


def visible(content):
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part if isinstance(part, str) else part.get("text", "") for part in content)
    return None


def function(entry):
    return entry.get("function", entry)


def turns(render):
    inputs = render["inputs"]
    messages = [m for m in inputs["messages"] if m["role"] == "assistant"]
    if TAG.search(json.dumps(inputs, ensure_ascii=False)):
        return
    pieces = re.split(r"<\|assistant\|>", render["text"])[1:]
    if inputs.get("add_generation_prompt"):
        pieces = pieces[:-1]
    if len(pieces) != len(messages):
        return
    for message, piece in zip(messages, pieces):
        text = ROLES.split(piece)[0]
        content = visible(message.get("content"))
        if content is None or not text.startswith("<think>"):
            continue
        calls = [function(call) for call in message.get("tool_calls") or []]
        tools = [
            {"name": function(tool)["name"], "parameters": function(tool).get("parameters")}
            for tool in inputs.get("tools") or []
        ]
        offered = {tool["name"] for tool in tools}
        if any(call["name"] not in offered or not isinstance(call["arguments"], dict) for call in calls):
            continue
        # Left out by the template where earlier reasoning is dropped.
        reasoning = message.get("reasoning_content") or ""
        if reasoning and "<think></think>" in text:
            reasoning = ""
        yield {
            "name": render["name"],
            "text": text.removeprefix("<think>"),
            "tools": tools,
            "reasoning": reasoning,
            "content": content.strip(),
            "calls": [{"name": call["name"], "arguments": call["arguments"]} for call in calls],
        }


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        renders = json.load(file)
    kept = [turn for render in renders for turn in turns(render)]
    print("[\n" + ",\n".join(json.dumps(turn, ensure_ascii=False) for turn in kept) + "\n]")


main()
