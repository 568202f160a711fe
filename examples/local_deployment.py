"""A real Flower deployment on the loopback interface, with every fault at hand.

``LocalDeployment`` starts one SuperLink and any number of SuperNodes as ordinary ``flower-superlink`` and
``flower-supernode`` processes. They speak TLS, and the SuperNodes are authenticated by their keys. Each part can be
killed, paused and started again, and each SuperNode's link can be cut at any moment by a TCP proxy in between::

    with LocalDeployment(Path("deployment"), ["partition-id=0", "partition-id=1"]) as deployment:
        deployment.start_superlink()
        for node in range(2):
            deployment.start_supernode(node)
        deployment.wait_until_connected()
        run_id = deployment.submit(Path("app"), {"rounds": 3})
        deployment.proxy(1).cut()
        print(deployment.wait(run_id))

Linux is assumed: processes are found through ``/proc``. Needs ``flwr`` (its scripts beside ``sys.executable``) and
``cryptography``, on which ``flwr`` depends. Nothing here listens on, or connects to, anything but 127.0.0.1.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

LOOPBACK = "127.0.0.1"
DEPLOYMENT_VARIABLE = "LOCAL_DEPLOYMENT_TOKEN"
ROLE_VARIABLE = "LOCAL_DEPLOYMENT_ROLE"
CONNECTION = "local"
FINISHED = "finished"
PATIENCE = 1200.0
"""Seconds after which what we wait for will not come: something is broken, and not only slow."""


# --- Processes ------------------------------------------------------------------------------------------------------


def _environment_of(pid: int) -> set[bytes]:
    """Return the environment a process was started with, empty for one that is gone, dead or not ours."""
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def marked_processes(token: str, role: str | None = None, command: str = "") -> list[int]:
    """Return the living processes of a deployment, including descendants whose parents have died.

    Every process inherits its deployment's token and its role through the environment, so the answer does not depend
    on the process tree. ``command`` keeps those whose command line contains it.
    """
    wanted = {f"{DEPLOYMENT_VARIABLE}={token}".encode()}
    if role is not None:
        wanted.add(f"{ROLE_VARIABLE}={role}".encode())
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if wanted <= _environment_of(pid) and command in _command_line(pid)]


def _command_line(pid: int) -> str:
    """Return a process's command line, empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may be gone by now."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_marked(token: str, role: str | None = None, command: str = "") -> list[int]:
    """SIGKILL the marked processes until none is left (one may fork while we look), and return those killed."""
    killed: list[int] = []
    deadline = time.monotonic() + PATIENCE
    while pids := marked_processes(token, role, command):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} survive SIGKILL")
        _signal_all(pids, signal.SIGKILL)
        killed += [pid for pid in pids if pid not in killed]
        time.sleep(0.02)
    return killed


@dataclass
class Exit:
    """One exit of a supervised process: when (``time.monotonic``), after how long, and with which code."""

    at: float
    after: float
    code: int


