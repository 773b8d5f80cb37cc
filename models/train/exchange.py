"""One question and its answer."""

from dataclasses import dataclass


@dataclass
class Exchange:
    category: str
    user: str
    assistant: str
    # How the evaluation judges an answer; without it, the whole answer must occur.
    check: dict | None = None
    # Who asks: "user", or "tool" where a tool's response is what the model answers to.
    role: str = "user"

    def __post_init__(self):
        self.check = self.check or {"has": [self.assistant]}
