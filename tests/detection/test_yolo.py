"""The reader's own weights: opened if they are what they should be, refused with a reason and an offer if not."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from metallab import paths
from metallab.detection import boxes, detector, scenes, video, yolo


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.delenv("YOLO_WEIGHTS", raising=False)
    monkeypatch.setenv("YOLO_OFFLINE", "1")


def test_the_default_or_a_file_is_opened(tmp_path, monkeypatch):
    """A file as ultralytics writes it: the network itself, pickled in half precision."""
    shipped = yolo.open_model()
    assert list(shipped.names.values()) == list(scenes.CLASSES)
    assert torch.equal(shipped.state_dict()["model.0.conv.weight"], detector.load().state_dict()["model.0.conv.weight"])
    other = detector.build()
    other.names = dict(enumerate("abcdef"))
    other.args = {}  # as in a checkpoint of ultralytics
    torch.save({"model": other.half()}, tmp_path / "mine.pt")
    monkeypatch.setenv("YOLO_WEIGHTS", str(tmp_path / "mine.pt"))
    mine = yolo.open_model()
    assert list(mine.names.values()) == list("abcdef")
    assert not mine.training
    assert {p.dtype for p in mine.parameters()} == {torch.float32}
    assert list(yolo.open_model("").names.values()) == list(scenes.CLASSES), "what is given counts more"


def test_a_detector_is_a_file_for_ultralytics(tmp_path, monkeypatch):
    import ultralytics

    monkeypatch.setattr(yolo.paths, "BUILD", tmp_path)
    shipped = yolo.open_model()
    theirs = ultralytics.YOLO(yolo.to_file(shipped))
    assert theirs.names == shipped.names
    assert all(torch.equal(a, b.float()) for a, b in zip(shipped.parameters(), theirs.model.parameters(), strict=True))
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["detector_of_page_08.pt"]


def test_the_script_of_page_08_runs_on_a_film(tmp_path, capsys):
    """As a reader pastes it, with a film and weights of their own, on the CPU."""
    (page,) = paths.NOTEBOOKS.glob("08_*.ipynb")
    (text,) = [cell.source for cell in nbformat.read(page, as_version=4).cells if cell.id == "recipe-read"]
    script = text.partition("```python\n")[2].partition("```")[0]
    frames = [scene.image for scene in scenes.video(3, 5, (96, 160))]
    film = video.write_film(tmp_path / "holiday.mp4", frames, 10)
    for old, new in (
        ("source = 0 ", f"source = {str(film)!r} "),
        ('"yolov5nu.pt"', repr(str(yolo.to_file(detector.load())))),
        ('("cpu", "mps")', '("cpu",)'),
        ('Path.home() / "detected"', repr(str(tmp_path / "runs"))),
    ):
        assert script.count(old) == 1
        script = script.replace(old, new)
    exec(compile(script, "script", "exec"), {})
    folder = re.search(r"^cpu: [0-9.]+ frames/s\nwith boxes in (.+)$", capsys.readouterr().out, re.MULTILINE)[1]
    assert Path(folder).parent == tmp_path / "runs", "where the page says"
    written = list(Path(folder).iterdir())
    assert [len(video.open_source(str(path)).take(99)) for path in written] == [5]


def test_what_cannot_be_opened_is_told_and_the_default_offered(tmp_path, monkeypatch):
    from ultralytics.nn.tasks import ClassificationModel, PoseModel

    (tmp_path / "torn.pt").write_text("not a pickle")
    (tmp_path / "weights.safetensors").write_text("x")
    torch.save({"model": ClassificationModel("yolov8n-cls.yaml", verbose=False)}, tmp_path / "classes.pt")
    torch.save({"model": PoseModel("yolov8n-pose.yaml", verbose=False)}, tmp_path / "pose.pt")
    (tmp_path / "evil.pt").write_bytes(evil(tmp_path / "ran"))
    for name, message in (
        ("none.pt", r"no such file here: give its whole path, .* set YOLO_OFFLINE=0"),
        ("torn.pt", "torn.pt cannot be used"),
        ("weights.safetensors", "no .pt file"),
        ("classes.pt", "holds a ClassificationModel, no detector of boxes"),
        ("pose.pt", "holds a PoseModel, no detector"),
        ("evil.pt", "evil.pt cannot be used"),
    ):
        with pytest.raises(detector.BadWeights, match=message) as caught:
            yolo.open_model(str(tmp_path / name))
        assert "unset YOLO_WEIGHTS for the detector that comes with this project" in str(caught.value)
    assert not (tmp_path / "ran").exists(), "code in a file of weights was run"
    monkeypatch.setenv("YOLO_OFFLINE", "0")
    asked = []
    monkeypatch.setattr("ultralytics.YOLO", lambda path: asked.append(path) or unreachable())
    with pytest.raises(detector.BadWeights, match=r"yolov5nu.pt cannot be used: no network; .* unset"):
        yolo.open_model("yolov5nu.pt")
    assert asked == [yolo.paths.BUILD / "weights" / "yolov5nu.pt"]


def evil(mark):
    """A pickle that writes a file when it is opened."""

    class Opens:
        def __reduce__(self):
            return (exec, (f"open({str(mark)!r}, 'w')",))

    file = io.BytesIO()
    torch.save({"model": Opens()}, file)
    return file.getvalue()


def unreachable():
    raise ConnectionError("no network\nsecond line")


def test_a_box_comes_back_to_where_it_was():
    """A white rectangle in a frame of another shape: found in the padded picture, it lies on the rectangle again."""
    for height, width in ((500, 700), (1200, 900), (384, 640)):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[100:300, 200:450] = 255
        (picture, other) = batch = yolo.prepare([frame, frame[:, ::-1]], 384, 640)
        assert batch.shape == (2, 384, 640, 3)
        assert not np.array_equal(picture, other)
        white = np.argwhere((picture > 200).all(axis=2))
        (top, left), (bottom, right) = white.min(axis=0), white.max(axis=0) + 1
        box = torch.tensor([[left, top, right, bottom, 0.9, 1]], dtype=torch.float32)
        kept = box.clone()
        back = yolo.to_frame(box, frame, 384, 640)
        assert torch.equal(box, kept)
        assert torch.allclose(back[0, :4], torch.tensor([200.0, 100, 450, 300]), atol=3)
        assert back[0, 4:].tolist() == kept[0, 4:].tolist()


def test_ultralytics_own_way_finds_the_same(tmp_path, monkeypatch):
    """Its predictor on the shipped network, against the stages of notebook 08; it writes nothing to where it runs."""
    import ultralytics

    monkeypatch.setattr(yolo.paths, "BUILD", tmp_path / "build")
    (tmp_path / "here").mkdir()
    here = os.getcwd()
    os.chdir(tmp_path / "here")
    try:
        network = detector.load()
        image = scenes.still(7, (384, 640)).image
        settings = {"imgsz": (384, 640), "conf": 0.25, "iou": 0.6, "device": "cpu", "verbose": False}
        theirs = ultralytics.YOLO(yolo.to_file(network)).predict(image[..., ::-1], **settings)[0]
        with torch.no_grad():
            ours = detector.detections(network(detector.to_input([image])))[0]
        ours = yolo.to_frame(ours, image, 384, 640)
        assert torch.allclose(theirs.boxes.data, ours, atol=1e-2)
        assert {"preprocess", "inference", "postprocess"} <= theirs.speed.keys()
        assert not list((tmp_path / "here").iterdir())
    finally:
        os.chdir(here)


def test_what_is_drawn_is_where_it_should_be():
    frame = np.full((240, 320, 3), 90, np.uint8)
    detected = np.array([[40, 60, 140, 160, 0.9, 0], [280, 0, 319, 30, 0.5, 1]])
    drawn = yolo.draw(frame, detected, {0: "ball"})
    assert (frame == 90).all(), "the frame itself stays as it was"
    assert tuple(drawn[110, 40]) == tuple(drawn[160, 90]) == yolo.COLOURS[0]
    assert tuple(drawn[110, 90]) == (90, 90, 90)
    assert (drawn[:30, 280:] == yolo.COLOURS[1]).all(axis=2).any()
    captioned = boxes.captioned(frame, "CPU: 10 frames/s")
    assert (frame == 90).all()
    assert tuple(captioned[238, 1]) == (0, 0, 0)
    assert (captioned[220:] > 200).any()
