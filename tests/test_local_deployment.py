"""The local Flower deployment of ``examples``: its link proxy, and one run through a cut link and a dead ServerApp."""

import importlib.util
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from waiting import wait_until

MODULE = Path(__file__).parent.parent / "examples" / "local_deployment.py"

PROJECT = """
[project]
name = "echo"
version = "0.1.0"

[tool.flwr.app]
publisher = "nobody"

[tool.flwr.app.components]
serverapp = "echo:server"
clientapp = "echo:client"

[tool.flwr.app.config]
lost = ""
hold = ""
out = ""
"""

APP = """
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.train()
def train(message, context):
    record = ConfigRecord({"node": context.node_config["partition-id"]})
    return Message(RecordDict({"answer": record}), reply_to=message)


@server.main()
def main(grid, context):
    config, content = context.run_config, RecordDict({"question": ConfigRecord({"x": 1})})
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    if config["hold"]:
        Path(config["hold"] + ".held").touch()
        while Path(config["hold"]).exists():
            time.sleep(0.1)
    ttl = {n: 20.0 if str(n) == config["lost"] else 3600.0 for n in nodes}
    sent = list(grid.push_messages([Message(content, n, MessageType.TRAIN, ttl=ttl[n]) for n in nodes]))
    waiting = {message_id for message_id in sent if message_id}
    lines = ["error"] * (len(sent) - len(waiting))
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            lines.append("error" if reply.has_error() else f"{reply.content['answer']['node']}")
        time.sleep(0.2)
    Path(config["out"]).write_text(" ".join(sorted(lines)))
"""


@pytest.fixture(scope="module")
def local_deployment():
    spec = importlib.util.spec_from_file_location("local_deployment", MODULE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["local_deployment"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["local_deployment"]


@pytest.fixture
def echo_port():
    """Serve, on a loopback port, every connection's bytes back to it."""

    def echo(connection):
        with connection:
            try:
                while data := connection.recv(100):
                    connection.sendall(data)
            except OSError:
                return

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RD)
    thread.join(timeout=60)
    listener.close()


@contextmanager
def held(hold):
    """A file that holds a server up as long as we are in here, and a function that waits until the server says so."""

    def wait_held():
        wait_until(hold.with_name(f"{hold.name}.held").exists, "the server does not begin")

    hold.touch()
    yield hold, wait_held
    hold.unlink()


def ask(connection):
    connection.sendall(b"hello")
    return connection.recv(100)


def connect(port):
    return closing(socket.create_connection(("127.0.0.1", port), timeout=300))


def test_cut_link_resets_and_refuses_until_restored(local_deployment, echo_port):
    proxy = local_deployment.LinkProxy(echo_port)
    with closing(proxy):
        for _ in range(3):
            with connect(proxy.port) as connection:
                assert ask(connection) == b"hello"
                proxy.cut()
                with pytest.raises((ConnectionResetError, BrokenPipeError)):
                    ask(connection)
            with pytest.raises(ConnectionRefusedError):
                connect(proxy.port)
            proxy.restore()
            with connect(proxy.port) as connection:
                assert ask(connection) == b"hello"


def test_blackhole_hangs_and_its_connections_are_reset_on_restoring(local_deployment, echo_port):
    proxy = local_deployment.LinkProxy(echo_port)
    with closing(proxy), connect(proxy.port) as connection:
        assert ask(connection) == b"hello"
        proxy.cut("blackhole")
        connection.settimeout(0.5)  # nothing comes, however long we wait
        with pytest.raises(TimeoutError):
            ask(connection)
        proxy.restore()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            ask(connection)
        with connect(proxy.port) as fresh:
            assert ask(fresh) == b"hello"


def test_kill_reaches_a_grandchild_whose_parent_is_dead(local_deployment):
    environment = {local_deployment.DEPLOYMENT_VARIABLE: "test-token", local_deployment.ROLE_VARIABLE: "a"}
    orphan = f"import subprocess; subprocess.Popen(['{sys.executable}', '-c', 'import time; time.sleep(3600)'])"
    try:
        subprocess.run([sys.executable, "-c", orphan], env=environment, check=True, timeout=600)
        assert len(local_deployment.marked_processes("test-token", "a")) == 1
        assert local_deployment.marked_processes("test-token", "b") == []
    finally:
        killed = local_deployment.kill_marked("test-token")
    assert len(killed) == 1
    assert local_deployment.marked_processes("test-token") == []


@pytest.mark.release
def test_deployment_survives_a_cut_link_and_a_dead_serverapp(local_deployment, tmp_path):
    pytest.importorskip("flwr", reason="needs flwr")
    app, out = tmp_path / "app", tmp_path / "out.txt"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "echo.py").write_text(APP)
    with local_deployment.LocalDeployment(tmp_path / "deployment", ["partition-id=0", "partition-id=1"]) as deployment:
        deployment.start_superlink()
        deployment.start_supernode(0)
        deployment.start_supernode(1)
        deployment.wait_until_connected()

        assert deployment.wait(deployment.submit(app, {"out": str(out)})) == "finished:completed"
        assert out.read_text() == "0 1"

        with held(tmp_path / "cut") as (hold, wait_held):  # the server knows its nodes by then
            lost = str(deployment.node_id(1))
            run_id = deployment.submit(app, {"out": str(out), "hold": str(hold), "lost": lost})
            wait_held()
            deployment.proxy(1).cut()
        assert deployment.wait(run_id) == "finished:completed"
        assert out.read_text() == "0 error"
        deployment.proxy(1).restore()

        with held(tmp_path / "killed") as (hold, wait_held):
            deployment.submit(app, {"out": str(out), "hold": str(hold)})
            wait_held()
            assert deployment.kill_serverapp()
        assert deployment.wait(deployment.submit(app, {"out": str(out)})) == "finished:completed"
        assert out.read_text() == "0 1"
    assert deployment.processes() == []
