"""One request with litellm: `litellm_client.py URL plain|stream`. Runs in its own environment."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the internet for prices

import litellm


def main(url: str, mode: str) -> str:
    question = [{"role": "user", "content": "hello"}]
    about = {"model": "openai/m", "api_base": f"{url}/v1", "api_key": "none", "max_tokens": 5}
    if mode == "plain":
        answer = litellm.completion(messages=question, **about)
        return answer.choices[0].message.content
    stream = litellm.completion(messages=question, stream=True, **about)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


litellm.suppress_debug_info = True
try:
    print(json.dumps({"text": main(*sys.argv[1:])}))
except litellm.exceptions.RateLimitError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
