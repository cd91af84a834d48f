#!/bin/sh
# The server without a library: its models, a chat, a stream of a chat.
set -eu
key="Authorization: Bearer ${OPENAI_API_KEY:-none}"
url=${OPENAI_BASE_URL:-http://127.0.0.1:8080/v1}

curl -sSf -H "$key" "$url/models"
echo
curl -sSf -H "$key" -H "Content-Type: application/json" "$url/chat/completions" \
  -d '{"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 20}'
echo
curl -sSf -N -H "$key" -H "Content-Type: application/json" "$url/chat/completions" \
  -d '{"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 20, "stream": true}'
