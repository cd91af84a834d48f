"""Distributions that do what no plugin should do, each with what tensorplug must say about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tensorplug_testing.distributions import plugin_source, write_distribution

ESCAPE = "\\x1b]0;owned\\x07\\x1b[2J"
"""As Python source: sets a terminal's title and clears it."""

RAISES: Mapping[str, str] = {
    "text-raises": "class E(Exception):\n  def __str__(self): raise RuntimeError('no')\nraise E",
    "text-exits": "class E(Exception):\n  def __str__(self): raise SystemExit(3)\nraise E",
    "text-is-no-text": "class E(Exception):\n  def __str__(self): return 5\nraise E",
    "text-recurses": "class E(Exception):\n  def __str__(self): return str(self)\nraise E",
    "repr-raises": "class E(Exception):\n  def __repr__(self): raise ValueError\nraise E(E())",
    "text-is-a-class": "class T(str):\n  def split(self, *a): raise OSError\n"
    "class E(Exception):\n  def __str__(self): return T('x')\nraise E",
    "name-raises": "class M(type):\n  @property\n  def __name__(cls): raise KeyError\n"
    "class E(Exception, metaclass=M): pass\nraise E('x')",
    "name-escapes": f"raise type('E{ESCAPE}', (Exception,), {{}})('x')",
    "text-escapes": f"raise ValueError('{ESCAPE}')",
    "text-surrogate": "raise ValueError('\\udc80')",
    "text-long": "raise ValueError('x' * 10_000_000)",
    "base": "raise BaseException('base')",
    "generator-exit": "raise GeneratorExit",
    "system-exit": "raise SystemExit('bye')",
    "system-exit-object": "raise SystemExit(object())",
    "stop-iteration": "raise StopIteration(5)",
    "cancelled": "import asyncio\nraise asyncio.CancelledError",
    "memory": "raise MemoryError",
    "group": "raise ExceptionGroup('many', [ValueError('one'), OSError('two')])",
    "base-group": "raise BaseExceptionGroup('g', [SystemExit(1), BaseExceptionGroup('h', "
    "[GeneratorExit()])])",
    "recursion": "def f(): f()\nf()",
    "cause-loop": "a, b = ValueError('a'), ValueError('b')\na.__cause__ = b\nb.__cause__ = a\n"
    "raise a",
    "stop-of-ours": "from tensorplug.errors import FormatError\n"
    "class E(FormatError):\n  def __str__(self): raise RuntimeError\nraise E('x')",
}
"""Statements that raise."""

MOMENTS: Mapping[str, str] = {
    "import": "importing ",
    "configure": "tensorplug_configure raised ",
    "score": "tensorplug_score raised ",
    "devices": "tensorplug_devices raised ",
}
"""When they are executed, and how the reason begins."""

CHANGES: Mapping[str, str] = {
    "prints": "print('\\x1b[2J' * 100)",
    "closes-stdout": "import sys\nsys.stdout.close()",
    "closes-stderr": "import os\nos.close(2)",
    "leaves": "import os, tempfile\nd = tempfile.mkdtemp()\nos.chdir(d)\nos.rmdir(d)",
    "clears-environment": "import os\nos.environ.clear()",
    "handles-signals": "import signal\nsignal.signal(signal.SIGINT, lambda *a: None)\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "clears-path": "import sys\nsys.path.clear()",
    "drops-modules": "import sys\nfor n in ('json', 'logging', 'tensorplug.text'): "
    "sys.modules.pop(n, None)",
    "sets-hooks": "import sys\nsys.excepthook = sys.unraisablehook = None",
    "recursion-limit": "import sys\nsys.setrecursionlimit(150)",
    "warns": "import warnings\nwarnings.simplefilter('error')\n",
    "leaves-a-thread": "import threading\nt = threading.Thread(target=threading.Event().wait)\n"
    "t.start()",
}
"""What changes the process, and raises nothing: the plugin works."""

ENDS: Mapping[str, tuple[str, str]] = {
    "exits-at-once": ("import os\nos._exit(0)", "it ends its process with status 0"),
    "segfaults": ("import os\nos.kill(os.getpid(), 11)", "it ends its process with SIGSEGV"),
    "terminates": ("import os\nos.kill(os.getpid(), 15)", "it ends its process with SIGTERM"),
    "hangs": ("import threading\nthreading.Event().wait()", "it hangs: "),
}
"""What ends the process or never returns: only a process of its own survives it."""

