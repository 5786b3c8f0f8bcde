"""Starts TensorBoard on a folder and checks that it serves the events that a training session has written there: four
steps that halve `w = [8, 16]`, of which the first and the third are traced."""
import io
import json
import sys
import time
import urllib.parse
import urllib.request

from PIL import Image
from tensorboard import default, program

STEPS = [1, 2, 3, 4]
DEADLINE = 60

board = program.TensorBoard(default.get_plugins())
board.configure(argv=["tensorboard", "--logdir", sys.argv[1], "--port", "0", "--load_fast", "false"])
SERVER = board.launch()


def get_bytes(path, **query):
    """Returns TensorBoard's answer to a request."""
    query = {"run": ".", **query}
    with urllib.request.urlopen(f"{SERVER}data/{path}?{urllib.parse.urlencode(query)}") as answer:
        return answer.read()


def get_json(path, **query):
    """Returns TensorBoard's answer to a request, parsed as JSON."""
    return json.loads(get_bytes(path, **query))


def passed(name):
    print("ok", name, flush=True)


def wait_until_loaded():
    """Waits until TensorBoard serves the last step's text: it loads events while its server already answers."""
    deadline = time.time() + DEADLINE
    while True:
        notes = get_json("plugin/text/text", tag="note") if get_json("plugin/text/tags").get(".") else []
        if notes and notes[-1]["step"] == STEPS[-1]:
            return
        assert time.time() < deadline, f"not loaded after {DEADLINE} s: {notes}"
        time.sleep(0.05)


def scalars():
    assert "loss" in get_json("plugin/scalars/tags")["."]
    points = get_json("plugin/scalars/scalars", tag="loss")
    # The loss before each step, which is half the sum of squares.
    assert [(step, value) for _, step, value in points] == [(1, 160.0), (2, 40.0), (3, 10.0), (4, 2.5)], points
    times = [at for at, _, _ in points]
    assert times == sorted(times) and abs(times[0] - time.time()) < 600, times
    passed("scalars")


def histograms():
    found = get_json("plugin/histograms/histograms", tag="weights")
    assert [step for _, step, _ in found] == STEPS, found
    for (_, step, buckets) in found:
        assert sum(count for _, _, count in buckets) == 2, buckets
        for value in (8 / 2 ** (step - 1), 16 / 2 ** (step - 1)):
            assert any(count and low <= value <= high for low, high, count in buckets), (value, buckets)
    passed("histograms")


def images():
    [tag] = get_json("plugin/images/tags")["."]
    found = get_json("plugin/images/images", tag=tag, sample=0)
    assert [image["step"] for image in found] == STEPS, found
    query = dict(urllib.parse.parse_qsl(found[-1]["query"]))
    image = Image.open(io.BytesIO(get_bytes("plugin/images/individualImage", **query)))
    assert (image.mode, image.size) == ("RGB", (3, 2)), image
    assert image.tobytes() == bytes(range(0, 180, 10)), image.tobytes()
    passed("images")


def text():
    found = get_json("plugin/text/text", tag="note")
    assert [note["step"] for note in found] == STEPS, found
    assert "a <strong>note</strong>" in found[0]["text"], found[0]
    passed("text")


def graph():
    assert get_json("plugin/graphs/info")["."]["run_graph"], get_json("plugin/graphs/info")
    drawn = get_bytes("plugin/graphs/graph").decode()
    for part in ('name: "w"', 'op: "VarHandleOp"', 'op: "ResourceApplyGradientDescent"', 'name: "w/Assign"'):
        assert part in drawn, f"no {part} in {drawn}"
    passed("graph")


def run_metadata():
    tags = get_json("plugin/graphs/info")["."]["tags"]
    assert sorted(tag for tag, has in tags.items() if has["profile"]) == ["step_1", "step_3"], tags
    traced = get_bytes("plugin/graphs/run_metadata", tag="step_3").decode()
    assert 'device: "/job:localhost/replica:0/task:0/device:CPU:0"' in traced, traced
    assert "ResourceApplyGradientDescent" in traced and "all_end_rel_micros" in traced, traced
    passed("run metadata")


wait_until_loaded()
for check in (scalars, histograms, images, text, graph, run_metadata):
    check()
