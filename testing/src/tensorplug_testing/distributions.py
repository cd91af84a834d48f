"""Writes installed distributions into a folder: metadata and modules, without pip."""

from collections.abc import Mapping, Sequence
from pathlib import Path

PLUGIN = """
import tensorplug
from tensorplug_testing.null import NullDevice

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score():
    {score}


@tensorplug.hookimpl
def tensorplug_devices():
    {devices}
"""


def plugin_source(
    *,
    score: str = "return 10",
    devices: str = "return [NullDevice('acme:0')]",
    version: str = "(0, 1)",
    top: str = "",
) -> str:
    """The text of a plugin module. `score` and `devices` are the bodies of its functions."""
    text = PLUGIN.format(score=score, devices=devices).replace("(0, 1)", version)
    return f"{top}\n{text}" if top else text


def write_distribution(
    folder: Path,
    project: str,
    *,
    entry_points: Mapping[str, str] | str,
    modules: Mapping[str, str] | None = None,
    version: str = "1.0",
    requires: Sequence[str] = (),
) -> Path:
    """Write `project` into `folder` as pip would install it, and return its metadata folder.

    `entry_points` are those of the group `tensorplug.backends`, or the whole text of the file
    `entry_points.txt`. `modules` maps file names to texts.
    """
    info = folder / f"{project.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {project}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if not isinstance(entry_points, str):
        pairs = (f"{name} = {value}" for name, value in entry_points.items())
        entry_points = "\n".join(["[tensorplug.backends]", *pairs])
    (info / "entry_points.txt").write_text(entry_points + "\n")
    for name, text in (modules or {}).items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return info
