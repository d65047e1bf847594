"""Risk: `pull` keeps a wrong file, loses what it has, asks somebody unasked, or writes outside of its folder."""

import hashlib
import json
import random
import re
import signal
import ssl
import subprocess
import time

import pytest
from mirror import Mirror
from terminal import Terminal

BODY = random.Random(7).randbytes(3 << 20)
NAME = "small model.gguf"


def manifest(tmp_path, *files):
    entries = [{"file": n, "bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for n, b in files]
    path = tmp_path / "files.json"
    path.write_text(json.dumps({"models": [{"name": "small", "files": entries}]}))
    return path


@pytest.fixture
def mirror():
    server = Mirror({"small%20model.gguf": BODY, "second.gguf": b"x" * 1000})
    yield server
    server.close()


@pytest.fixture
def pull(execute, tmp_path):
    """Pulls the small model into tmp_path/to."""

    def run(source, *arguments, files=((NAME, BODY),), **more):
        listed = manifest(tmp_path, *files)
        to = tmp_path / "to"
        return execute("pull", "small", "--manifest", listed, "--from", source, "--to", to, *arguments, **more)

    return run


def test_what_is_known_is_listed_and_nobody_is_asked(execute, refused):
    code, out, _ = execute("pull")
    assert code == 0
    assert "98362432 bytes  sha256 b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53" in out.decode()
    assert "no --from says where" in refused(2, "pull", "smollm2-135m")
    assert "did you mean 'smollm2-135m'" in refused(2, "pull", "smollm-135m", "--from", "/nowhere")
    assert "expected http:// or https://" in refused(2, "pull", "smollm2-135m", "--from", "ftp://mirror.example")
    wrong = refused(2, "pull", "smollm2-135m", "--from", "http://mirror.example", "--tls-ca", "ca.pem")
    assert "--tls-ca is for https" in wrong


def test_from_a_mirror(pull, mirror, tmp_path):
    files = ((NAME, BODY), ("second.gguf", b"x" * 1000))
    code, out, err = pull(mirror.url, files=files)
    assert code == 0, err
    assert out.decode().strip() == str(tmp_path / "to" / NAME)
    assert (tmp_path / "to" / NAME).read_bytes() == BODY
    assert (tmp_path / "to" / "second.gguf").read_bytes() == b"x" * 1000
    assert sorted(p.name for p in (tmp_path / "to").iterdir()) == ["second.gguf", NAME]
    code, _, err = pull(mirror.url, files=files)
    assert code == 0 and err.count(b"is there already") == 2
    assert len(mirror.requests) == 2, "what is there is not asked for again"


def test_broken_connections_go_on_where_they_ended(pull, mirror, tmp_path):
    mirror.break_after = 1 << 20
    code, _, err = pull(mirror.url)
    assert code == 0, err
    assert (tmp_path / "to" / NAME).read_bytes() == BODY
    assert [wanted for _, wanted in mirror.requests] == [None, "bytes=1048576-", "bytes=2097152-"]


def test_a_server_without_ranges_begins_anew(pull, mirror, tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / f"{NAME}.part").write_bytes(b"wrong" * 1000)
    mirror.ranges = False
    assert pull(mirror.url)[0] == 0
    assert (tmp_path / "to" / NAME).read_bytes() == BODY


def test_wrong_bytes_are_not_kept(pull, mirror, tmp_path):
    mirror.files["small%20model.gguf"] = BODY[:-1] + bytes([BODY[-1] ^ 1])
    code, out, err = pull(mirror.url)
    assert code == 3 and out == b"" and b"expected" in err and b"sha256" in err
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize("length", [0, len(BODY) - 1, len(BODY) + 1])
def test_another_length_is_refused(pull, mirror, tmp_path, length):
    mirror.files["small%20model.gguf"] = (BODY + b"more")[:length]
    code, out, _ = pull(mirror.url)
    assert code == 3 and out == b""
    assert not (tmp_path / "to" / NAME).exists()


def test_what_a_server_refuses_is_said(pull, mirror, tmp_path):
    mirror.files.clear()
    code, _, err = pull(mirror.url)
    assert code == 3 and b"status 404" in err
    assert list((tmp_path / "to").iterdir()) == [], "an empty beginning is not kept"
    assert len(mirror.requests) == 1, "asking again would not help"


def test_no_server_is_out_of_resources(pull, mirror):
    mirror.close()
    code, _, err = pull(mirror.url)
    assert code == 4 and b"cannot connect" in err and b"kept" not in err


def openssl(folder, *arguments):
    subprocess.run(["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A folder with an authority (ca.pem), another one (other.pem), and certificates of the first for several names."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ca", "other"):
        openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 2,
                "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem",
                "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    for name, holder in (("good", "IP:127.0.0.1,DNS:localhost"), ("stranger", "DNS:mirror.example"), ("old", "IP:127.0.0.1")):
        openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=mirror",
                "-addext", f"subjectAltName={holder}", "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        days = -1 if name == "old" else 2
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", days,
                "-copy_extensions", "copy", "-out", f"{name}.pem")  # fmt: skip
    return folder


@pytest.fixture
def tls_mirror(authority):
    """Starts mirrors with one of the authority's certificates."""
    servers = []

    def start(name="good", newest=None):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(authority / f"{name}.pem", authority / f"{name}.key")
        if newest:
            tls.minimum_version, tls.maximum_version = ssl.TLSVersion.TLSv1, newest
            tls.set_ciphers("ALL:@SECLEVEL=0")
        servers.append(Mirror({"small%20model.gguf": BODY}, tls))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_over_tls(pull, tls_mirror, authority, tmp_path):
    mirror = tls_mirror()
    code, out, err = pull(mirror.url, "--tls-ca", authority / "ca.pem")
    assert code == 0, err
    assert (tmp_path / "to" / NAME).read_bytes() == BODY
    (tmp_path / "to" / NAME).unlink()
    by_name = mirror.url.replace("127.0.0.1", "localhost")
    assert pull(by_name, "--tls-ca", authority / "ca.pem")[0] == 0


def test_resuming_over_tls(binary, pull, tls_mirror, authority, tmp_path):
    mirror = tls_mirror()
    mirror.break_after = 1 << 20
    code, _, err = pull(mirror.url, "--tls-ca", authority / "ca.pem")
    assert code == 0, err
    assert (tmp_path / "to" / NAME).read_bytes() == BODY
    begins = [int(re.search(r"\d+", wanted)[0]) if wanted else 0 for _, wanted in mirror.requests]
    assert len(begins) >= 3 and begins == sorted(begins) and begins[0] == 0 < begins[1], "each goes on behind the one before"
    (tmp_path / "to" / NAME).unlink()
    mirror.break_after, mirror.slow = None, 0.1
    listed, to = manifest(tmp_path, (NAME, BODY)), tmp_path / "to"
    command = [binary, "pull", "small", "--manifest", listed, "--from", mirror.url, "--to", to, "--tls-ca", authority / "ca.pem"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    part = to / f"{NAME}.part"
    deadline = time.monotonic() + 30
    while not part.exists() or part.stat().st_size < 1 << 18:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and b"the same command goes on" in err, err
    kept, mirror.slow = part.stat().st_size, 0
    assert pull(mirror.url, "--tls-ca", authority / "ca.pem")[0] == 0
    assert mirror.requests[-1][1] == f"bytes={kept}-" and (to / NAME).read_bytes() == BODY


@pytest.mark.parametrize(
    "certificate, believed, why",
    [
        ("good", "other.pem", "unable to get local issuer certificate"),
        ("good", None, "unable to get local issuer certificate"),
        ("stranger", "ca.pem", "IP address mismatch"),
        ("old", "ca.pem", "certificate has expired"),
    ],
)
def test_wrong_certificates_are_refused(pull, tls_mirror, authority, tmp_path, certificate, believed, why):
    mirror = tls_mirror(certificate)
    code, out, err = pull(mirror.url, *(["--tls-ca", authority / believed] if believed else []))
    assert code == 3 and out == b"" and len(err.splitlines()) == 1
    assert f"the server's certificate is not believed: {why}" in err.decode()
    assert mirror.requests == [], "nothing is asked of a stranger"
    assert list((tmp_path / "to").iterdir()) == []


def test_the_authorities_of_the_system(binary, tls_mirror, authority, tmp_path):
    """In a mount namespace of its own: a store with the test's authority, then none."""
    store = "/etc/ssl/certs/ca-certificates.crt"
    listed, mirror = manifest(tmp_path, (NAME, BODY)), tls_mirror()
    pulls = [binary, "pull", "small", "--manifest", listed, "--from", mirror.url, "--to", tmp_path / "to"]

    def with_mount(mount):
        command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", *pulls]
        return subprocess.run([*map(str, command)], capture_output=True, text=True)

    done = with_mount(f"mount --bind {authority}/ca.pem {store}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "to" / NAME).read_bytes() == BODY
    done = with_mount("mount -t tmpfs none /etc/ssl")
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1
    assert f"certificates of authorities are not found ({store} and 4 other places)" in done.stderr
    assert "install the package ca-certificates, or name a PEM file with --tls-ca" in done.stderr


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_tls_and_no_tls_are_refused(pull, tls_mirror, mirror, authority):
    old = tls_mirror(newest=ssl.TLSVersion.TLSv1_1)
    code, _, err = pull(old.url, "--tls-ca", authority / "ca.pem")
    assert code == 4 and b"cannot agree on TLS" in err and old.requests == []
    code, _, err = pull(mirror.url.replace("http:", "https:"), "--tls-ca", authority / "ca.pem")
    assert code == 4 and b"cannot agree on TLS" in err and mirror.requests == []
    code, _, err = pull("https://127.0.0.1:1/", "--tls-ca", authority / "good.key")
    assert code == 3 and b"no certificate in PEM form" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_gone_on_with(binary, pull, mirror, tmp_path, number):
    mirror.slow = 0.1
    to, listed = tmp_path / "to", manifest(tmp_path, (NAME, BODY))
    command = [binary, "pull", "small", "--manifest", listed, "--from", mirror.url, "--to", to]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    part = to / f"{NAME}.part"
    deadline = time.monotonic() + 30
    while not part.exists() or part.stat().st_size < 1 << 18:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and b"the same command goes on" in err, err
    kept = part.stat().st_size
    mirror.slow = 0
    assert pull(mirror.url)[0] == 0
    assert mirror.requests[-1][1] == f"bytes={kept}-"
    assert (to / NAME).read_bytes() == BODY


def test_from_a_folder(pull, tmp_path):
    source = tmp_path / "a folder"
    source.mkdir()
    (source / NAME).write_bytes(BODY)
    assert pull(source)[0] == 0
    assert (tmp_path / "to" / NAME).read_bytes() == BODY
    (tmp_path / "to" / NAME).write_bytes(b"mine")
    code, _, err = pull(source)
    assert code == 3 and b"is another file" in err
    assert (tmp_path / "to" / NAME).read_bytes() == b"mine"


def test_a_folder_that_cannot_be_written(execute, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = execute("pull", "smollm2-135m", "--from", tmp_path, "--to", tmp_path / "file" / "below")
    assert code == 3 and b"cannot be created" in err


@pytest.mark.parametrize(
    "change, wrong",
    [
        ({"file": "../x"}, "expected a name without a folder"),
        ({"file": "a/b"}, "expected a name without a folder"),
        ({"file": "/etc/passwd"}, "expected a name without a folder"),
        ({"bytes": -1}, "bytes is -1"),
        ({"bytes": 1.5}, "bytes"),
        ({"sha256": "ABC"}, "64 hexadecimal digits"),
        ({"sha256": None}, "sha256"),
    ],
)
def test_manifests_are_checked(refused, tmp_path, change, wrong):
    entry = {"file": "x", "bytes": 1, "sha256": "0" * 64, **change}
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"models": [{"name": "m", "files": [entry]}]}))
    assert wrong in refused(3, "pull", "m", "--manifest", path, "--from", tmp_path, "--to", tmp_path / "to")


def test_a_bar_on_a_terminal_alone(binary, mirror, tmp_path):
    mirror.slow = 0.05
    listed = manifest(tmp_path, (NAME, BODY))
    command = [binary, "pull", "small", "--manifest", listed, "--from", mirror.url, "--to"]
    with Terminal([*command, tmp_path / "a"]) as terminal:
        assert terminal.end() == 0
        assert "sparkinfer: pulling [" in terminal.text and "of 3.1 MB" in terminal.text
    done = subprocess.run([*command, tmp_path / "b"], capture_output=True, check=True)
    assert done.stderr == b""


def test_a_pulled_model_has_a_name(execute, smollm2, tmp_path):
    env = {"XDG_DATA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    code, out, err = execute("pull", "smollm2-135m", "--from", smollm2.parent.resolve(), env=env)
    assert code == 0, err
    for name in ("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf"):
        assert execute("tokenize", name, "-p", "x", env=env)[0] == 0
    assert execute("inspect", "smollm2-135m", env=env)[0] == 0
    code, out, _ = execute("models", env=env, cwd=tmp_path)
    assert code == 0 and out.decode().splitlines()[1] == "  98.4 MB, 135M weights, Q4_1, context 8192, llama"


def test_a_known_model_that_is_not_there(refused, tmp_path):
    env = {"XDG_DATA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    assert "`sparkinfer pull smollm2-135m --from SOURCE` obtains it" in refused(3, "run", "smollm2-135m", env=env)
    assert "cannot open the file" in refused(3, "run", "no-such-model", "-p", "x", env=env)


def test_models_lists_what_runs_and_what_does_not(execute, tiny, tmp_path):
    (tmp_path / "good \x1b[2Jname.gguf").symlink_to(tiny)
    (tmp_path / "part-00002-of-00003.gguf").write_bytes(b"GGUF")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "bad.gguf").write_bytes(b"no model")
    code, out, _ = execute("models", tmp_path)
    text = out.decode()
    assert code == 0 and "\x1b" not in text and "part-00002" not in text
    assert "bad.gguf\n  not run: " in text and "context 1024, llama" in text
    models = json.loads(execute("models", tmp_path, "--json")[1])["models"]
    assert [m["runs"] for m in models] == [False, True]
    assert execute("models", tmp_path / "none")[0] == 3