class ManagedProcess:
    """A process that is restarted after a delay whenever it exits, until it is killed on purpose."""

    def __init__(
        self, role: str, command: Sequence[str], environment: Mapping[str, str], log: Path, restart_delay: float | None
    ):
        """Prepare a process; ``restart_delay`` None leaves it dead after an exit of its own."""
        self.role = role
        self.exits: list[Exit] = []
        self._command = list(command)
        self._environment = {**environment, ROLE_VARIABLE: role}
        self._token = environment[DEPLOYMENT_VARIABLE]
        self._log = log
        self._restart_delay = restart_delay
        self._unwanted = threading.Event()
        self._supervisor: threading.Thread | None = None
        self._offset = 0

    def start(self) -> None:
        """Start the process and its supervisor; one that is already wanted stays as it is."""
        if self.wanted:
            return
        self._unwanted.clear()
        self._supervisor = threading.Thread(target=self._supervise, name=f"supervisor-{self.role}", daemon=True)
        self._supervisor.start()

    def kill(self) -> list[int]:
        """SIGKILL the process with all its descendants, keep it dead, and return the processes killed."""
        self._unwanted.set()
        killed = kill_marked(self._token, self.role)
        while self.wanted:  # the supervisor may have been about to launch it
            time.sleep(0.02)
            killed += kill_marked(self._token, self.role)
        return killed

    def pause(self) -> None:
        """SIGSTOP the process with all its descendants."""
        stopped: set[int] = set()
        while new := set(marked_processes(self._token, self.role)) - stopped:
            _signal_all(new, signal.SIGSTOP)
            stopped |= new

    def resume(self) -> None:
        """SIGCONT the process with all its descendants."""
        _signal_all(marked_processes(self._token, self.role), signal.SIGCONT)

    @property
    def alive(self) -> bool:
        """Whether any process of this role lives."""
        return bool(marked_processes(self._token, self.role))

    @property
    def wanted(self) -> bool:
        """Whether the process runs or will be restarted: not killed, and not ended by itself for good."""
        return self._supervisor is not None and self._supervisor.is_alive()

    def output(self, *, since_start: bool = False) -> str:
        """Return what the process has written, all of it or only since it was last launched."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(self._offset if since_start else 0)
            return file.read().decode(errors="replace")

    def _supervise(self) -> None:
        while not self._unwanted.is_set():
            started = time.monotonic()
            code = self._launch().wait()
            self.exits.append(Exit(time.monotonic(), time.monotonic() - started, code))
            kill_marked(self._token, self.role)  # what it left behind may still hold its port
            if self._restart_delay is None:
                return
            self._unwanted.wait(self._restart_delay)

    def _launch(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self._offset = log.tell()
            return subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _start_guard(token: str) -> subprocess.Popen[bytes]:
    """Start a process that kills the whole deployment as soon as this one is gone, however it ends."""
    return subprocess.Popen(
        [sys.executable, __file__, "--guard", token],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _guard(token: str) -> None:
    """Wait until our parent closes the pipe or dies, then kill what is left of its deployment."""
    sys.stdin.buffer.read()
    kill_marked(token)


# --- The link -------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _reset(connection: socket.socket) -> None:
    """Close a connection with a TCP reset, waking whoever blocks on it."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)
    connection.close()


