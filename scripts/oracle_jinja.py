#!/usr/bin/env python3
"""Renders templates with Jinja2, set up as Hugging Face does, and holds the template engine to the same text.

  oracle_jinja.py write                 rewrites tests/fixtures/text/template_vectors.json (snippets and conversations of
                                        the demo template and its variants)
  oracle_jinja.py check --driver EXE [--template FILE] [--renders FILE] [--count N] [--seed N]
                                        N random conversations for each template (the demo's, its variants' and FILE),
                                        the snippets, and the renders of FILE, through EXE (tests/text/template_driver)

Needs jinja2 3.1 on Python 3.11; exits with 77 (skipped) where they are missing."""
import argparse
import json
import pathlib
import random
import subprocess
import sys

try:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: jinja2 is not installed")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures" / "text"
TEMPLATES = [ROOT / "models" / "demo" / "chat_template.jinja"] + [
    FIXTURES / f"chat_template_{name}.jinja" for name in ("thinking_toggle", "tool_block", "default_filters")]
sys.path.insert(0, str(FIXTURES))


class Generation(Extension):
    """{% generation %}: the body as it is, in a scope of its own."""
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(lineno)

    def _support(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


ENVIRONMENT = environment()


def render(source, inputs):
    """{"text"}, or {"error"} when Jinja2 or the template refuses."""
    try:
        return {"text": ENVIRONMENT.from_string(source).render(**inputs)}
    except Exception as problem:  # any exception of Python's is a refusal
        return {"error": f"{type(problem).__name__}: {problem}"}


WORDS = ["alpha", "\u03b2eta", "\U0001F680", "<think>", "</think>", "\n", " ", '{"a":1}', "<|observation|>", "&amp;", "\u2028",
         "'q'", "<|us", "er|>", "<|user|>", "</arg_value>", "<tool_call>", "\t", "\u00a0", "\u0130\u03a3", "\\", '"', "\x07",
         "\u4f60\u597d", "e\u0301", "</tool_response>", "[gMASK]", "\r\n"]
NUMBERS = [0, 1, -7, 2.5, 1e-7, 1e16, 123456789012345, 1e22, 0.1, -0.0, 1.0, 5e-324, 9007199254740993]


class Conversations:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def text(self, most=6):
        return "".join(self.rng.choice(WORDS) for _ in range(self.rng.randrange(most + 1)))

    def value(self, depth=0):
        kind = self.rng.randrange(9 if depth < 3 else 6)
        if kind <= 2:
            return self.text()
        if kind == 3:
            return self.rng.choice(NUMBERS)
        if kind <= 5:
            return self.rng.choice([None, True, False])
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.rng.randrange(4))]
        return {self.text(2) or "k": self.value(depth + 1) for _ in range(self.rng.randrange(4))}

    def tool(self):
        rng = self.rng
        function = {"name": rng.choice(["now", "get_weather", self.text(2)]), "description": self.text(),
                    "parameters": {"type": "object", "properties": {self.text(1) or "p": {"type": "string"}}}}
        if rng.random() < .3:
            function["strict"] = True
        if rng.random() < .2:
            function["defer_loading"] = rng.random() < .7
        return function if rng.random() < .3 else {"type": "function", "function": function}

    def content(self):
        rng = self.rng
        if rng.random() < .75:
            return self.text()
        parts = []
        for _ in range(rng.randrange(4)):
            parts.append(rng.choice([{"type": "text", "text": self.text()}, {"type": "image"}, {"type": "image_url"},
                                     {"type": "video_url"}, {"type": "text", "text": self.text()}]))
        return parts

    def call(self):
        rng = self.rng
        function = {"name": rng.choice(["now", "get_weather", self.text(2)]),
                    "arguments": {self.text(2) or "k": self.value() for _ in range(rng.randrange(3))}}
        call = {"type": "function", "function": function} if rng.random() < .8 else function
        if rng.random() < .8:
            call["id"] = f"id{rng.randrange(3)}"
        return call

    def message(self):
        rng = self.rng
        kind = rng.random()
        if kind < .15:
            return {"role": "system", "content": self.content()}
        if kind < .45:
            return {"role": "user", "content": self.content()}
        if kind < .75:
            message = {"role": "assistant", "content": self.content() if rng.random() < .9 else None}
            if rng.random() < .5:
                message["reasoning_content"] = self.text() if rng.random() < .9 else None
            if rng.random() < .5:
                message["tool_calls"] = [self.call() for _ in range(rng.randrange(4))]
            return message
        message = {"role": "tool", "content": self.content()}
        if rng.random() < .15:
            message["content"] = [{"output": self.content(), "tool_call_id": f"id{rng.randrange(3)}"} for _ in range(2)]
        if rng.random() < .7:
            message["tool_call_id"] = f"id{rng.randrange(3)}"
        return message

    def inputs(self):
        rng = self.rng
        inputs = {"messages": [self.message() for _ in range(rng.randrange(1, 8))]}
        if rng.random() < .5:
            inputs["tools"] = [self.tool() for _ in range(rng.randrange(1, 4))]
        if rng.random() < .2:
            inputs["tools"] = None
        for name, values in [("add_generation_prompt", [True, True, False]), ("clear_thinking", [True, False]),
                             ("enable_thinking", [True, False]), ("reasoning_effort", ["low", "high", "max", "x", None]),
                             ("tool_style", ["plain", "json", self.text(1)]), ("system_default", [self.text()])]:
            if rng.random() < .4:
                inputs[name] = rng.choice(values)
        return inputs


