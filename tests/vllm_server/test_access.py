"""What strangers and web pages reach of a real server: each route that it lists, without the key or from another origin."""

from __future__ import annotations

import http.client
import http.server
import json
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, MISSING
from policies import Policy

from verifiers_nb.inference.vllm_access import OPEN
from verifiers_nb.inference.vllm_options import HOST
from verifiers_nb.inference.vllm_policy import VLLMClient, call_server
from verifiers_nb.inference.vllm_server import VLLMServer


def ask(server: VLLMServer, method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Send one request, with an adapter as its body and nothing in its headers but what is given."""
    body = json.dumps({"name": "theirs", "src": "/tmp", "lora_name": "theirs", "lora_path": "/tmp"})
    with closing(http.client.HTTPConnection(HOST, server.port, timeout=30)) as connection:
        connection.putrequest(method, path, skip_host="host" in headers)
        headers = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body.encode())
        answer = connection.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}


@pytest.fixture(scope="module")
def routes(vllm_server: VLLMServer) -> list[tuple[str, str]]:
    """All routes of this server, as it lists them when it starts: method and path."""
    listed = re.findall(r"Route: (\S+), Methods: (.+)", vllm_server.log.read_text())
    found = [
        (method, re.sub(r"\{\w+\}", "x", p)) for p, all in listed for method in all.split(", ")
    ]
    assert {("POST", "/adapters"), ("POST", "/invocations"), ("POST", "/collective_rpc")} < {*found}
    print(f"{len(found)} routes, {len(OPEN)} of them open with the key")
    return found


def test_no_route_answers_a_stranger(vllm_server: VLLMServer, routes: Any) -> None:
    key = {"authorization": f"Bearer {vllm_server.api_key}"}
    strangers = [
        (401, {}),
        (401, {"authorization": "Bearer wrong"}),
        (401, {"content-type": "text/plain"}),
        (403, {"origin": "http://evil.example", **key}),
        (403, {"origin": "null"}),
        (403, {"host": "evil.example", **key}),
    ]
    for method, path in routes:
        for wanted, headers in strangers:
            status, said = ask(vllm_server, method, path, **headers)
            assert status == wanted, (method, path, headers, status)
            assert not [name for name in said if name.startswith("access-control")]
        preflight = {"origin": "http://evil.example", "access-control-request-method": method}
        status, said = ask(vllm_server, "OPTIONS", path, **preflight)
        assert status == 403 and "access-control-allow-origin" not in said


def test_unused_routes_are_closed(vllm_server: VLLMServer, routes: Any) -> None:
    key = {"authorization": f"Bearer {vllm_server.api_key}"}
    closed = [(method, path) for method, path in routes if path not in OPEN]
    assert len(closed) > 30
    assert {ask(vllm_server, *route, **key)[0] for route in closed} == {404}
    assert ask(vllm_server, "GET", "/v1/models", **key)[0] == 200
    assert ask(vllm_server, "GET", "/v1/models", host="localhost", **key)[0] == 200


@pytest.fixture(scope="module")
def page_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A page of somebody else's, at another port."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "index.html").write_text("<p>harmless</p>")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_: Any) -> None: ...

    with socketserver.ThreadingTCPServer((HOST, 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_address[1]}/"
        server.shutdown()


TRY_ALL = """async ([base, routes]) => {
  const seen = [];
  const body = JSON.stringify({name: 'policy-v1', src: '/tmp', lora_name: 'policy-v1', lora_path: '/tmp', load_inplace: true});
  for (const [method, path] of routes) for (const mode of ['cors', 'no-cors', 'same-origin'])
    for (const type of ['text/plain', 'application/json']) try {
      const sends = !['GET', 'HEAD'].includes(method);
      const answer = await fetch(base + path, {method, mode, headers: {'Content-Type': type}, ...(sends ? {body} : {})});
      if (answer.type !== 'opaque' && answer.status < 400) seen.push([method, path, mode, answer.status]);
    } catch (error) {}
  return seen;
}"""


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_a_page_in_a_browser_reaches_nothing(
    vllm_server: VLLMServer, routes: Any, page_url: str
) -> None:
    """From its own address, and with a name that leads to this machine (DNS rebinding)."""
    from playwright.sync_api import sync_playwright

    before = vllm_server.log.read_text()
    with sync_playwright() as playwright:
        rule = "--host-resolver-rules=MAP evil.example 127.0.0.1"
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[rule, "--no-sandbox", "--disable-web-security=0"]
        )
        page = browser.new_page()
        page.goto(page_url)
        assert page.evaluate(TRY_ALL, [f"http://{HOST}:{vllm_server.port}", routes]) == []
        rebound = f"http://evil.example:{vllm_server.port}"
        answer = page.goto(f"{rebound}/docs")
        assert answer is not None and answer.status == 403
        assert page.evaluate(TRY_ALL, [rebound, routes]) == []
        browser.close()
    said = vllm_server.log.read_text().removeprefix(before)
    assert "lora" not in said.lower() and "rpc" not in said and vllm_server.alive


def test_a_replaced_adapter_is_noticed(vllm_server: VLLMServer, tmp_path: Path) -> None:
    """A push notices that the name before it has other weights: anybody with the key could load them."""
    policy = Policy()
    url, key = vllm_server.url, vllm_server.api_key
    client = VLLMClient(url, key, server=vllm_server)
    try:
        client.push(policy.train(1))
        version = client.versions.current
        policy.train(9).save_pretrained(tmp_path)
        theirs = {"lora_name": version.name, "lora_path": str(tmp_path), "load_inplace": True}
        call_server(client, "load_lora_adapter", theirs)
        with pytest.raises(RuntimeError, match=rf"Somebody else replaced {version.name}"):
            client.push(policy.train(2))
        assert client.version == 1
    finally:
        client.close()
