#!/usr/bin/env python3
"""Drives the server with the official clients, openai and anthropic from PyPI: what they make of its replies, streams and
errors. The server (tests/server/protocols/scripted_server) says what a message asks it to say, through the real tokenizer,
engine and routes.

  oracle_clients.py --server EXE --work DIR

Needs `pip install openai anthropic pydantic`; exits with 77 (skipped) where they are missing."""
import argparse
import json
import pathlib
import subprocess
import sys
import threading
import time
import unittest

try:
    import anthropic
    import openai
    import pydantic
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed")
    sys.exit(77)

KEY = "sk-test-of-the-clients"
OPTIONS = None


def call(name, **arguments):
    """A call as the model writes it."""
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
    return f"<tool_call>{name}{pairs}</tool_call>"


WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
           "required": ["city"], "additionalProperties": False}
CHAT_TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}},
              {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}]
RESPONSE_TOOLS = [{"type": "function", "name": "get_weather", "description": "The weather.", "parameters": WEATHER, "strict": True},
                  {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}, "strict": False}]
MESSAGE_TOOLS = [{"name": "get_weather", "description": "The weather.", "input_schema": WEATHER},
                 {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}]


class Step(pydantic.BaseModel):
    explanation: str
    value: int


class Solution(pydantic.BaseModel):
    steps: list[Step]
    answer: str


SOLUTION = '{"steps": [{"explanation": "two and two", "value": 4}], "answer": "four"}'


def say(text):
    return [{"role": "user", "content": "say: " + text}]


