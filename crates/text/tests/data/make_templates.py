"""Renders every template of a folder with transformers, as mlx-lm's server would call it, and
stores the prompts.

    pip install transformers==5.23.0 jinja2==3.1.6
    python make_templates.py [FOLDER]

Reads FOLDER/*.jinja (by default templates/ beside this file), writes FOLDER/conversations.json and
FOLDER/expected.json. The templates are modelled on those of the families they are named after.
"""

import copy
import datetime
import json
import sys
from pathlib import Path

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 3, 7, 14, 5, 9, tzinfo=datetime.timezone.utc)


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = FixedClock

# What a template needs to know, where it is not the default. `thinking`: the vocabulary has
# <think>. `lists`: it takes content as a list of parts. `arguments`: it wants strings.
DEFAULT = {"bos": "<s>", "eos": "</s>", "thinking": False, "lists": False, "arguments": "object"}
OPTIONS = {
    "qwen2.5": {"bos": None, "eos": "<|im_end|>"},
    "qwen3": {"bos": None, "eos": "<|im_end|>", "thinking": True},
    "qwen3-coder": {"bos": None, "eos": "<|im_end|>"},
    "hermes-generation": {"bos": None, "eos": "<|im_end|>"},
    "llama3.1": {"bos": "<|begin_of_text|>", "eos": "<|eot_id|>"},
    "llama3.2-vision": {"bos": "<|begin_of_text|>", "eos": "<|eot_id|>", "lists": True},
    "gemma3": {"bos": "<bos>", "eos": "<end_of_turn>", "lists": True},
    "phi4": {"bos": "<|endoftext|>", "eos": "<|end|>"},
    "deepseek": {"thinking": True, "arguments": "string"},
    "python": {"conversations": ["user", "tool call, answered", "variables"]},
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather <now> & \"later\", it's 'exact' – naïve ☃",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"type": "string", "enum": ["°C", "°F"], "default": None},
                "days": {"type": "integer", "minimum": 1, "maximum": 1e16},
            },
            "required": ["city"],
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches.\nSecond line.",
        "parameters": {
            "type": "object",
            "properties": {
                "items": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"keys": {"type": "number"}}},
                },
                "threshold": {"type": "number", "default": 1e-05, "examples": [0.1, 2.0, -0.0]},
                "strict": {"type": "boolean", "default": True},
                "nothing": {},
            },
            "required": ["items", "threshold"],
            "additionalProperties": False,
        },
        "return": {"type": "array"},
    },
}


def call(identifier, name, arguments):
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": identifier, "type": "function", "function": function}


SYSTEM = {"role": "system", "content": "You are Ada.\n\nBe <brief> & \"kind\". "}
HELLO = {"role": "user", "content": "Hello, who are you?"}
ANSWER = {"role": "assistant", "content": "I am Ada, naïve ☃ & 'quoted'."}
ASK = {"role": "user", "content": "  What is the weather in Oslo\tand Köln?\n"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [call("abcdef001", "weather", {"city": "Oslo", "days": 2})],
}
RESULT = {"role": "tool", "tool_call_id": "abcdef001", "name": "weather", "content": "{\"celsius\": -3.5}"}
CALLS = {
    "role": "assistant",
    "content": "Let me look.",
    "tool_calls": [
        call("abcdef002", "weather", {"city": "Köln", "unit": "°C"}),
        call(
            "abcdef003",
            "search",
            {"items": [{"keys": 1.5}, None, True], "threshold": 1e-07, "q": "a<b & 'c'", "nested": {"x": {}}},
        ),
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "abcdef002", "name": "weather", "content": "7 °C"},
    {"role": "tool", "tool_call_id": "abcdef003", "name": "search", "content": "[\"one\", \"two\"]"},
]
THOUGHT = {
    "role": "assistant",
    "reasoning_content": "The user wants a greeting.\nI greet.",
    "content": "Good day!",
}
TAGGED = {"role": "assistant", "content": "<think>\nHm, hm.\n</think>\n\nFour."}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "First part. "}, {"type": "text", "text": "Second part."}],
}

