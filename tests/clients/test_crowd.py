"""A crowd opens, streams and leaves at random; afterwards the server is as it was before.

Ranks return the memory of cleared prefixes to the system, so at rest they are as small as before. The first crowd warms
the server up: its allocator keeps the pages of the largest moment there was, and its caches fill up to their bounds. A
leak grows with every crowd, so memory has to stay the same through one of the later crowds.
"""

import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from conftest import started, wait_until_idle

NUM_CLIENTS = 200
CROWD_SECONDS = float(os.environ.get("JACKALOPE_CROWD_SECONDS", "20"))
# Generous: nothing here measures the machine, it only tells a stuck stream from a slow one.
HANG_SECONDS = 180
REST_SECONDS = 60
# What a crowd may add although nothing leaks: pages that the allocator cannot return. A crowd is a thousand requests: a
# leak of 16 KiB in each adds more.
RSS_ALLOWANCE = 16 << 20
# What a rank of the small model may hold at rest on Linux; during a crowd it holds some 400 MiB.
RANK_BYTES_AT_REST = 96 << 20
# Crowds in which memory must have stopped to grow.
CROWDS_MAX = 5
# Closing sockets and the connections of this test itself.
FILES_ALLOWANCE = 4
# Busy answers, which say when to try again.
BUSY = (429, 503)

WORDS = "river stone cloud lamp garden seven winter bread Oslo quiet music harbour".split()
TOOL = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SHAPES = {
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}},
    "json_object": {"response_format": {"type": "json_object"}},
    "regex": {"guided_regex": "[a-z]{3,12}( [a-z]{3,12}){0,4}"},
    "choice": {"guided_choice": ["yes", "no", "perhaps"]},
}


class Crowd:
    """What two hundred clients do, drawn from one seed, and what became of it."""

    def __init__(self, url, model, seed):
        parts = urlsplit(url)
        self.address = (parts.hostname, parts.port)
        self.model = model
        self.seed = seed
        self.first_bytes = []
        self.outcomes = Counter()
        self.faults = []

    def run(self, seconds):
        asyncio.run(self.gather(seconds))

    async def gather(self, seconds):
        self.ends_at = time.monotonic() + seconds
        await asyncio.gather(*(self.client(random.Random(f"{self.seed}/{number}")) for number in range(NUM_CLIENTS)))

    async def client(self, draw):
        """Repeats one client until the crowd ends."""
        while time.monotonic() < self.ends_at:
            await asyncio.sleep(draw.expovariate(4))
            visit = Visit(self, draw)
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    await visit.go()
            except TimeoutError:
                self.faults.append(f"stuck: {visit}")
            except (ConnectionError, asyncio.IncompleteReadError) as err:
                self.faults.append(f"{err!r}: {visit}")


