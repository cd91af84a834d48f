"""The compiler's complaint."""


class CompileException(Exception):
    """What CuPy raises for a text that does not compile."""
