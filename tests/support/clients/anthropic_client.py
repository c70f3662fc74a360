"""One request with Anthropic's client for Python: `anthropic_client.py URL plain|stream`."""

import json
import sys

import anthropic


def main(url: str, mode: str) -> str:
    client = anthropic.Anthropic(base_url=url, api_key="none")
    question = [{"role": "user", "content": "hello"}]
    if mode == "plain":
        answer = client.messages.create(model="m", messages=question, max_tokens=5)
        return "".join(block.text for block in answer.content)
    with client.messages.stream(model="m", messages=question, max_tokens=5) as stream:
        return "".join(stream.text_stream)


try:
    print(json.dumps({"text": main(*sys.argv[1:])}))
except anthropic.APIStatusError as error:
    print(json.dumps({"error": type(error).__name__, "message": error.message}))
