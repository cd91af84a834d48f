"""Choices on disk: never trusted blindly, and never half written."""

import json
import threading

import pytest

from tensorplug.system import cache
from tensorplug.system.cache import VARIABLE, Cache
from tensorplug_simt.choices import ChoiceFile, texts_id

IDENTITY = {"device": "a GPU", "driver": "1"}
CACHE = Cache("gpus", ".bin")


@pytest.fixture
def file(monkeypatch, tmp_path) -> ChoiceFile:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return ChoiceFile(CACHE, IDENTITY)


DAMAGED = {
    "empty": b"",
    "cut off": b'{"for": ',
    "a list": b"[]",
    "of another device": b'{"for": {}, "choices": {"a": "wide"}}',
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_count_as_empty_and_are_replaced(file, content):
    CACHE.write(file.name, content)

    before = dict(file.read())
    file.add({"a": "wide"})

    assert before == {}
    assert file.read() == {"a": "wide"}


@pytest.mark.parametrize("choices", [None, [], {"a": 3}, "wide"])
def test_choices_that_are_no_names_count_as_none(file, choices):
    CACHE.write(file.name, json.dumps({"for": IDENTITY, "choices": choices}).encode())

    assert file.read() == {}


def test_class_is_tried_by_one_at_a_time(file):
    first = file.begin("a")
    meanwhile = [file.begin(kind) for kind in "ab"]
    file.end("a")

    assert (first, meanwhile) == (True, [False, True])
    assert file.begin("a")


def test_mark_of_a_class_that_is_tried_is_no_choice_and_no_writer_loses_it(file):
    file.begin("a")

    file.add({"b": "group"})

    assert file.read() == {"b": "group"}
    assert not file.begin("a")
    assert len(list(CACHE.folder.glob("choices-*.json"))) == 2


def test_classes_are_tried_where_marks_cannot_be_written(file, tmp_path):
    (tmp_path / CACHE.name).touch()

    assert file.begin("a")
    file.end("a")
    assert file.begin("a")


def test_choices_of_another_driver_are_another_file_s(file):
    file.add({"a": "wide"})

    assert ChoiceFile(CACHE, {**IDENTITY, "driver": "2"}).read() == {}


def test_readers_never_see_half_a_file_while_others_write(file):
    def write(name):
        for i in range(10):
            file.add({f"{name} {i}": "wide"})

    file.add({"first": "wide"})
    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    seen = [file.read() for _ in range(50)]
    for writer in writers:
        writer.join()

    assert all(choices.get("first") == "wide" for choices in seen)
    assert [path.name for path in CACHE.folder.iterdir()] == [file.name]


def test_nothing_happens_where_nothing_can_be_written(file, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(cache.tempfile, "mkstemp", full)

    file.add({"a": "wide"})

    assert file.read() == {}


def test_texts_have_another_name_once_they_differ():
    one, other = "tensorplug_simt:kernels/copy.k", "tensorplug_simt:kernels/conv.k"

    assert texts_id([one]) == texts_id([one])
    assert len({texts_id(names) for names in ([one], [other], [one, other])}) == 3