class Served(unittest.TestCase):
    """One server for all tests of a class."""
    arguments = []

    @classmethod
    def setUpClass(cls):
        keys = pathlib.Path(OPTIONS.work) / "keys"
        keys.write_text(f"clients {KEY}\nother {KEY}-of-another\n")
        keys.chmod(0o600)
        cls.process = subprocess.Popen([OPTIONS.server, "--keys", str(keys), *cls.arguments], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        cls.url = cls.process.stdout.readline().strip()
        cls.openai = openai.OpenAI(base_url=cls.url + "/v1", api_key=KEY, max_retries=0, timeout=30)
        cls.anthropic = anthropic.Anthropic(base_url=cls.url, api_key=KEY, max_retries=0, timeout=30)

    @classmethod
    def tearDownClass(cls):
        cls.process.stdin.close()
        assert cls.process.wait(timeout=20) == 0
        cls.process.stdout.close()


class Chat(Served):
    def create(self, text, **more):
        return self.openai.chat.completions.create(model="scripted", messages=say(text), **more)

    def test_models(self):
        self.assertIn("scripted", [model.id for model in self.openai.models.list()])
        self.assertEqual(self.openai.models.retrieve("scripted").id, "scripted")

    def test_whole(self):
        reply = self.create("Let me see.</think>Grüße, 世界 🌊")
        self.assertEqual(reply.choices[0].message.content, "Grüße, 世界 🌊")
        self.assertEqual(reply.choices[0].message.reasoning_content, "Let me see.")
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)
        self.assertGreater(reply.usage.completion_tokens_details.reasoning_tokens, 2)
        self.assertEqual(len(reply.verbatim["token_hash"]), 16)

    def test_stream(self):
        whole = self.create("Let me see.</think>Grüße, 世界 🌊 und mehr.")
        text, reasoning, usage, finish, roles = "", "", None, [], 0
        for chunk in self.create("Let me see.</think>Grüße, 世界 🌊 und mehr.", stream=True,
                                 stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                roles += choice.delta.role == "assistant"
                text += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                finish += [choice.finish_reason] if choice.finish_reason else []
        self.assertEqual((text, reasoning), (whole.choices[0].message.content, whole.choices[0].message.reasoning_content))
        self.assertEqual((finish, roles), (["stop"], 1))
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_tools_in_parallel_and_their_results(self):
        said = "Both.</think>" + call("get_weather", city="Oslo", days=2) + call("get_time")
        reply = self.create(said, tools=CHAT_TOOLS)
        self.assertEqual(reply.choices[0].finish_reason, "tool_calls")
        message = reply.choices[0].message
        self.assertEqual([one.function.name for one in message.tool_calls], ["get_weather", "get_time"])
        self.assertEqual(json.loads(message.tool_calls[0].function.arguments), {"city": "Oslo", "days": 2})
        self.assertEqual(json.loads(message.tool_calls[1].function.arguments), {})
        self.assertEqual(len({one.id for one in message.tool_calls}), 2)
        results = [{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
                   {"role": "tool", "tool_call_id": message.tool_calls[1].id, "content": "say: </think>Rain at noon."}]
        after = self.openai.chat.completions.create(model="scripted", tools=CHAT_TOOLS,
                                                    messages=say(said) + [message] + results)
        self.assertEqual(after.choices[0].message.content, "Rain at noon.")

    def test_tools_streamed(self):
        said = "Both.</think>" + call("get_weather", city="Oslo") + call("get_time")
        with self.openai.chat.completions.stream(model="scripted", messages=say(said), tools=CHAT_TOOLS) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
            final = stream.get_final_completion()
        self.assertEqual([event.name for event in done], ["get_weather", "get_time"])
        self.assertEqual(json.loads(final.choices[0].message.tool_calls[0].function.arguments), {"city": "Oslo"})

    def test_forced_tools(self):
        said = "I must.</think>" + call("get_weather", city="Rome")
        for choice in "required", {"type": "function", "function": {"name": "get_weather"}}:
            reply = self.create(said, tools=CHAT_TOOLS, tool_choice=choice)
            self.assertEqual(reply.choices[0].message.tool_calls[0].function.name, "get_weather")
            self.assertEqual(json.loads(reply.choices[0].message.tool_calls[0].function.arguments), {"city": "Rome"})

    def test_structured_output(self):
        reply = self.openai.chat.completions.parse(model="scripted", messages=say("So.</think>" + SOLUTION),
                                                   response_format=Solution)
        self.assertEqual(reply.choices[0].message.parsed.steps[0].value, 4)
        self.assertEqual(reply.choices[0].message.parsed.answer, "four")

    def test_several(self):
        reply = self.create("So.</think>Same.", n=3, seed=5)
        self.assertEqual([choice.index for choice in reply.choices], [0, 1, 2])
        self.assertEqual({choice.message.content for choice in reply.choices}, {"Same."})
        texts = {}
        for chunk in self.create("So.</think>Same.", n=2, stream=True):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        self.assertEqual(texts, {0: "Same.", 1: "Same."})

    def test_logprobs(self):
        reply = self.create("</think>Yes.", logprobs=True, top_logprobs=3, temperature=0)
        tokens = reply.choices[0].logprobs.content
        self.assertEqual(len(tokens), reply.usage.completion_tokens)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.logprob, token.top_logprobs[0].logprob)
            self.assertLessEqual(token.logprob, 0)
        self.assertIn("Yes.", b"".join(bytes(token.bytes) for token in tokens).decode())

    def test_stop_and_length(self):
        reply = self.create("</think>one two END three", stop=["END"])
        self.assertEqual((reply.choices[0].message.content, reply.choices[0].finish_reason), ("one two", "stop"))
        self.assertEqual(self.create("</think>one two three", max_completion_tokens=3).choices[0].finish_reason, "length")

    def test_completions(self):
        reply = self.openai.completions.create(model="scripted", prompt="Once", max_tokens=5, temperature=0)
        self.assertEqual(reply.usage.completion_tokens, 5)
        streamed = "".join(chunk.choices[0].text for chunk in self.openai.completions.create(
            model="scripted", prompt="Once", max_tokens=5, temperature=0, stream=True) if chunk.choices)
        self.assertEqual(streamed, reply.choices[0].text)


class Responses(Served):
    def create(self, text, **more):
        return self.openai.responses.create(model="scripted", input="say: " + text, **more)

    def test_whole(self):
        response = self.create("Hm.</think>Hello.", instructions="Be brief.", reasoning={"effort": "medium"})
        self.assertEqual(response.output_text, "Hello.")
        self.assertEqual(response.status, "completed")
        self.assertEqual(response.output[0].content[0].text, "Hm.")
        self.assertEqual(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens)

    def test_stream(self):
        types, numbers = [], []
        with self.openai.responses.stream(model="scripted", input="say: Hm.</think>Hello there.") as stream:
            for event in stream:
                types.append(event.type)
                numbers.append(event.sequence_number)
            final = stream.get_final_response()
        self.assertEqual(types[:2], ["response.created", "response.in_progress"])
        self.assertEqual(types[-1], "response.completed")
        self.assertEqual(numbers, list(range(len(numbers))))
        self.assertEqual(final.output_text, "Hello there.")

    def test_tools_and_earlier_responses(self):
        first = self.create("</think>" + call("get_weather", city="Oslo") + call("get_time"), tools=RESPONSE_TOOLS)
        calls = [item for item in first.output if item.type == "function_call"]
        self.assertEqual([item.name for item in calls], ["get_weather", "get_time"])
        self.assertEqual(json.loads(calls[0].arguments), {"city": "Oslo"})
        second = self.openai.responses.create(
            model="scripted", previous_response_id=first.id, tools=RESPONSE_TOOLS,
            input=[{"type": "function_call_output", "call_id": calls[0].call_id, "output": "rain"},
                   {"type": "function_call_output", "call_id": calls[1].call_id, "output": "say: </think>Rain at noon."}])
        self.assertEqual(second.output_text, "Rain at noon.")
        forced = self.create("</think>" + call("get_weather", city="Rome"), tools=RESPONSE_TOOLS,
                             tool_choice={"type": "function", "name": "get_weather"})
        self.assertEqual(forced.output[0].name, "get_weather")

    def test_structured_output(self):
        response = self.openai.responses.parse(model="scripted", input="say: So.</think>" + SOLUTION, text_format=Solution)
        self.assertEqual(response.output_parsed.answer, "four")

    def test_kept(self):
        made = self.create("</think>Kept.")
        self.assertEqual(self.openai.responses.retrieve(made.id).output_text, "Kept.")
        items = list(self.openai.responses.input_items.list(made.id))
        self.assertEqual(items[0].content[0].text, "say: </think>Kept.")
        other = openai.OpenAI(base_url=self.url + "/v1", api_key=KEY + "-of-another", max_retries=0)
        with self.assertRaises(openai.NotFoundError):
            other.responses.retrieve(made.id)
        self.openai.responses.delete(made.id)
        with self.assertRaises(openai.NotFoundError):
            self.openai.responses.retrieve(made.id)


class Messages(Served):
    def create(self, text, **more):
        return self.anthropic.messages.create(model="scripted", max_tokens=200, messages=say(text), **more)

    def test_whole(self):
        message = self.create("Hm.</think>Hello.", system="Be brief.")
        self.assertEqual([block.type for block in message.content], ["text"])
        self.assertEqual(message.content[0].text, "Hello.")
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertIsNotNone(message._request_id)

    def test_stream_with_thinking(self):
        with self.anthropic.messages.stream(model="scripted", max_tokens=300, messages=say("Hm, hm.</think>Hello there."),
                                            thinking={"type": "enabled", "budget_tokens": 200}) as stream:
            types = [event.type for event in stream]
            message = stream.get_final_message()
        self.assertEqual(types[0], "message_start")
        self.assertEqual(types[-1], "message_stop")
        self.assertEqual([block.type for block in message.content], ["thinking", "text"])
        self.assertEqual(message.content[0].thinking, "Hm, hm.")
        self.assertEqual(message.content[1].text, "Hello there.")
        self.assertTrue(message.content[0].signature)
        self.assertGreater(message.usage.output_tokens, 5)
        again = self.anthropic.messages.create(
            model="scripted", max_tokens=300, thinking={"type": "enabled", "budget_tokens": 200},
            messages=say("x") + [{"role": "assistant", "content": message.content}] + say("</think>Again."))
        self.assertEqual(again.content[0].text, "Again.")

    def test_tools_round_trip(self):
        said = "</think>" + call("get_weather", city="Oslo", days=2) + call("get_time")
        message = self.create(said, tools=MESSAGE_TOOLS)
        self.assertEqual(message.stop_reason, "tool_use")
        self.assertEqual([(block.name, block.input) for block in message.content],
                         [("get_weather", {"city": "Oslo", "days": 2}), ("get_time", {})])
        results = [{"type": "tool_result", "tool_use_id": message.content[0].id, "content": "rain"},
                   {"type": "tool_result", "tool_use_id": message.content[1].id,
                    "content": [{"type": "text", "text": "say: </think>Rain at noon."}]}]
        after = self.anthropic.messages.create(
            model="scripted", max_tokens=100, tools=MESSAGE_TOOLS,
            messages=say(said) + [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}])
        self.assertEqual(after.content[0].text, "Rain at noon.")

    def test_forced_tools_streamed(self):
        said = "</think>" + call("get_weather", city="Rome")
        for choice in {"type": "any"}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}:
            with self.anthropic.messages.stream(model="scripted", max_tokens=100, messages=say(said), tools=MESSAGE_TOOLS,
                                                tool_choice=choice) as stream:
                message = stream.get_final_message()
            self.assertEqual((message.content[0].name, message.content[0].input), ("get_weather", {"city": "Rome"}))

    def test_structured_output(self):
        message = self.anthropic.messages.parse(model="scripted", max_tokens=300, messages=say("So.</think>" + SOLUTION),
                                                output_format=Solution)
        self.assertEqual(message.parsed_output.answer, "four")

    def test_count_tokens(self):
        counted = self.anthropic.messages.count_tokens(model="scripted", messages=say("</think>Hello."), tools=MESSAGE_TOOLS)
        message = self.create("</think>Hello.", tools=MESSAGE_TOOLS)
        self.assertEqual(counted.input_tokens, message.usage.input_tokens + message.usage.cache_read_input_tokens)

    def test_cache_usage(self):
        text = "word " * 100 + "say: </think>Yes."
        first, second = (self.anthropic.messages.create(model="scripted", max_tokens=20,
                                                        messages=[{"role": "user", "content": text}]) for _ in range(2))
        self.assertGreaterEqual(second.usage.cache_read_input_tokens, 64)
        self.assertEqual(first.usage.input_tokens + first.usage.cache_read_input_tokens,
                         second.usage.input_tokens + second.usage.cache_read_input_tokens)

    def test_stop_sequence(self):
        message = self.create("</think>one two END three", stop_sequences=["END"])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", "END"))


