"""mlx-lm's server on Weft: several clients at once, streams and whole answers, over 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.frontends.lm import LONGEST, PROGRAMS, SETTINGS, command, need_mlx_lm, run

need_mlx_lm()

PROMPTS = ["one", "the quick brown fox", "in the beginning", "x y z", "two words", "seven"]


class Server:
    """A server in a process of its own, with a model of random weights."""

    def __init__(self, library: str, folder: Path) -> None:
        run(library, PROGRAMS / "lm_folder.py", folder / "model")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = (folder / "log").open("w+")
        (folder / "hub").mkdir()  # where it looks for models to list
        arguments = ["--model", str(folder / "model"), "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command(library), "-m", "mlx_lm", "server", *arguments],
            stdout=self.log, stderr=self.log, env={**os.environ, **SETTINGS, "HF_HUB_CACHE": str(folder / "hub")},
        )  # fmt: skip

    def open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=LONGEST)

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        with self.open(path, body) as answer:
            return json.load(answer)

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The pieces of an answer, as they come."""
        with self.open(path, {**body, "stream": True}) as answer:
            lines = [line.decode().strip() for line in answer]
        pieces = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert pieces[-1] == "[DONE]"
        return [json.loads(piece) for piece in pieces[:-1]]

    def wait(self) -> None:
        end = time.monotonic() + LONGEST
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(urllib.error.URLError, ConnectionError), self.open("/health"):
                return
            time.sleep(0.1)
        raise AssertionError(self.said())

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-4000:]

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
        self.log.close()


def serving(library: str, factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(library, factory.mktemp(library))
    try:
        server.wait()
        yield server
        assert server.process.poll() is None, server.said()
        assert "Traceback" not in server.said(), server.said()
    finally:
        server.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serving("weft", tmp_path_factory)


@pytest.fixture(scope="module")
def alone(server: Server) -> list[str]:
    """What it answers to each prompt when nothing else is asked."""
    return [completion(server, prompt) for prompt in PROMPTS]


def completion(server: Server, prompt: str, count: int = 12) -> str:
    answer = server.ask("/v1/completions", prompt=prompt, max_tokens=count)
    assert answer["usage"]["completion_tokens"] == count
    return answer["choices"][0]["text"]


def streamed(server: Server, prompt: str, count: int = 12) -> str:
    pieces = server.stream("/v1/completions", prompt=prompt, max_tokens=count)
    return "".join(piece["choices"][0]["text"] for piece in pieces)


def chat(server: Server, prompt: str) -> str:
    messages = [{"role": "user", "content": prompt}]
    pieces = server.stream("/v1/chat/completions", messages=messages, max_tokens=6)
    return "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces)


def test_models_are_listed(server: Server) -> None:
    with server.open("/v1/models") as answer:
        assert json.load(answer)["object"] == "list"


def test_clients_at_once_get_what_each_gets_alone(server: Server, alone: list[str]) -> None:
    """Half of them read a stream; the server batches what comes together."""
    together = threading.Barrier(len(PROMPTS), timeout=LONGEST)

    def client(number: int) -> str:
        together.wait()
        return (streamed if number % 2 else completion)(server, PROMPTS[number])

    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        for _ in range(2):
            assert list(clients.map(client, range(len(PROMPTS)))) == alone


def test_a_client_that_goes_away_disturbs_none(server: Server, alone: list[str]) -> None:
    body = {"prompt": PROMPTS[0], "max_tokens": 200, "stream": True}
    with server.open("/v1/completions", body) as answer:
        answer.readline()
    assert completion(server, PROMPTS[1]) == alone[1]


def test_chats_sampling_and_probabilities(server: Server) -> None:
    assert chat(server, "hello") == chat(server, "hello")
    given = {"prompt": "hello", "max_tokens": 6, "temperature": 0.9, "top_p": 0.9, "seed": 5}
    first, again = (server.ask("/v1/completions", **given, logprobs=True, top_logprobs=3) for _ in range(2))
    assert first["choices"] == again["choices"], "the seed decides"
    assert len(first["choices"][0]["logprobs"]["content"]) == 6


def test_what_it_cannot_do_is_an_error_of_the_request(server: Server, alone: list[str]) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        server.ask("/v1/completions", prompt="x", max_tokens=-3)
    assert 400 <= error.value.code < 500
    error.value.close()
    assert completion(server, PROMPTS[2]) == alone[2]


def test_answers_are_those_of_mlx(server: Server, alone: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    for theirs in serving("mlx", tmp_path_factory):
        assert [completion(theirs, prompt) for prompt in PROMPTS] == alone
        assert chat(theirs, "hello") == chat(server, "hello")