def run_driver(driver, tasks):
    lines = "".join(json.dumps({"template": source, "inputs": inputs}) + "\n" for source, inputs in tasks)
    done = subprocess.run([driver], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().rstrip("\n").split("\n")]


def compare(name, expected, answers, tasks, may_refuse=False):
    """Prints the first differences; returns how many. An error must be an error on both sides."""
    wrong = refused = errors = 0
    for want, got, (source, inputs) in zip(expected, answers, tasks, strict=True):
        errors += "error" in want
        if "error" in want and "error" in got:
            continue
        if may_refuse and "error" in got and got["kind"] == 2:
            refused += 1
            continue
        if want.get("text") != got.get("text"):
            wrong += 1
            if wrong <= 8:
                print(f"--- {name}: differs\ntemplate: {source[:300]!r}\ninputs: {json.dumps(inputs)[:500]}\n"
                      f"expected: {str(want)[:600]}\ngot:      {str(got)[:600]}")
    print(f"{name}: {len(tasks)} rendered, {len(tasks) - wrong - refused} equal ({errors} of them errors on both sides), "
          f"{refused} refused by name, {wrong} wrong")
    return wrong


def check(arguments):
    wrong = 0
    templates = list(TEMPLATES)
    for path in map(pathlib.Path, arguments.template):
        if path.exists():
            templates.append(path)
        else:
            print(f"skipped: {path} is not there")
    for path in templates:
        source = path.read_text()
        conversations = Conversations(arguments.seed)
        tasks = [(source, conversations.inputs()) for _ in range(arguments.count)]
        expected = [render(*task) for task in tasks]
        wrong += compare(path.name, expected, run_driver(arguments.driver, tasks), tasks)
        if arguments.renders and path.name == "chat_template.jinja" and path not in TEMPLATES:
            stored = json.loads(pathlib.Path(arguments.renders).read_text())
            tasks = [(source, one["inputs"]) for one in stored]
            wrong += compare("renders", [{"text": one["text"]} for one in stored], run_driver(arguments.driver, tasks), tasks)
    from template_snippets import SNIPPETS, VARIABLES
    tasks = [(snippet, VARIABLES) for snippet in SNIPPETS]
    wrong += compare("snippets", [render(*t) for t in tasks], run_driver(arguments.driver, tasks), tasks)
    from template_snippets import generate
    tasks = [(snippet, VARIABLES) for snippet in generate(arguments.seed, arguments.count)]
    wrong += compare("random snippets", [render(*t) for t in tasks], run_driver(arguments.driver, tasks), tasks, True)
    return wrong


def write():
    from template_snippets import SNIPPETS, VARIABLES
    conversations = []
    for path in TEMPLATES:
        source, generator = path.read_text(), Conversations(5)
        for _ in range(60):
            inputs = generator.inputs()
            conversations.append({"template": path.relative_to(ROOT).as_posix(), "inputs": inputs, **render(source, inputs)})
    snippets = [{"template": snippet, **render(snippet, VARIABLES)} for snippet in SNIPPETS]
    vectors = {"made_by": f"scripts/oracle_jinja.py write, Jinja2 {jinja2.__version__}", "variables": VARIABLES,
               "snippets": snippets, "conversations": conversations}
    lines = json.dumps(vectors, ensure_ascii=False, indent=None).replace('{"template"', '\n{"template"')
    (FIXTURES / "template_vectors.json").write_text(lines + "\n")
    print(len(snippets), "snippets,", len(conversations), "conversations")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write")
    checker = commands.add_parser("check")
    checker.add_argument("--driver", required=True)
    checker.add_argument("--template", action="append", default=[])
    checker.add_argument("--renders")
    checker.add_argument("--count", type=int, default=2000)
    checker.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if sys.version_info[:2] != (3, 11) or not jinja2.__version__.startswith("3.1."):
        print("skipped: Jinja2 3.1 on Python 3.11 is needed")
        return 77
    if arguments.command == "write":
        return write()
    return 1 if check(arguments) else 0


sys.exit(main())