class Errors(Served):
    def test_openai(self):
        create = self.openai.chat.completions.create
        with self.assertRaises(openai.BadRequestError) as raised:
            create(model="scripted", messages=say("x"), temperature="hot")
        self.assertEqual(raised.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as raised:
            create(model="scripted", messages=say("word " * 9000))
        self.assertEqual(raised.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError) as raised:
            create(model="another", messages=say("x"))
        self.assertEqual(raised.exception.code, "model_not_found")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.url + "/v1", api_key="wrong-key", max_retries=0).models.list()
        with self.assertRaises(openai.BadRequestError) as raised:
            create(model="scripted", messages=[{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]}])
        self.assertIn("data:", str(raised.exception))
        # Before any byte is streamed.
        with self.assertRaises(openai.BadRequestError):
            create(model="scripted", messages=say("x"), stream=True, top_p=7)

    def test_anthropic(self):
        create = self.anthropic.messages.create
        with self.assertRaises(anthropic.BadRequestError) as raised:
            create(model="scripted", max_tokens=10, messages=say("x"), extra_body={"temperature": "hot"})
        self.assertEqual(raised.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.BadRequestError) as raised:
            create(model="scripted", max_tokens=10, messages=say("word " * 9000))
        self.assertIn("prompt is too long", str(raised.exception))
        with self.assertRaises(anthropic.NotFoundError):
            create(model="another", max_tokens=10, messages=say("x"))
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.url, api_key="wrong-key", max_retries=0).messages.create(
                model="scripted", max_tokens=10, messages=say("x"))
        bearer = anthropic.Anthropic(base_url=self.url, auth_token=KEY, max_retries=0)
        self.assertEqual(bearer.messages.create(model="scripted", max_tokens=10, messages=say("</think>Yes.")).content[0].text,
                         "Yes.")


