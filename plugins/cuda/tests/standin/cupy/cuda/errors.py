"""The compiler's complaint; CuPy has it in `compiler`, which needs the kernels here."""


class CompileException(Exception):
    """What CuPy raises for a text that does not compile."""
