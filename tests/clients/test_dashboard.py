"""The chart of the dashboard begins with what the server did before the page was opened."""

import json
import pathlib
import re
import subprocess

PAGE = pathlib.Path(__file__).parents[2] / "crates/server/src/monitor/dashboard.html"


def past(snapshot):
    function = re.search(r"function past\(it\) \{.*?\n\}", PAGE.read_text(), re.DOTALL).group()
    program = f"const POINTS = 120; {function} console.log(JSON.stringify(past({json.dumps(snapshot)})));"
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_the_last_answers_are_spread_over_their_time():
    assert past({"uptime_s": 100, "history": []}) == []
    answer = {"t": 98, "latency": 4, "ctokens": 40}
    assert past({"uptime_s": 100, "history": [answer]}) == [10, 10, 0]
    assert past({"uptime_s": 100, "history": [answer, answer]}) == [20, 20, 0]
    # Older than the chart.
    assert past({"uptime_s": 1000, "history": [answer]}) == []