class LinkProxy:
    """A TCP proxy on the loopback interface whose link can be cut and restored at any moment.

    ``cut("refuse")`` resets all connections and refuses new ones. ``cut("blackhole")`` lets them hang: nothing moves
    until ``restore()``, which resets what hung, as after an outage longer than the peers' patience.
    """

    def __init__(self, target_port: int):
        """Listen on a free port for connections to be forwarded to ``target_port``."""
        self._target_port = target_port
        self._holder = self._bind(0)  # never listens: it keeps the port ours, and refusing, while the link is cut
        self.port = int(self._holder.getsockname()[1])
        self._listener: socket.socket | None = None
        self.transferred = 0
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._passing = threading.Event()
        self._closed = False
        self.restore()

    def cut(self, mode: Literal["refuse", "blackhole"] = "refuse") -> None:
        """Cut the link: reset and refuse connections, or let them hang."""
        self._passing.clear()
        if mode == "refuse":
            self._close_listener()
            self._reset_connections()

    def restore(self) -> None:
        """Let connections pass again, after resetting those that hung."""
        if self._passing.is_set() or self._closed:
            return
        self._reset_connections()
        self._close_listener()
        self._listener = self._bind(self.port)
        self._listener.listen(64)
        self._passing.set()
        threading.Thread(target=self._accept, args=(self._listener,), name=f"proxy-{self.port}", daemon=True).start()

    def close(self) -> None:
        """End the proxy for good."""
        self._closed = True
        self.cut()
        self._passing.set()
        self._holder.close()

    @staticmethod
    def _bind(port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((LOOPBACK, port))
        return bound

    def _close_listener(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RD)  # wakes the thread in accept
            self._listener.close()
            self._listener = None

    def _reset_connections(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            _reset(connection)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._passing.wait()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection((LOOPBACK, self._target_port), timeout=PATIENCE)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        with self._lock:
            self._connections |= {client, server}
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._passing.wait()
                sink.sendall(data)
                self.transferred += len(data)
        with self._lock:
            self._connections -= {source, sink}
        _reset(source)
        _reset(sink)


# --- Keys and certificates ------------------------------------------------------------------------------------------


def _write_private(path: Path, content: bytes) -> Path:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def write_node_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a SuperNode's P-384 key pair in the OpenSSH format that Flower reads, and return (private, public)."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    public_path = folder / f"{name}.pub"
    public_path.write_bytes(public + b"\n")
    return _write_private(folder / name, private), public_path


def write_certificates(folder: Path, days: int = 30) -> tuple[Path, Path, Path]:
    """Write a CA and a server certificate for localhost and 127.0.0.1; return (CA, certificate, its key)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )

    def usage(*, authority: bool) -> x509.KeyUsage:
        other = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        ) | dict.fromkeys(("encipher_only", "decipher_only"), False)
        return x509.KeyUsage(digital_signature=True, key_cert_sign=authority, crl_sign=authority, **other)

    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Local deployment CA")])
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = (
        builder("Local deployment CA", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(authority=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    server_key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
    server = (
        builder("localhost", server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    authority_path, server_path = folder / "ca.crt", folder / "server.crt"
    authority_path.write_bytes(authority.public_bytes(form.Encoding.PEM))
    server_path.write_bytes(server.public_bytes(form.Encoding.PEM))
    key_bytes = server_key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return authority_path, server_path, _write_private(folder / "server.key", key_bytes)


# --- The deployment -------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """One SuperNode: its keys, its process, the proxy on its link, and its id once it is registered."""

    public_key: Path
    process: ManagedProcess
    proxy: LinkProxy | None
    node_id: int | None = field(default=None)


class LocalDeployment:
    """A SuperLink and its SuperNodes on this machine; a context manager that leaves no process behind."""

    def __init__(
        self,
        directory: Path,
        node_configs: Sequence[str],
        *,
        proxied: bool = True,
        database: bool = True,
        restart_delay: float = 3.0,
        environment: Mapping[str, str] | None = None,
    ):
        """Make keys, certificates and configuration in ``directory``; start nothing but the guard.

        ``node_configs`` holds each SuperNode's ``--node-config``. ``proxied`` puts a proxy on each SuperNode's link.
        ``database`` keeps the SuperLink's state in a file that a restart reads; without, a restart forgets everything.
        ``restart_delay`` is the wait before a SuperNode that exited by itself is started again. ``environment`` adds
        variables to every process.
        """
        self.directory = directory.resolve()
        self.token = secrets.token_hex(8)
        self._extra = dict(environment or {})
        self._database = self.directory / "superlink.db" if database else None
        for folder in (self.directory / name for name in ("logs", "keys")):
            folder.mkdir(parents=True, exist_ok=True)
        self._certificates = write_certificates(self.directory / "keys")
        self.port = free_port()
        self._write_connection()
        self._superlink = self._managed("superlink", self._superlink_command(), None)
        self._nodes = [self._make_node(i, config, proxied, restart_delay) for i, config in enumerate(node_configs)]
        self._guard = _start_guard(self.token)

    def __enter__(self) -> LocalDeployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process of the deployment and close the proxies; may be called again."""
        try:
            for process in [self._superlink, *(node.process for node in self._nodes)]:
                process.kill()
            kill_marked(self.token)
            for node in self._nodes:
                if node.proxy is not None:
                    node.proxy.close()
        finally:
            if self._guard.stdin is not None:
                self._guard.stdin.close()
            self._guard.wait(timeout=PATIENCE)

    # Faults

    def start_superlink(self, timeout: float = PATIENCE) -> None:
        """Start the SuperLink, wait until it answers, and register the SuperNodes it does not know."""
        self._superlink.start()
        self._wait_for(self._superlink_answers, timeout, "the SuperLink does not answer")
        for node in self._nodes:
            if node.node_id is None or self._database is None:
                node.node_id = int(self.flwr("supernode", "register", str(node.public_key), CONNECTION)["node-id"])

    def kill_superlink(self) -> list[int]:
        """SIGKILL the SuperLink with its SuperExec and ServerApp processes."""
        return self._superlink.kill()

    def start_supernode(self, index: int) -> None:
        """Start a SuperNode, again and again until it stays: a SuperLink refuses one it believes to be online."""
        self._nodes[index].process.start()

    def kill_supernode(self, index: int) -> list[int]:
        """SIGKILL a SuperNode with its SuperExec and ClientApp processes."""
        return self._nodes[index].process.kill()

    def pause_supernode(self, index: int) -> None:
        """SIGSTOP a SuperNode with its SuperExec and ClientApp processes."""
        self._nodes[index].process.pause()

    def continue_supernode(self, index: int) -> None:
        """Let a paused SuperNode go on."""
        self._nodes[index].process.resume()

    def kill_serverapp(self) -> list[int]:
        """SIGKILL the ServerApp processes alone, and return those killed (none where no run is running)."""
        return kill_marked(self.token, "superlink", "flwr-serverapp")

    def proxy(self, index: int) -> LinkProxy:
        """Return the proxy on a SuperNode's link."""
        proxy = self._nodes[index].proxy
        if proxy is None:
            raise ValueError("this deployment is not proxied")
        return proxy

    # Runs

    def submit(self, app: Path, run_config: str | Mapping[str, Any] = "") -> int:
        """Submit an app with ``flwr run`` and return the run's id.

        ``run_config`` overrides keys of the app's own configuration: ``"key=value"`` pairs, or a mapping.
        """
        if not isinstance(run_config, str):
            run_config = str(self._write_run_config(run_config))
        override = ["--run-config", run_config] if run_config else []
        return int(self.flwr("run", str(app.resolve()), CONNECTION, *override)["run-id"])

    def status(self, run_id: int) -> str:
        """Return a run's status as ``flwr list`` shows it, such as ``running`` or ``finished:completed``."""
        runs = self.flwr("list", CONNECTION, "--run-id", str(run_id))["runs"]
        return str(runs[0]["status"])

    def wait(self, run_id: int, timeout: float = PATIENCE) -> str:
        """Wait until a run is finished, and return its status."""
        deadline = time.monotonic() + timeout
        while not (status := self.status(run_id)).startswith(FINISHED):
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {run_id} is still {status}")
            time.sleep(1)
        return status

    def run_log(self, run_id: int) -> str:
        """Return what the run's ServerApp has logged."""
        return self._flwr_output("log", str(run_id), CONNECTION, "--show")

    def flwr(self, *arguments: str, timeout: float = PATIENCE) -> dict[str, Any]:
        """Run the ``flwr`` command and return its JSON answer."""
        answer = json.loads(self._flwr_output(*arguments, "--format", "json", timeout=timeout))
        if not answer.get("success"):
            raise RuntimeError(f"flwr {' '.join(arguments)}: {answer}")
        return dict(answer)

    # Observation

    def node_id(self, index: int) -> int:
        """Return the id under which the SuperLink knows a SuperNode."""
        node_id = self._nodes[index].node_id
        if node_id is None:
            raise RuntimeError("SuperNodes are registered when the SuperLink is first started")
        return node_id

    def connected(self, index: int) -> bool:
        """Whether a SuperNode, since it was last launched, has been accepted by a SuperLink and lives."""
        process = self._nodes[index].process
        return process.alive and re.search(r"SuperNode ID: \d+", process.output(since_start=True)) is not None

    def wait_until_connected(self, nodes: Iterable[int] | None = None, timeout: float = PATIENCE) -> None:
        """Wait until SuperNodes (all, unless told) have been accepted by the SuperLink."""
        wanted = range(len(self._nodes)) if nodes is None else list(nodes)
        self._wait_for(lambda: all(map(self.connected, wanted)), timeout, f"SuperNodes {list(wanted)} do not connect")

    def exits(self, index: int) -> list[Exit]:
        """Return all exits of a SuperNode so far, killed ones included."""
        return list(self._nodes[index].process.exits)

    def logs(self, role: str) -> str:
        """Return all output of ``superlink`` or of ``supernode-0``, ``supernode-1``, ..."""
        return (self.directory / "logs" / f"{role}.log").read_text(errors="replace")

    def processes(self, role: str | None = None, command: str = "") -> list[int]:
        """Return the deployment's living processes, all or those of a role or command."""
        return marked_processes(self.token, role, command)

    # Construction

    def _make_node(self, index: int, config: str, proxied: bool, restart_delay: float) -> Node:
        role = f"supernode-{index}"
        private, public = write_node_keys(self.directory / "keys", role)
        proxy = LinkProxy(self.port) if proxied else None
        command = [
            _script("flower-supernode"),
            f"--superlink={LOOPBACK}:{proxy.port if proxy else self.port}",
            f"--root-certificates={self._certificates[0]}",
            f"--auth-supernode-private-key={private}",
            f"--host={LOOPBACK}",
            f"--port={free_port()}",
            f"--node-config={config}",
        ]
        return Node(public, self._managed(role, command, restart_delay), proxy)

    def _superlink_command(self) -> list[str]:
        authority, certificate, key = self._certificates
        return [
            _script("flower-superlink"),
            f"--ssl-ca-certfile={authority}",
            f"--ssl-certfile={certificate}",
            f"--ssl-keyfile={key}",
            f"--host={LOOPBACK}",
            f"--port={self.port}",
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            *([f"--database={self._database}"] if self._database else []),
        ]

    def _managed(self, role: str, command: Sequence[str], restart_delay: float | None) -> ManagedProcess:
        log = self.directory / "logs" / f"{role}.log"
        return ManagedProcess(role, command, self._environment(role), log, restart_delay)

    def _environment(self, role: str) -> dict[str, str]:
        """Return a process's environment: ours without Flower's own variables, isolated and offline."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("FLWR_", "FLOWER_"))}
        home = self.directory / "home" / role
        home.mkdir(parents=True, exist_ok=True)
        return {
            **inherited,
            **self._extra,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            DEPLOYMENT_VARIABLE: self.token,
            ROLE_VARIABLE: role,
        }

    def _write_connection(self) -> None:
        home = Path(self._environment("cli")["FLWR_HOME"])
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f"[superlink.{CONNECTION}]\n"
            f'address = "{LOOPBACK}:{self.port}"\n'
            f"root-certificates = {json.dumps(str(self._certificates[0]))}\n"
        )

    def _write_run_config(self, run_config: Mapping[str, Any]) -> Path:
        path = self.directory / f"run-config-{secrets.token_hex(4)}.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in run_config.items()))
        return path

    # Helpers

    def _flwr_output(self, *arguments: str, timeout: float = PATIENCE) -> str:
        command = [_script("flwr"), *arguments]
        done = subprocess.run(
            command, env=self._environment("cli"), capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _superlink_answers(self) -> bool:
        with suppress(OSError), socket.create_connection((LOOPBACK, self.port), timeout=10):
            return True
        if not self._superlink.wanted:
            raise RuntimeError(f"the SuperLink exited:\n{self._superlink.output(since_start=True)}")
        return False

    @staticmethod
    def _wait_for(condition: Callable[[], bool], timeout: float, failure: str) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{failure} within {timeout:g} s")
            time.sleep(0.2)


def _script(name: str) -> str:
    """Return the path of a command installed beside this interpreter."""
    return str(Path(sys.executable).parent / name)


if __name__ == "__main__" and sys.argv[1:2] == ["--guard"]:
    _guard(sys.argv[2])