class Arrival(Served):
    """20 ms a step: events must come as they are made."""
    arguments = ["--step-ms", "20"]

    def test_streams_arrive_as_they_are_made(self):
        text = "</think>" + " ".join(f"word{i}" for i in range(40))
        streams = {
            "chat": lambda: self.openai.chat.completions.create(model="scripted", messages=say(text), stream=True),
            "responses": lambda: self.openai.responses.create(model="scripted", input="say: " + text, stream=True),
            "messages": lambda: self.anthropic.messages.create(model="scripted", max_tokens=400, messages=say(text),
                                                               stream=True)}
        for name, start in streams.items():
            times = [time.monotonic() for _ in start()]
            spread = times[-1] - times[0]
            within = sum(1 for at in times if times[0] + spread * 0.2 < at < times[0] + spread * 0.8)
            self.assertGreater(spread, 0.3, name)
            self.assertGreater(within, len(times) / 3, name)

    def test_many_at_once(self):
        results = []

        def one(i):
            results.append((i, "".join(chunk.choices[0].delta.content or "" for chunk in self.openai.chat.completions.create(
                model="scripted", messages=say(f"</think>I am number {i}, and so on."), stream=True) if chunk.choices)))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(results), [(i, f"I am number {i}, and so on.") for i in range(24)])

    def test_leaving_midway(self):
        stream = self.openai.chat.completions.create(model="scripted", messages=say("</think>" + "word " * 200), stream=True)
        next(iter(stream))
        stream.close()
        reply = self.openai.chat.completions.create(model="scripted", messages=say("</think>Still here."))
        self.assertEqual(reply.choices[0].message.content, "Still here.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("tests", nargs="*")
    OPTIONS = parser.parse_args()
    pathlib.Path(OPTIONS.work).mkdir(parents=True, exist_ok=True)
    print(f"openai {openai.__version__}, anthropic {anthropic.__version__}", flush=True)
    unittest.main(argv=[sys.argv[0], *OPTIONS.tests])
