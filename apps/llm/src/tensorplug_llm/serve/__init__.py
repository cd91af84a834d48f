"""A server that speaks OpenAI's API over HTTP, with one engine for each model."""
