#!/usr/bin/env bash
# Codex and Claude Code, unmodified and headless, against this server on loopback.
set -euo pipefail
folder="$PWD/.cache/agents"
mkdir -p "$folder"
if ! command -v npm >/dev/null; then
  echo "not run: there is no npm: install the package npm" >&2
  exit 0
fi
if ! npm install --prefix "$folder" --no-audit --no-fund --loglevel=error \
  @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.197; then
  echo "not run: npm cannot install Codex and Claude Code" >&2
  exit 0
fi
AGENTS="$folder/node_modules/.bin" "$VENV/bin/python" -m pytest -q tests/serving/real_agents.py
