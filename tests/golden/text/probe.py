"""Drives build/…/text_probe: JSON requests in, JSON answers out."""

import json
import subprocess


class Probe:
    def __init__(self, binary, model):
        self.command = [str(binary), str(model)]

    def ask(self, requests):
        """The answers to a list of requests, in order, from one process."""
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        done = subprocess.run(self.command, input=lines, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        answers = [json.loads(line) for line in done.stdout.split("\n") if line]
        assert len(answers) == len(requests), done.stderr[-2000:]
        return answers

    def encode(self, strings, specials=True):
        return [a["ids"] for a in self.ask([{"encode": s, "specials": specials} for s in strings])]