class Visit:
    """Runs one request of one client."""

    WAYS = {"reads": 36, "leaves": 22, "goes": 8, "never_reads": 8, "reads_slowly": 10, "sends_half": 8, "stays": 8}

    def __init__(self, crowd, draw):
        self.crowd, self.draw = crowd, draw
        self.way = draw.choices(list(self.WAYS), self.WAYS.values())[0]
        self.path, self.body = request(draw, crowd.model)
        self.method = "POST"

    def __str__(self):
        return f"{self.way} {self.path} {json.dumps(self.body)[:300]}"

    async def go(self):
        self.crowd.outcomes["visits"] += 1
        self.crowd.outcomes[self.way] += 1
        is_slow = self.way in ("never_reads", "reads_slowly")
        sock = socket.socket()
        if is_slow:
            # Little fits on the way, so that the server feels who does not read.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.crowd.address)
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=1024 if is_slow else 1 << 16)
        try:
            await getattr(self, self.way)()
        finally:
            # No farewell: whoever leaves with bytes unread resets the connection.
            self.writer.transport.abort()

    async def send(self, share=1.0):
        body = json.dumps(self.body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        # Anthropic's API asks for its version, and others do not mind.
        head += f"anthropic-version: 2023-06-01\r\ncontent-length: {len(body)}\r\n\r\n"
        data = head.encode() + body
        self.sent_at = time.monotonic()
        self.writer.write(data[: max(1, int(len(data) * share))])
        await self.writer.drain()

    async def pieces(self):
        """Reads the body of the answer as it arrives, to its end."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        self.status = int(head.split()[1])
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        self.crowd.outcomes[f"status {self.status}"] += 1
        is_first = True
        left = int(fields.get("content-length", 0))
        while True:
            if "chunked" in fields.get("transfer-encoding", ""):
                left = int(await self.reader.readuntil(b"\r\n"), 16)
            piece = await self.reader.readexactly(left) if left else b""
            if is_first and self.status == 200 and says_something(piece):
                self.crowd.first_bytes.append((self.body.get("stream", False), time.monotonic() - self.sent_at))
                is_first = False
            if "chunked" in fields.get("transfer-encoding", ""):
                await self.reader.readexactly(2)
            if piece:
                yield piece
            if not left or "content-length" in fields:
                return

    async def whole(self):
        answer = b"".join([piece async for piece in self.pieces()])
        if self.status == 200:
            if not is_complete(self.path, self.body, answer):
                self.crowd.faults.append(f"cut off: {self}: …{answer[-300:]}")
        elif self.status not in BUSY:
            self.crowd.faults.append(f"status {self.status}: {self}: {answer[:300]}")

    async def reads(self):
        await self.send()
        await self.whole()

    async def stays(self):
        """Sends several requests on one connection."""
        for _ in range(self.draw.randint(2, 4)):
            await self.send()
            await self.whole()
            self.path, self.body = request(self.draw, self.crowd.model)

    async def leaves(self):
        await self.send()
        wanted = self.draw.randint(1, 3000)
        while 0 < wanted and (piece := await self.reader.read(wanted)):
            wanted -= len(piece)
            if self.body.get("stream") is not True:
                break

    async def goes(self):
        await self.send()
        await asyncio.sleep(self.draw.choice([0, 0.01, 0.1, 1]))

    async def never_reads(self):
        await self.send()
        self.reader._transport.pause_reading()
        await asyncio.sleep(self.draw.uniform(1, 8))

    async def reads_slowly(self):
        await self.send()
        until = time.monotonic() + self.draw.uniform(2, 10)
        while time.monotonic() < until and await self.reader.read(64):
            await asyncio.sleep(self.draw.uniform(0, 0.1))

    async def sends_half(self):
        await self.send(self.draw.uniform(0.05, 0.95))
        await asyncio.sleep(self.draw.choice([0, 0.05, 0.5, 3]))


def request(draw, model):
    """Returns a random path and body of any API and kind."""
    text = " ".join(draw.choices(WORDS, k=draw.choice([3, 3, 8, 40, 200])))
    text = draw.choice(["", "Tell me a story. ", "Tell me a story about the sea and the wind and "]) + text
    messages = [{"role": "user", "content": text}]
    num_tokens = draw.choice([1, 8, 30, 30, 80, 300])
    sampling = {"temperature": draw.choice([0, 0.7, 1.5]), "seed": draw.getrandbits(31)}
    openai = {"model": model, "max_tokens": num_tokens, "stream": draw.random() < 0.7, **sampling}
    goes_on = {"ignore_eos": True} if draw.random() < 0.5 else {}
    kind = draw.choice(["chat", "completions", "messages", "responses", "ollama", "shape", "tools", "embeddings"])
    match kind:
        case "chat":
            more = {"n": draw.choice([1, 1, 3]), "logprobs": draw.random() < 0.2}
            return "/v1/chat/completions", {"messages": messages, **openai, **goes_on, **more}
        case "completions":
            return "/v1/completions", {"prompt": text, "echo": draw.random() < 0.2, **openai, **goes_on}
        case "messages":
            body = {"model": model, "max_tokens": num_tokens, "messages": messages, "stream": openai["stream"]}
            return "/v1/messages", body
        case "responses":
            body = {"model": model, "input": text, "max_output_tokens": max(16, num_tokens)}
            return "/v1/responses", body | {"stream": openai["stream"]}
        case "ollama":
            # A request that does not say wants a stream.
            body = {"model": model, "options": {"num_predict": num_tokens, **sampling}, "stream": openai["stream"]}
            if draw.random() < 0.5:
                return "/api/generate", body | {"prompt": text}
            return "/api/chat", body | {"messages": messages}
        case "shape":
            return "/v1/chat/completions", {"messages": messages, **openai, **SHAPES[draw.choice(list(SHAPES))]}
        case "tools":
            tools = {"tools": [{"type": "function", "function": TOOL}]}
            return "/v1/chat/completions", {
                "messages": messages, **openai, **tools, "tool_choice": draw.choice(["auto", "required"])
            }
        case "embeddings":
            return "/v1/embeddings", {"model": model, "input": [text] * draw.choice([1, 1, 4])}


def says_something(piece):
    """Whether it is a part of the answer: what only breaks the silence comes before the first token too."""
    if piece.startswith(b"{") and b'"done":false' in piece:
        line = json.loads(piece.splitlines()[0])
        return any(line.get("message", line).get(key) for key in ("content", "response", "thinking", "tool_calls"))
    return bool(piece) and not piece.startswith((b":", b"event: ping"))


def is_complete(path, body, answer):
    """Whether an answer ends as its API specifies."""
    if not body.get("stream"):
        return isinstance(json.loads(answer), dict)
    if path.startswith("/api/"):
        return json.loads(answer.splitlines()[-1])["done"] is True
    last = {"/v1/messages": b"event: message_stop\n", "/v1/responses": b"event: response."}
    return last.get(path, b"data: [DONE]\n") in answer[-20000:]


def measures(health, pid):
    """Returns the open files and the memory of the server and of each rank."""
    pids = {"server": pid} | {f"rank {rank['rank']}": rank["pid"] for rank in health["ranks"]}
    return {name: (num_open_files(pid), resident_bytes(pid)) for name, pid in pids.items()}


def num_open_files(pid):
    if Path("/proc").is_dir():
        return len(os.listdir(f"/proc/{pid}/fd"))
    listed = subprocess.run(["lsof", "-p", str(pid), "-F", "f"], stdout=subprocess.PIPE, check=True)
    return sum(line.startswith(b"f") for line in listed.stdout.splitlines())


def resident_bytes(pid):
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], stdout=subprocess.PIPE, check=True)
    return int(shown.stdout) << 10


def at_rest(http, pid, before=None):
    """What the server holds when nobody wants anything, and the prefixes that it kept are given back."""
    health = wait_until_idle(http)
    assert health["kv"]["running_bytes"] == 0, "pages are in use by nobody"
    http.request("DELETE", "/v1/cache").raise_for_status()
    deadline = time.monotonic() + REST_SECONDS
    while True:
        health = http.get("/health").json()
        found = measures(health, pid)
        left = {key: health["kv"][key] for key in ("running_bytes", "kept_bytes", "num_kept")}
        left |= {f"bytes of rank {rank['rank']}": rank["memory"]["kv_bytes"] for rank in health["ranks"]}
        open_files = {name: files for name, (files, _) in found.items()}
        too_many = {name for name, files in open_files.items() if before and before[name][0] + FILES_ALLOWANCE < files}
        if Path("/proc").is_dir():
            ranks = {name: size for name, (_, size) in found.items() if name != "server"}
            left |= {f"MiB of {name}": size >> 20 for name, size in ranks.items() if RANK_BYTES_AT_REST < size}
        if not any(left.values()) and not too_many:
            return found
        assert time.monotonic() < deadline, f"left in memory: {left}; open files: {open_files}, before: {before}"
        time.sleep(0.2)


def grown(before, after):
    """Returns the processes that have more memory than before."""
    return {
        name: f"{before[name][1] >> 20} MiB, then {num_bytes >> 20} MiB"
        for name, (_, num_bytes) in after.items()
        if before[name][1] + RSS_ALLOWANCE < num_bytes
    }


def told(http, model):
    """Returns answers of greedy and seeded requests, which must always be the same."""
    def ask(seed):
        body = {"model": model, "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 60}
        body |= {"seed": seed, "temperature": 1.2 if seed else 0, "ignore_eos": True}
        answer = http.post("/v1/chat/completions", json=body).raise_for_status().json()
        return answer["choices"][0]["message"]

    return [ask(seed) for seed in range(4)]


def percentiles(seconds):
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms, max {max(seconds) * 1000:.0f} ms"


@pytest.fixture
def own(tmp_path):
    """A server for this test alone, whose open files and memory are measured."""
    log = tmp_path / "log"
    with log.open("wb") as stderr, started(stderr=stderr) as ready:
        with httpx.Client(base_url=ready["url"], timeout=HANG_SECONDS) as http:
            yield ready, http, log


def test_a_crowd_leaves_nothing_behind(own, capfd):
    ready, http, log = own
    pid, model = ready["pid"], ready["model"]
    seed = int(os.environ.get("JACKALOPE_CROWD_SEED", random.getrandbits(31)))
    told_before = told(http, model)
    growth, before = [], None
    for number in range(CROWDS_MAX):
        crowd = Crowd(ready["url"], model, f"{seed}/{number}")
        crowd.run(CROWD_SECONDS)
        after = at_rest(http, pid, before)
        with capfd.disabled():
            report(crowd, seed, after)
        assert not crowd.faults, "\n".join(crowd.faults[:20])
        assert NUM_CLIENTS < len(crowd.first_bytes), "a crowd that did not come shows nothing"
        if before and not (growth := [*growth, grown(before, after)])[-1]:
            break
        before = after
    assert not growth[-1], f"memory grows with every crowd: {growth}"
    assert told(http, model) == told_before, "the crowds have changed what the model says"
    counters = http.get("/health").json()["counters"]
    assert counters["failed"] == counters["failures"] == 0, counters
    assert counters["cancelled"] > 0, "nobody has left early"
    text = log.read_text(errors="replace")
    assert "panicked" not in text and "ERROR" not in text, text[-5000:]


def report(crowd, seed, after):
    streams = [seconds for is_stream, seconds in crowd.first_bytes if is_stream]
    print(f"\ncrowd of {NUM_CLIENTS} for {CROWD_SECONDS:.0f} s, JACKALOPE_CROWD_SEED={seed}")
    print("  ", dict(crowd.outcomes))
    if 1 < len(streams):
        print(f"   first byte of {len(streams)} streams: {percentiles(streams)}")
        print(f"   first byte of all {len(crowd.first_bytes)}: {percentiles([it for _, it in crowd.first_bytes])}")
    print("   open files and MiB at rest:", {name: (files, size >> 20) for name, (files, size) in after.items()})