RETURNS: Mapping[str, tuple[str, str, str]] = {
    "score-nan": ("score", "return float('nan')", "tensorplug_score gave nan"),
    "score-text": ("score", "return '9'", "tensorplug_score gave '9'"),
    "score-repr": (
        "score",
        "class S:\n      def __repr__(self): raise OSError\n    return S()",
        "tensorplug_score gave something whose repr cannot be read",
    ),
    "score-class": (
        "score",
        "class S(int):\n      def __lt__(self, other): raise OSError('less')\n    return S(5)",
        "checking it raised OSError: less",
    ),
    "refusal-escapes": (
        "score",
        f"return tensorplug.Refusal('{ESCAPE}')",
        "\\x1b]0;owned\\x07\\x1b[2J",
    ),
    "refusal-number": ("score", "return tensorplug.Refusal(5)", "5"),
    "devices-generator": ("devices", "return (x for x in ())", "tensorplug_devices gave <gene"),
    "devices-len": (
        "devices",
        "class L(list):\n      def __iter__(self): raise OSError('iter')\n    return L([1])",
        "checking it raised OSError: iter",
    ),
    "devices-class": (
        "devices",
        "class D:\n      @property\n      def __class__(self): raise OSError('class')\n"
        "    return D()",
        "checking it raised OSError: class",
    ),
    "devices-repr": (
        "devices",
        "class D:\n      def __repr__(self): raise OSError\n    return [D()]",
        "tensorplug_devices gave something whose repr cannot be read, which is not a Device",
    ),
    "device-name": (
        "devices",
        "class D(NullDevice):\n      name = property(lambda self: 1 / 0, lambda self, v: None)\n"
        "    return [D('x:0')]",
        "",
    ),
    "device-memory": (
        "devices",
        "class D(NullDevice):\n      def memory(self): raise GeneratorExit\n"
        "    return [D('{name}:0')]",
        "a device raised GeneratorExit",
    ),
    "version-none": ("version", "None", "api_version = None is not a (major, minor) pair"),
    "version-text": ("version", "'0.1'", "api_version = '0.1' is not a (major, minor) pair"),
    "version-bools": ("version", "(False, True)", "api_version = (False, True) is not a"),
    "version-future": ("version", "(99, 0)", "it speaks plugin interface 99.0"),
    "version-compares": (
        "version",
        "type('V', (int,), {'__eq__': lambda s, o: 1 / 0, '__hash__': int.__hash__})(0), 1",
        "checking it raised ZeroDivisionError",
    ),
}
"""What a hook returns, or `api_version` is, and what the reason must hold."""

METADATA: Mapping[str, str] = {
    "entry-long": "[tensorplug.backends]\n" + "n" * 5000 + " = m",
    "entry-escapes": "[tensorplug.backends]\nb\x1b[2J = m",
    "entry-space": "[tensorplug.backends]\na b = m",
    "entry-no-module": "[tensorplug.backends]\nnomodule = ../../etc",
    "entry-empty": "[tensorplug.backends]\nempty = ",
    "entry-line": "[anything]\nno equals sign",
    "entry-reserved": "[tensorplug.backends]\nbest = m",
}
"""Texts of entry_points.txt that no backend can come of."""

FILES = ("metadata-binary", "metadata-loop", "metadata-none", "entries-folder", "entries-binary")
"""What is wrong with the files of a distribution's metadata."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """One distribution, and what must be said of it."""

    kind: str
    what: str
    moment: str = ""

    @property
    def name(self) -> str:
        """The name of its backend, where it has one that is read."""
        return f"h-{self.what}-{self.moment}".rstrip("-")

    @property
    def ends(self) -> bool:
        """Whether it ends the process it is loaded in."""
        return self.kind == "ends"

    @property
    def states(self) -> tuple[str, ...]:
        """The states that are right."""
        if self.kind == "changes":
            return ("ready", "available")
        if self.what in ("refusal-escapes", "refusal-number"):
            return ("unsupported",)
        if self.what == "version-future":
            return ("incompatible",)
        return ("failed",)

    @property
    def words(self) -> str:
        """What the reason must hold."""
        if self.kind == "raises":
            return MOMENTS[self.moment]
        if self.kind == "ends":
            return ENDS[self.what][1]
        return RETURNS[self.what][2] if self.kind == "returns" else ""

    def write(self, site: Path) -> None:
        """Lay the distribution into a folder."""
        module = self.name.replace("-", "_")
        if self.kind == "metadata":
            write_distribution(site, self.name, entry_points=METADATA[self.what])
            return
        info = write_distribution(
            site,
            self.name,
            entry_points={self.name: module},
            modules={f"{module}.py": self._source()},
        )
        if self.kind == "files":
            _spoil(info, self.what)

    def _source(self) -> str:
        good = f"return [NullDevice('{self.name}:0')]"
        if self.kind == "returns":
            where, text, _ = RETURNS[self.what]
            return plugin_source(**{"devices": good, where: text.replace("{name}", self.name)})
        if self.kind not in ("raises", "changes", "ends"):
            return plugin_source(devices=good)
        text = {**RAISES, **CHANGES, **{k: v[0] for k, v in ENDS.items()}}[self.what]
        if self.moment == "import":
            return f"{plugin_source(devices=good)}\n{text}\n"  # after its own imports
        inside = text.replace("\n", "\n    ")
        if self.moment == "configure":
            hook = f"\n@tensorplug.hookimpl\ndef tensorplug_configure():\n    {inside}\n"
            return plugin_source(devices=good) + hook
        last = good if self.moment == "devices" else "return 10"
        return plugin_source(**{"devices": good, self.moment: f"{inside}\n    {last}"})


def _spoil(info: Path, what: str) -> None:
    """Damage the metadata of a distribution."""
    metadata, entries = info / "METADATA", info / "entry_points.txt"
    if what == "metadata-binary":
        metadata.write_bytes(bytes(range(256)) * 8)
    elif what == "metadata-loop":
        metadata.unlink()
        metadata.symlink_to(metadata.name)
    elif what == "metadata-none":
        metadata.write_text("Metadata-Version: 2.1\n")
    elif what == "entries-folder":
        entries.unlink()
        entries.mkdir()
    elif what == "entries-binary":
        entries.write_bytes(b"[tensorplug.backends]\n\xff\xfe = \x80")
    elif what == "project-escapes":
        metadata.write_text("Metadata-Version: 2.1\nName: x\x1b[31m<script>\nVersion: 1.0\n")


def everything() -> list[Hostile]:
    """Every misdeed at every moment."""
    deeds = {"raises": RAISES, "changes": CHANGES, "ends": ENDS}
    return [
        *(
            Hostile(kind, what, m)
            for kind, named in deeds.items()
            for what in named
            for m in MOMENTS
        ),
        *(Hostile("returns", what) for what in RETURNS),
        *(Hostile("metadata", what) for what in METADATA),
        *(Hostile("files", what) for what in FILES),
    ]
