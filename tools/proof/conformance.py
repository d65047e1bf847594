"""schemathesis against /openapi.json: requests that the description allows and some it does not; every answer must be one
that it foresees, and none may be a server's error."""

import json
import re
import subprocess

from server import BUILD, LENIENT, ROOT, Server, tiny_model

PACKAGE = "schemathesis==4.32.5"
ENVIRONMENT = ROOT / "build" / "proof" / "schemathesis"
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance", "unsupported_method")
SECONDS = 600


def version():
    return PACKAGE.replace("==", " ")


def run(folder, examples=40):
    subprocess.run([str(ROOT / "tools" / "proof" / "venv.sh"), str(ENVIRONMENT), PACKAGE], check=True)
    # Answers are cut short: the requests are what counts.
    with Server([BUILD / "sparkinfer", "serve"], tiny_model(), [*LENIENT, "--ctx", "256"],
                folder / "server.log") as server:
        paths = json.loads(server.get("/openapi.json")[2])["paths"]
        done = subprocess.run(
            [str(ENVIRONMENT / "bin" / "schemathesis"), "run", f"{server.url}/openapi.json", "--checks", ",".join(CHECKS),
             "--max-examples", str(examples), "--phases", "examples,coverage,fuzzing", "--workers", "1", "--seed", "1",
             "--continue-on-failure", "--request-timeout", "60", "--report", "junit", "--no-color"],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS * 3, check=False)
        (folder / "schemathesis.log").write_text(done.stdout)
        alive = server.get("/health/live")[0] == 200
    if done.returncode != 0 or not alive:
        raise RuntimeError(f"schemathesis ended with {done.returncode}: {(done.stdout.splitlines() or [''])[-1]}\n"
                           f"{done.stdout[-6000:]}")
    cases = re.search(r"(\d+)\s+generated", done.stdout)
    return {"paths": len(paths), "cases": int(cases.group(1)) if cases else "unknown"}
