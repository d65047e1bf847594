"""The systemd unit and the Kubernetes example, as far as they can be checked without either.

Risk: an example with a flag or a path of probes that the server does not have, or a unit that is less locked up than it says.
"""

import re
import shutil
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "sparkinfer.service"
MANIFEST = ROOT / "deploy" / "kubernetes" / "sparkinfer.yaml"
MOST_EXPOSED = 20  # tenths; what systemd-analyze calls OK


def flags_of(binary):
    return set(re.findall(r"--[a-z-]+", subprocess.run([binary, "serve", "--help"], capture_output=True, text=True,
                                                       check=True).stdout))


def test_unit_uses_flags_that_exist(binary):
    start = next(line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    assert set(re.findall(r"--[a-z-]+", start)) <= flags_of(binary)


def test_unit_is_locked_up():
    text = UNIT.read_text()
    for line in ("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert f"\n{line}\n" in text
    if shutil.which("systemd-analyze"):
        command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(UNIT)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-500:]


def test_manifest(binary):
    parts = {part["kind"]: part for part in yaml.safe_load_all(MANIFEST.read_text())}
    assert set(parts) == {"Deployment", "Service", "PodDisruptionBudget"}
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert {argument for argument in container["args"] if argument.startswith("--")} <= flags_of(binary)
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/health/ready", "readinessProbe": "/health/ready", "livenessProbe": "/health/live"}
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    for part in ("Service", "PodDisruptionBudget"):
        selector = parts[part]["spec"]["selector"]
        assert selector.get("matchLabels", selector) == parts["Deployment"]["spec"]["selector"]["matchLabels"]
