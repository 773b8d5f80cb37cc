"""Asks the held-out questions, greedily, and judges the answers.

    python evaluate.py (--url http://127.0.0.1:8080 | --model ../jackalope-mini) --data DIR [--limit N] [--markdown FILE]

`--url` asks a server of ours; `--model` asks mlx-lm, which computes quantised layers in scalar code where there is no GPU:
minutes become hours. Prints a table of scores by category and answers to look at; `--markdown` writes both for the README.
"""

import argparse
import json
import random
import re
import urllib.request
from collections import defaultdict
from pathlib import Path

import text

MAX_TOKENS = 220


def tool_call(answer: str):
    """The call in an answer, or None if there is not exactly one well-formed call."""
    found = re.fullmatch(r"\s*<tool_call>\n(.*)\n</tool_call>\s*", answer, re.DOTALL)
    return parsed(found.group(1)) if found else None


def parsed(answer: str):
    try:
        return json.loads(answer)
    except ValueError:
        return None


def has(answer: str, words: list[str]) -> bool:
    """Whether all words occur, as words."""
    return all(re.search(r"(?<!\w)" + re.escape(word) + r"(?!\w)" if word[-1:].isalnum() else re.escape(word), answer, re.IGNORECASE)
               for word in words)


def right(check: dict, answer: str) -> bool:
    [(kind, wanted)] = check.items()
    if kind == "has":
        return has(answer, wanted) and "<tool_call>" not in answer
    if kind == "no_call":
        return has(answer, wanted) and "<tool_call>" not in answer
    if kind == "number":
        return bool(re.search(rf"= {wanted}\.$", answer))
    if kind == "story":
        return has(answer, [wanted]) and answer.count(".") >= 4
    if kind == "list":
        return len(set(re.split(r", | and ", answer.rstrip(".")))) == wanted
    if kind == "json":
        return parsed(answer) == wanted
    if kind == "json_list":
        value, (key, n) = parsed(answer), wanted
        return isinstance(value, dict) and list(value) == [key] and len(set(value[key])) == len(value[key]) == n
    if kind == "tool_call":
        return tool_call(answer) == wanted
    raise ValueError(kind)


def ask_server(url: str, case: dict) -> tuple[str, bool]:
    """(answer, whether the model ended it by itself)."""
    body = {"prompt": text.render(case, add_generation_prompt=True), "max_tokens": MAX_TOKENS, "temperature": 0}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        choice = json.load(response)["choices"][0]
    return choice["text"], choice["finish_reason"] == "stop"


def ask_mlx_lm(model, tokenizer, case: dict) -> tuple[str, bool]:
    """(answer, whether the model ended it by itself)."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    prompt = tokenizer.apply_chat_template(case["messages"], tools=case["tools"], add_generation_prompt=True, tokenize=False)
    assert prompt == text.render(case, add_generation_prompt=True), "training and use must render alike"
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    answer = []
    for token, _ in generate_step(mx.array(ids), model, max_tokens=MAX_TOKENS):
        if token in tokenizer.eos_token_ids:
            return tokenizer.decode(answer), True
        answer.append(int(token))
    return tokenizer.decode(answer), False


def one_line(value: str) -> str:
    return value.replace("\n", "⏎").replace("|", "\\|")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--url", help="where a server is, without /v1")
    who.add_argument("--model", type=Path, help="a checkpoint for mlx-lm")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="ask only so many, drawn at random")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    if args.model:
        from mlx_lm import load
        asked = load(str(args.model))
    cases = [json.loads(line) for line in (args.data / "heldout.jsonl").read_text().splitlines()]
    if args.limit:
        cases = random.Random(0).sample(cases, args.limit)

    results = defaultdict(list)
    for case in cases:
        answer, ended = ask_mlx_lm(*asked, case) if args.model else ask_server(args.url, case)
        results[case["category"]].append((right(case["check"], answer) and ended, case, answer))

    lines = ["| Category | Right | Asked |", "|---|---|---|"]
    for category, rows in sorted(results.items()):
        good = sum(ok for ok, _, _ in rows)
        lines.append(f"| {category} | {good} ({100 * good / len(rows):.0f} %) | {len(rows)} |")
    total = [ok for rows in results.values() for ok, _, _ in rows]
    lines += [f"| **all** | {sum(total)} ({100 * sum(total) / len(total):.0f} %) | {len(total)} |", "",
              "| Category | Last message | Answer | Right |", "|---|---|---|---|"]
    for category, rows in sorted(results.items()):
        wrong, good = [r for r in rows if not r[0]], [r for r in rows if r[0]]
        for ok, case, answer in good[:2] + wrong[:2]:
            verdict = "yes" if ok else f"no: {one_line(str(case['want']))}"
            lines.append(f"| {category} | {one_line(case['messages'][-1]['content'])} | {one_line(answer)} | {verdict} |")
    print("\n".join(lines))
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
