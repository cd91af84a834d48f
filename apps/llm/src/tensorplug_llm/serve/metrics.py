"""`Metrics`: what the server counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

NAME = "tensorplug_llm"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """Counts of one server."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        model = ("model",)
        self.requests = Counter(
            f"{NAME}_requests", "Answered requests.", ("route", "status"), registry=own
        )
        self.open = Gauge(
            f"{NAME}_open_requests", "Requests that are being answered.", registry=own
        )
        self.running = Gauge(f"{NAME}_running_texts", "Texts that run.", model, registry=own)
        self.waiting = Gauge(f"{NAME}_waiting_texts", "Texts that wait.", model, registry=own)
        self.pages = Gauge(
            f"{NAME}_cache_pages",
            "Pages of the KV cache that running texts hold.",
            model,
            registry=own,
        )
        self.prompt_tokens = Counter(
            f"{NAME}_prompt_tokens", "Tokens of prompts.", model, registry=own
        )
        self.tokens = Counter(f"{NAME}_generated_tokens", "Tokens generated.", model, registry=own)
        self.first_token = Histogram(
            f"{NAME}_first_token_seconds",
            "Time from a request's arrival at the engine to its first token.",
            model,
            buckets=SECONDS,
            registry=own,
        )
        self.between_tokens = Histogram(
            f"{NAME}_between_tokens_seconds",
            "Time between two tokens of a text.",
            model,
            buckets=SECONDS,
            registry=own,
        )

    def text(self) -> bytes:
        """All counts in the format of Prometheus."""
        return generate_latest(self._registry)
