"""One request with OpenAI's client for Python: `openai_client.py URL plain|stream`."""

import json
import sys

import openai


def main(url: str, mode: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    question = [{"role": "user", "content": "hello"}]
    if mode == "plain":
        answer = client.chat.completions.create(model="m", messages=question, max_tokens=5)
        return answer.choices[0].message.content
    stream = client.chat.completions.create(model="m", messages=question, max_tokens=5, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


try:
    print(json.dumps({"text": main(*sys.argv[1:])}))
except openai.APIStatusError as error:
    print(json.dumps({"error": type(error).__name__, "message": error.message}))