CONVERSATIONS = {
    "user": {"messages": [HELLO]},
    "system": {"messages": [SYSTEM, HELLO]},
    "turns": {"messages": [SYSTEM, HELLO, ANSWER, ASK]},
    "turns without system": {"messages": [HELLO, ANSWER, ASK, ANSWER, HELLO]},
    "finished": {"messages": [HELLO, ANSWER], "add_generation_prompt": False},
    "tools": {"messages": [HELLO], "tools": [WEATHER]},
    "tools and system": {"messages": [SYSTEM, ASK], "tools": [WEATHER, SEARCH]},
    "tool call": {"messages": [ASK, CALL, RESULT], "tools": [WEATHER]},
    "tool call, answered": {
        "messages": [SYSTEM, ASK, CALL, RESULT, ANSWER, HELLO],
        "tools": [WEATHER, SEARCH],
    },
    "two tool calls": {"messages": [SYSTEM, ASK, CALLS, *RESULTS], "tools": [WEATHER, SEARCH]},
    "two tool calls, answered": {
        "messages": [ASK, CALLS, *RESULTS, ANSWER, HELLO],
        "tools": [WEATHER, SEARCH],
    },
    "tool call of before": {"messages": [ASK, CALL, RESULT, ANSWER, HELLO]},
    "reasoning": {"messages": [HELLO, THOUGHT, HELLO]},
    "reasoning before a tool call": {
        "messages": [ASK, {**CALL, "reasoning": "Look it up."}, RESULT],
        "tools": [WEATHER],
    },
    "reasoning in tags": {"messages": [HELLO, TAGGED, HELLO]},
    "thinking off": {"messages": [HELLO], "kwargs": {"enable_thinking": False}},
    "thinking on": {"messages": [SYSTEM, HELLO], "kwargs": {"enable_thinking": True}},
    "parts": {"messages": [SYSTEM, PARTS]},
    "null fields": {
        "messages": [HELLO, {**ANSWER, "tool_calls": None, "refusal": None, "audio": None}, HELLO]
    },
    "variables": {
        "messages": [HELLO],
        "tools": [WEATHER],
        "kwargs": {
            "date_string": "01 Jan 2030",
            "tools_in_user_message": False,
            "reasoning_effort": "low",
            "documents": [{"title": "A <title>", "text": "Some text."}],
        },
    },
    "two users": {"messages": [HELLO, ASK]},
    "assistant first": {"messages": [ANSWER, HELLO]},
    "unknown role": {"messages": [{"role": "wizard", "content": "Abracadabra"}]},
}


def prepare(messages, options):
    """What mlx_lm.server does before it calls the template (`process_message_content`)."""
    messages = copy.deepcopy(messages)
    for message in messages:
        if message.get("content") is None:
            message["content"] = ""
        if isinstance(message["content"], list) and not options["lists"]:
            message["content"] = "".join(part["text"] for part in message["content"])
        for tool_call in message.get("tool_calls") or []:
            if options["arguments"] == "object":
                tool_call["function"]["arguments"] = json.loads(tool_call["function"]["arguments"])
    return messages


def render(tokenizer, conversation, options):
    kwargs = {"enable_thinking": options["thinking"], **conversation.get("kwargs", {})}
    try:
        return tokenizer.apply_chat_template(
            prepare(conversation["messages"], options),
            tools=conversation.get("tools"),
            add_generation_prompt=conversation.get("add_generation_prompt", True),
            tokenize=False,
            **kwargs,
        )
    except jinja2.exceptions.TemplateError as error:
        refused = type(error) is jinja2.exceptions.TemplateError
        return {"refused": str(error)} if refused else {"failed": str(error)}
    except TypeError as error:
        return {"failed": str(error)}


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "templates"
    expected = {}
    for path in sorted(folder.glob("*.jinja")):
        options = {**DEFAULT, **OPTIONS.get(path.stem, {})}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.BPE()), bos_token=options["bos"], eos_token=options["eos"]
        )
        tokenizer.chat_template = path.read_text(encoding="utf-8")
        expected[path.stem] = {
            "bos_token": options["bos"],
            "eos_token": options["eos"],
            "thinking": options["thinking"],
            "prompts": {
                name: render(tokenizer, conversation, options)
                for name, conversation in CONVERSATIONS.items()
                if name in options.get("conversations", CONVERSATIONS)
            },
        }
    for name, content in [("conversations", CONVERSATIONS), ("expected", expected)]:
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
