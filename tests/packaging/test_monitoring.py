"""The dashboard and the alerts ask for metrics that a real server has; Prometheus reads both."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

PACKAGING = Path(__file__).parent.parent.parent / "packaging"
RULES = PACKAGING / "prometheus"
METRIC = re.compile(r"(?:vllm:|jackalope_)[a-z_]+")
WAIT_SECONDS = 120


@pytest.fixture(scope="module")
def server(tree):
    """A server of the archive with two ranks, which has answered something; its URL."""
    model = tree / "share/jackalope/models/jackalope-mini"
    command = [tree / "bin/jackalope", "serve", "--model", model, "--ranks", "2", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = json.loads(process.stdout.readline())["url"]
        body = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
        for path, expected in [("/v1/chat/completions", 200), ("/nothing", 404)]:
            request = urllib.request.Request(
                url + path, json.dumps(body).encode(), {"content-type": "application/json"}
            )
            try:
                assert urllib.request.urlopen(request, timeout=WAIT_SECONDS).status == expected
            except urllib.error.HTTPError as err:
                assert err.code == expected
        yield url
        process.terminate()
        process.wait(WAIT_SECONDS)


def promtool():
    if not shutil.which("promtool"):
        pytest.skip("promtool (Debian: prometheus) is missing: the rules were NOT checked by it")
    return "promtool"


def test_every_metric_of_the_dashboard_and_of_the_alerts_exists(server):
    text = urllib.request.urlopen(server + "/metrics", timeout=10).read().decode()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    dashboard = json.loads((PACKAGING / "grafana/jackalope.json").read_text())
    expressions = [it["expr"] for panel in dashboard["panels"] for it in panel["targets"]]
    assert len(expressions) > 20
    rules = re.findall(r"expr: (.*)", (RULES / "alerts.yml").read_text())
    for expression in expressions + rules:
        for name in METRIC.findall(expression):
            family = name if name in families else name.removesuffix("_bucket")
            assert family in families, f"{name} of {expression}"
    labels = {"rank": "jackalope_rank_silent_seconds", "status": "jackalope_http_requests_total"}
    for label, name in labels.items():
        assert re.search(rf"^{name}\{{[^}}]*{label}=", text, re.M), f"{name} has no label {label}"


def test_panels_do_not_overlap_and_have_their_own_numbers():
    panels = json.loads((PACKAGING / "grafana/jackalope.json").read_text())["panels"]
    assert len({it["id"] for it in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (it["gridPos"] for it in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def test_promtool_accepts_the_rules_and_their_tests(run):
    tool = promtool()
    for words in [["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]]:
        done = run(tool, *words, cwd=RULES)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def test_promtool_accepts_the_metrics_of_a_server(server, run):
    tool = promtool()
    text = urllib.request.urlopen(server + "/metrics", timeout=10).read().decode()
    # `check metrics` also has opinions on names, which are those of vLLM: only errors of syntax count.
    done = run(tool, "check", "metrics", input=text)
    assert "error while linting" not in done.stderr and "parsing error" not in done.stderr, done.stderr


def test_a_real_prometheus_scrapes_the_server(server, tmp_path, run):
    if not shutil.which("prometheus"):
        pytest.skip("prometheus is missing: no server was scraped by it")
    config = (RULES / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:8080", server.removeprefix("http://")).replace("15s", "1s")
    (tmp_path / "prometheus.yml").write_text(config)
    shutil.copy(RULES / "alerts.yml", tmp_path)
    with open(tmp_path / "log", "w") as log:
        command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0"]
        with subprocess.Popen(command, cwd=tmp_path, stderr=log, stdout=log) as process:
            try:
                deadline = time.monotonic() + WAIT_SECONDS
                found = None
                while found is None and time.monotonic() < deadline:
                    port = re.search(r'address=\S*?127\.0\.0\.1:([1-9]\d*)', (tmp_path / "log").read_text())
                    time.sleep(0.2)
                    found = port and value_of(port.group(1), "jackalope_up")
                assert found == "1", (tmp_path / "log").read_text()[-2000:]
            finally:
                process.terminate()


def value_of(port, query):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={query}", timeout=5) as answer:
            result = json.load(answer)["data"]["result"]
    except OSError:
        return None
    return result[0]["value"][1] if result else None
