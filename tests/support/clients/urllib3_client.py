"""One request with urllib3: `urllib3_client.py URL plain|retry`.

`plain` is what everyone gets; a POST is never sent twice. `retry` allows it: `Retry(3,
allowed_methods=None)`.
"""

import json
import sys

import urllib3


def main(url: str, mode: str) -> str:
    retries = urllib3.Retry(3, allowed_methods=None) if mode == "retry" else None
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    pool = urllib3.PoolManager()
    answer = pool.request("POST", f"{url}/v1/chat/completions", json=body, retries=retries)
    document = answer.json()
    if answer.status != 200:
        return json.dumps({"error": str(answer.status), "message": document["error"]["message"]})
    return json.dumps({"text": document["choices"][0]["message"]["content"]})


try:
    print(main(*sys.argv[1:]))
except urllib3.exceptions.HTTPError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
